//! How an op goes from burn's tensors to an implementation and back, by one signature in [`op!`].

#[cfg(not(target_arch = "wasm32"))]
pub(in crate::ops) use burn::backend::Flex;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn::tensor::{Int, Tensor};

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::cube::CubeKernels;
#[cfg(feature = "wgpu")]
use super::wgsl::WgslKernels;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use crate::gpu::queue::Queue;
#[cfg(feature = "wgpu")]
use crate::ops::Implementation;
use crate::ops::OpsMode;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(in crate::ops) type Gpu = burn_cubecl::CubeBackend;
/// This build has kernels for the CPU alone.
#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
pub(in crate::ops) type Gpu = Flex;

pub(in crate::ops) enum ChosenKernels {
    /// Tensor operations.
    Reference,
    /// Loops over slices.
    #[cfg(not(target_arch = "wasm32"))]
    Cpu,
    /// The kernels of `shaders/`.
    #[cfg(feature = "wgpu")]
    Wgsl(WgslKernels),
    /// The kernels in cubecl's language.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    Cube(CubeKernels),
}

impl ChosenKernels {
    #[cfg(not(target_arch = "wasm32"))]
    const WITHOUT_GPU: Self = ChosenKernels::Cpu;
    #[cfg(target_arch = "wasm32")]
    const WITHOUT_GPU: Self = ChosenKernels::Reference;

    /// Chooses by the mode and by the language that the device compiles. `on_gpu` is one of the op's
    /// tensors, if they are on a GPU. `supported` is true if the kernels of GPUs support the shapes.
    pub fn of(on_gpu: Option<FloatTensor<Gpu>>, mode: OpsMode, supported: bool) -> Self {
        match on_gpu.filter(|_| cfg!(any(feature = "wgpu", feature = "cuda"))) {
            _ if mode.is_reference() => ChosenKernels::Reference,
            Some(_) if !supported => ChosenKernels::Reference,
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Some(tensor) => {
                let mut queue = Queue::of(&tensor);
                queue.driver = mode.driver;
                #[cfg(feature = "wgpu")]
                if mode.implementation != Implementation::Cube && queue.runs_wgsl() {
                    return ChosenKernels::Wgsl(WgslKernels::new(queue, mode));
                }
                ChosenKernels::Cube(CubeKernels {
                    queue,
                    dtype: mode.precision.dtype(),
                    #[cfg(feature = "cuda")]
                    cublas: mode.cublas,
                })
            }
            _ => Self::WITHOUT_GPU,
        }
    }
}

/// Stands for burn's own tensors, which callers and the reference of an op use.
pub(in crate::ops) struct Reference;

/// A tensor, or several, in the signature of an op. `lower` returns the same in the types of a
/// backend, `raise` is its inverse.
pub(in crate::ops) trait Operand<B>: Sized {
    type Lowered;

    fn lower(self) -> Self::Lowered;

    fn raise(lowered: Self::Lowered) -> Self;

    /// Returns the first tensor; `None` if there is none, or if it is on another backend.
    fn first(&self) -> Option<FloatTensor<B>>
    where
        B: Backend,
    {
        None
    }
}

impl<T> Operand<Reference> for T {
    type Lowered = T;

    fn lower(self) -> T {
        self
    }

    fn raise(lowered: T) -> T {
        lowered
    }
}

impl<B: Backend, const D: usize> Operand<B> for Tensor<D>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type Lowered = FloatTensor<B>;

    fn lower(self) -> Self::Lowered {
        self.try_into_primitive::<B>().expect("all tensors of an op are on one device")
    }

    fn raise(lowered: Self::Lowered) -> Self {
        Tensor::from_primitive::<B>(lowered)
    }

    fn first(&self) -> Option<FloatTensor<B>> {
        self.clone().try_into_primitive::<B>().ok()
    }
}

impl<B: Backend, const D: usize> Operand<B> for Tensor<D, Int>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type Lowered = IntTensor<B>;

    fn lower(self) -> Self::Lowered {
        self.try_into_primitive::<B>().expect("all tensors of an op are on one device")
    }

    fn raise(lowered: Self::Lowered) -> Self {
        Tensor::from_primitive::<B>(lowered)
    }
}

impl<B: Backend> Operand<B> for bool {
    type Lowered = bool;

    fn lower(self) -> bool {
        self
    }

    fn raise(lowered: bool) -> Self {
        lowered
    }
}

impl<B: Backend, T: Operand<B>> Operand<B> for Option<T> {
    type Lowered = Option<T::Lowered>;

    fn lower(self) -> Self::Lowered {
        self.map(Operand::<B>::lower)
    }

    fn raise(lowered: Self::Lowered) -> Self {
        lowered.map(Operand::<B>::raise)
    }

    fn first(&self) -> Option<FloatTensor<B>> {
        Operand::<B>::first(self.as_ref()?)
    }
}

impl<B: Backend, T: Operand<B>> Operand<B> for Vec<T> {
    type Lowered = Vec<T::Lowered>;

    fn lower(self) -> Self::Lowered {
        self.into_iter().map(Operand::<B>::lower).collect()
    }

