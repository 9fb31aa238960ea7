//! The differentiable operations that carry the model, one file each.
//!
//! Every op is a trait over burn's [`Backend`] with three kinds of method: the op itself, which is
//! what the model calls and what autodiff records; its forward kernel, which also returns what the
//! backward pass needs; and its backward kernel. The trait's default bodies are the tensor-op
//! *reference*, which runs on every device. A backend overrides the kernels where it has something
//! faster: `cpu` holds the loops that burn's `flex` backend runs, `wgsl` the launches of the compute
//! kernels that graphics cards run, `cube` the kernels in cubecl's language for devices that do not
//! compile WGSL, and the choice between the two.
//!
//! All activations are `[n, c]` with `n = batch * time`: a batched product would make burn
//! materialise `[batch, in, out]` for every weight gradient.

use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy, ops::NodeGuard};
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, ExtensionType};
use burn::tensor::Shape;

use crate::config::Dtype;

mod adamw;
mod attention;
#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[allow(
    unsafe_code,
    reason = "launches without cubecl's bounds on each access: kernels guard theirs"
)]
mod cube;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod device;
mod dropout;
mod embed;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod softmax;
#[cfg(feature = "wgpu")]
mod wgsl;

pub use adamw::{AdamW, GradientNorm, Moments, adamw, gradient_norm};
pub use attention::{AttentionShape, attention};
pub use dropout::{Dropout, dropout};
pub use embed::embed;
pub(crate) use embed::embed_gradients;
pub use layer_norm::layer_norm;
pub use linear::{Activation, linear};
pub use linear_cross_entropy::{CrossEntropy, linear_cross_entropy};
pub use softmax::softmax;
#[cfg(feature = "wgpu")]
pub use wgsl::variants as kernel_variants;

/// Which implementation of the ops runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Implementation {
    /// The fastest that the device has.
    #[default]
    Auto,
    /// The tensor-op reference everywhere, for comparisons.
    Reference,
    /// As [`Implementation::Auto`], but the kernels with the tiles of graphics cards on every device
    /// that runs kernels: for testing those where there is no card.
    Wide,
    /// The kernels of devices that do not compile WGSL on every device that runs kernels: for
    /// testing those where there is no such device.
    Cube,
}

/// How the ops run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpsMode {
    /// What computes them.
    pub implementation: Implementation,
    /// What activations are kept in and what products multiply. Weights, their gradients, moments and
    /// all sums are f32 in each. The kernels of `cube` alone know another than f32; all the others,
    /// and the reference, take no notice.
    pub dtype: Dtype,
}

impl OpsMode {
    /// The fastest that the device has, in f32.
    pub const AUTO: Self = Self::of(Implementation::Auto);
    /// The reference.
    pub const REFERENCE: Self = Self::of(Implementation::Reference);
    /// [`Implementation::Wide`] in f32.
    pub const WIDE: Self = Self::of(Implementation::Wide);
    /// [`Implementation::Cube`] in f32.
    pub const CUBE: Self = Self::of(Implementation::Cube);

    /// An implementation, in f32.
    pub const fn of(implementation: Implementation) -> Self {
        Self { implementation, dtype: Dtype::Float32 }
    }

    /// The same in other numbers.
    pub const fn in_dtype(self, dtype: Dtype) -> Self {
        Self { dtype, ..self }
    }
}

/// A tensor that an op can do without. What `Option` is elsewhere: burn's dispatch carries structs
/// and enums of tensors across backends, but no `Option`.
#[derive(Clone, Debug, ExtensionType)]
pub enum Optional<B: Backend> {
    /// It is there.
    Some(FloatTensor<B>),
    /// It is not.
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
    fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Optional::Some(tensor) => Some(tensor),
            Optional::None => None,
        }
    }
}

/// Most tensors that the rows of one embedding can be cut into.
pub const MOST_TABLES: usize = 4;

/// The rows of a matrix in one to [`MOST_TABLES`] tensors, for devices that bind no larger one.
/// What `Vec` is elsewhere: burn's dispatch carries no `Vec`.
#[derive(Clone, Debug, ExtensionType)]
pub struct Tables<B: Backend> {
    first: FloatTensor<B>,
    #[extension_type]
    second: Optional<B>,
    #[extension_type]
    third: Optional<B>,
    #[extension_type]
    fourth: Optional<B>,
}

impl<B: Backend> Tables<B> {
    /// # Panics
    /// If there is none. The caller has checked that there are at most four.
    fn new(tables: impl IntoIterator<Item = FloatTensor<B>>) -> Self {
        let mut tables = tables.into_iter();
        Self {
            first: tables.next().expect("a matrix has rows"),
            second: tables.next().into(),
            third: tables.next().into(),
            fourth: tables.next().into(),
        }
    }

    fn into_vec(self) -> Vec<FloatTensor<B>> {
        let more = [self.second, self.third, self.fourth].map(Optional::into_option);
        [self.first].into_iter().chain(more.into_iter().flatten()).collect()
    }
}

/// The inner tensor and the node of an optional parent. One that is not there has the node of a
/// constant, so that an op keeps one fixed number of parents whether or not it has, say, a bias.
fn split<B: Backend, C: CheckpointStrategy>(
    tensor: Optional<Autodiff<B, C>>,
    like: &FloatTensor<Autodiff<B, C>>,
) -> (Optional<B>, NodeGuard) {
    match tensor {
        Optional::Some(tensor) => {
            let (tensor, node) = tensor.into_parts();
            (Optional::Some(tensor), node)
        }
        Optional::None => {
            let constant = FloatTensor::<Autodiff<B, C>>::new(like.primitive().clone());
            (Optional::None, constant.node())
        }
    }
}

fn shape<B: Backend>(tensor: &FloatTensor<B>) -> Shape {
    use burn::backend::TensorMetadata;
    tensor.shape()
}

fn device<B: Backend>(tensor: &FloatTensor<B>) -> Device<B> {
    use burn::backend::TensorMetadata;
    tensor.device()
}
