//! Code that several ops use: the choice of kernels, the types that cross burn's dispatch, and for
//! each kind of device the launch, the matrix products and the reductions.

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, TensorMetadata,
};
use burn::tensor::Shape;

#[cfg(not(target_arch = "wasm32"))]
pub(super) mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) mod cube;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) mod kernels;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// Implements an op's trait for every backend. Each method names the kernels that a GPU tensor goes to
/// and one call: of the function of that name in the op's `reference.rs`, `cpu.rs`, `wgsl.rs` or
/// `cube.rs`.
macro_rules! implement {
    ($op:ident: $(
        fn $method:ident($($parameters:tt)*) -> $output:ty {
            $kernels:expr, $mode:ident => $function:ident($($argument:expr),*)
        }
    )*) => {
        #[cfg(any(feature = "wgpu", feature = "cuda"))]
        impl $op for burn_cubecl::CubeBackend {
            $(#[allow(clippy::too_many_arguments, reason = "those of the trait")]
            fn $method($($parameters)*) -> $output {
                match $kernels {
                    Kernels::Reference => {
                        reference::$function::<burn_cubecl::CubeBackend>($($argument),*)
                    }
                    #[cfg(feature = "wgpu")]
                    Kernels::Wgsl(kernels) => wgsl::$function(&kernels, $($argument),*),
                    Kernels::Cube(kernels) => cube::$function(&kernels, $($argument),*),
                }
            })*
        }

        #[cfg(not(target_arch = "wasm32"))]
        impl $op for burn::backend::Flex {
            $(#[allow(clippy::too_many_arguments, reason = "those of the trait")]
            fn $method($($parameters)*) -> $output {
                match $mode.is_reference() {
                    true => reference::$function::<burn::backend::Flex>($($argument),*),
                    false => cpu::$function($($argument),*),
                }
            })*
        }
    };
}
pub(super) use implement;

/// An optional tensor. burn's dispatch carries structs and enums of tensors between backends, but
/// no `Option`.
#[derive(Clone, Debug, ExtensionType)]
pub enum Optional<B: Backend> {
    /// A tensor.
    Some(FloatTensor<B>),
    /// No tensor.
    None,
}

impl<B: Backend> From<Option<FloatTensor<B>>> for Optional<B> {
    fn from(tensor: Option<FloatTensor<B>>) -> Self {
        match tensor {
            Some(tensor) => Optional::Some(tensor),
            None => Optional::None,
        }
    }
}

impl<B: Backend> Optional<B> {
    pub(super) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Optional::Some(tensor) => Some(tensor),
            Optional::None => None,
        }
    }
}

/// Any number of tensors. burn derives how a type crosses its dispatch for structs and enums of
/// tensors, not for a `Vec`.
#[derive(Clone, Debug)]
pub struct Tensors<B: Backend>(pub Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for Tensors<B> {
    type Target = Tensors<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let map =
            |tensor| DispatchTensor { kind: map_kind(BackendTensor::Float(tensor)), autodiff };
        Tensors(self.0.into_iter().map(map).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        let contexts = target.0.iter().map(|tensor| tensor.autodiff);
        contexts.fold(DispatchAutodiffContext::Disabled, DispatchAutodiffContext::merge)
    }
}

/// The largest number of shards of one embedding.
pub const MAX_SHARDS: usize = 4;

impl<B: Backend> Tensors<B> {
    /// Joins the shards of a matrix. Returns the number of rows of each, too. Copies if there are
    /// several.
    pub(super) fn join(self) -> (FloatTensor<B>, Vec<usize>) {
        let Self(mut shards) = self;
        let rows = shards.iter().map(|shard| shape::<B>(shard).dims::<2>()[0]).collect();
        let whole = match shards.len() {
            1 => shards.remove(0),
            _ => B::float_cat(shards, 0),
        };
        (whole, rows)
    }
}

/// Splits a matrix into shards of `rows` rows each.
pub(super) fn split<B: Backend>(whole: FloatTensor<B>, rows: &[usize]) -> Vec<FloatTensor<B>> {
    use burn::tensor::Slice;
    if rows.len() == 1 {
        return vec![whole];
    }
    let mut first = 0;
    let shard = |&rows: &usize| {
        let range = first..first + rows;
        first += rows;
        B::float_slice(whole.clone(), &[Slice::from(range)])
    };
    rows.iter().map(shard).collect()
}

pub(super) fn shape<B: Backend>(tensor: &FloatTensor<B>) -> Shape {
    tensor.shape()
}

pub(super) fn device<B: Backend>(tensor: &FloatTensor<B>) -> Device<B> {
    tensor.device()
}

/// `sqrt(2 / pi)` in the tanh form of GELU.
pub(super) const TANH_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient in the tanh form of GELU.
pub(super) const TANH_CUBIC: f32 = 0.044_715;
/// `1 / sqrt(2 pi)`, the peak of the normal density, in the derivative of the exact GELU.
pub(super) const NORMAL_PEAK: f32 = 0.398_942_3;