    fn raise(lowered: Self::Lowered) -> Self {
        lowered.into_iter().map(Operand::<B>::raise).collect()
    }

    fn first(&self) -> Option<FloatTensor<B>> {
        Operand::<B>::first(<[T]>::first(self)?)
    }
}

/// Implements [`Operand`] for tuples, which ops return.
macro_rules! tuple {
    ($($type:ident $value:ident),*) => {
        impl<B: Backend, $($type: Operand<B>),*> Operand<B> for ($($type,)*) {
            type Lowered = ($($type::Lowered,)*);

            fn lower(self) -> Self::Lowered {
                let ($($value,)*) = self;
                ($(Operand::<B>::lower($value),)*)
            }

            fn raise(($($value,)*): Self::Lowered) -> Self {
                ($(Operand::<B>::raise($value),)*)
            }
        }
    };
}
tuple!(T0 a, T1 b);
tuple!(T0 a, T1 b, T2 c);

/// Defines a struct of operands, itself an operand: implementations take the tuple of its fields.
macro_rules! tensors {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$of_field:meta])* $field_visibility:vis $field:ident: $type:ty),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$of_field])* $field_visibility $field: $type),*
        }

        impl<B: burn::backend::Backend> $crate::ops::shared::dispatch::Operand<B> for $name
        where
            burn::backend::DispatchTensor: burn::backend::DispatchKindConversion<B>,
        {
            type Lowered = ($(<$type as $crate::ops::shared::dispatch::Operand<B>>::Lowered,)*);

            fn lower(self) -> Self::Lowered {
                ($($crate::ops::shared::dispatch::Operand::<B>::lower(self.$field),)*)
            }

            fn raise(($($field,)*): Self::Lowered) -> Self {
                Self { $($field: $crate::ops::shared::dispatch::Operand::<B>::raise($field)),* }
            }

            fn first(&self) -> Option<burn::backend::tensor::FloatTensor<B>> {
                None$(.or_else(|| $crate::ops::shared::dispatch::Operand::<B>::first(&self.$field)))*
            }
        }
    };
}
pub(in crate::ops) use tensors;

/// Defines an op by its signature, tensors first and plain values behind a semicolon, the name of the
/// function that computes it in the op's `reference.rs`, `cpu.rs`, `wgsl.rs` and `cube.rs`, and the name
/// of the struct of its arguments:
///
/// `op! { pub fn linear(x: Tensor<2>, b: Option<Tensor<1>>; activation: Option<Gelu>) -> Tensor<2> = forward(LinearInputs); }`
///
/// Those functions take that struct, with the tensors of their backend; kernels of GPUs take their
/// [`WgslKernels`] or [`CubeKernels`] before it. `if` and a condition at the end limit what GPU kernels support.
macro_rules! op {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident(
            $($tensor:ident: $tensor_type:ty),+ $(; $($value:ident: $value_type:ty),+)? $(,)?
        ) -> $output:ty = $function:ident($inputs:ident) $(if $supported:expr)?;
    ) => {
        struct $inputs<B>
        where
            $($tensor_type: $crate::ops::shared::dispatch::Operand<B>,)+
        {
            $($tensor: <$tensor_type as $crate::ops::shared::dispatch::Operand<B>>::Lowered,)+
            $($($value: $value_type,)+)?
        }

        impl $inputs<$crate::ops::shared::dispatch::Reference> {
            fn lower<B>(self) -> $inputs<B>
            where
                $($tensor_type: $crate::ops::shared::dispatch::Operand<B>,)+
            {
                $inputs {
                    $($tensor: $crate::ops::shared::dispatch::Operand::<B>::lower(self.$tensor),)+
                    $($($value: self.$value,)+)?
                }
            }
        }

        $(#[$attribute])*
        $visibility fn $name(
            $($tensor: $tensor_type,)+
            $($($value: $value_type,)+)?
            mode: $crate::ops::OpsMode,
        ) -> $output {
            use $crate::ops::shared::dispatch::{Gpu, ChosenKernels, Operand, Reference};
            let on_gpu = None$(.or_else(|| Operand::<Gpu>::first(&$tensor)))+;
            let kernels = ChosenKernels::of(on_gpu, mode, true $(&& $supported)?);
            let inputs = $inputs::<Reference> { $($tensor,)+ $($($value),+)? };
            match kernels {
                ChosenKernels::Reference => reference::$function(inputs),
                #[cfg(not(target_arch = "wasm32"))]
                ChosenKernels::Cpu => {
                    use $crate::ops::shared::dispatch::Flex;
                    Operand::<Flex>::raise(cpu::$function(inputs.lower()))
                }
                #[cfg(feature = "wgpu")]
                ChosenKernels::Wgsl(kernels) => {
                    Operand::<Gpu>::raise(wgsl::$function(&kernels, inputs.lower()))
                }
                #[cfg(any(feature = "wgpu", feature = "cuda"))]
                ChosenKernels::Cube(kernels) => {
                    Operand::<Gpu>::raise(cube::$function(&kernels, inputs.lower()))
                }
            }
        }
    };
}
pub(in crate::ops) use op;
