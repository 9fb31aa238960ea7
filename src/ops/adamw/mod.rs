//! AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, in PyTorch's form), in place.

use std::sync::Arc;

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;
use super::shared::{Tensors, implement};

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The scalars of one update that the host knows. The device computes the others: see
/// [`UpdateControl::control`](super::UpdateControl::control).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// `1 - learning_rate * weight_decay`, for the weights that decay.
    pub decay: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

impl AdamW {
    /// The factor of a weight that decays or does not.
    fn decay_of(&self, decays: bool) -> f32 {
        if decays { self.decay } else { 1.0 }
    }
}

/// The running means of a parameter's gradient and of its square, `[elements]` both.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The first moment.
    pub m: Tensor<1>,
    /// The second moment.
    pub v: Tensor<1>,
}

/// A weight to update, all tensors `[elements]`.
#[derive(Clone, Debug)]
pub struct WeightUpdate {
    /// The weight.
    pub w: Tensor<1>,
    /// Its copy in half precision, if there is one, which follows it.
    pub half: Option<Tensor<1>>,
    /// Its gradient.
    pub grad: Tensor<1>,
    /// Its moments.
    pub moments: Moments,
    /// True if the weight decays.
    pub decays: bool,
}

/// A weight after an update: the weight, its copy in half precision and its moments.
pub type UpdatedWeight = (Tensor<1>, Option<Tensor<1>>, Moments);

/// Updates weights and their moments by their gradients, as `control` `[4]` of
/// [`update_control`](super::update_control) says; an update that it skips changes nothing.
///
/// A tensor that nothing else holds is updated in place. Kernels take many weights in one launch.
pub fn adamw(
    weights: Vec<WeightUpdate>,
    control: Tensor<1>,
    scalars: AdamW,
    mode: OpsMode,
) -> Vec<UpdatedWeight> {
    let mut lists: [Vec<_>; 5] = Default::default();
    let mut kinds = Vec::with_capacity(weights.len());
    for WeightUpdate { w, half, grad, moments, decays } in weights {
        kinds.push(Kind { has_half: half.is_some(), decays });
        let all = [Some(w), half, Some(grad), Some(moments.m), Some(moments.v)];
        for (list, tensor) in lists.iter_mut().zip(all) {
            list.extend(tensor.map(Tensor::into_dispatch));
        }
    }
    let (control, kinds) = (control.into_dispatch(), Arc::<[Kind]>::from(kinds));
    let [w, half, grad, m, v] = lists.map(Tensors);
    let (w, half, m, v) =
        Dispatch::adamw(w, half, grad, m, v, control, kinds.clone(), scalars, mode);
    let [mut w, mut half, mut m, mut v] =
        [w, half, m, v].map(|list| list.into_iter().map(Tensor::from_dispatch));
    let updated = kinds.iter().map_while(|kind| {
        let half = if kind.has_half { half.next() } else { None };
        Some((w.next()?, half, Moments { m: m.next()?, v: v.next()? }))
    });
    updated.collect()
}

/// Properties of a weight that its tensors do not show.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    has_half: bool,
    decays: bool,
}

/// A weight to update on one backend, all tensors `[elements]`.
struct Weight<B: Backend> {
    w: FloatTensor<B>,
    half: Option<FloatTensor<B>>,
    grad: FloatTensor<B>,
    m: FloatTensor<B>,
    v: FloatTensor<B>,
    decays: bool,
}

impl<B: Backend> Weight<B> {
    /// Takes the weights out of the lists that cross burn's dispatch.
    fn of([w, half, grad, m, v]: [Tensors<B>; 5], kinds: &[Kind]) -> Vec<Self> {
        let [mut w, mut half, mut grad, mut m, mut v] =
            [w, half, grad, m, v].map(|list| list.0.into_iter());
        let weights = kinds.iter().map_while(|kind| {
            Some(Self {
                w: w.next()?,
                half: if kind.has_half { half.next() } else { None },
                grad: grad.next()?,
                m: m.next()?,
                v: v.next()?,
                decays: kind.decays,
            })
        });
        weights.collect()
    }

    /// The tensors that an update returns, which it has changed in place or not at all.
    fn into_updated(self) -> Updated<B> {
        (self.w, self.half, self.m, self.v)
    }
}

/// Lists of `w`, the copies in half precision, `m` and `v`.
type Lists<B> =
    (Vec<FloatTensor<B>>, Vec<FloatTensor<B>>, Vec<FloatTensor<B>>, Vec<FloatTensor<B>>);

/// A weight, its copy in half precision and its moments after an update.
type Updated<B> = (FloatTensor<B>, Option<FloatTensor<B>>, FloatTensor<B>, FloatTensor<B>);

fn into_lists<B: Backend>(updated: impl Iterator<Item = Updated<B>>) -> Lists<B> {
    let mut lists = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (w, half, m, v) in updated {
        lists.0.push(w);
        lists.1.extend(half);
        lists.2.push(m);
        lists.3.push(v);
    }
    lists
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
#[allow(clippy::too_many_arguments, reason = "burn's dispatch carries no Vec of structs")]
#[allow(clippy::type_complexity, reason = "the macro reads types by their names")]
pub trait Optimize: Backend {
    /// Returns the new `w`, `half`, `m` and `v`. `half` has the copies of the weights that have one.
    fn adamw(
        #[extension_type] w: Tensors<Self>,
        #[extension_type] half: Tensors<Self>,
        #[extension_type] grad: Tensors<Self>,
        #[extension_type] m: Tensors<Self>,
        #[extension_type] v: Tensors<Self>,
        control: FloatTensor<Self>,
        kinds: Arc<[Kind]>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (
        Vec<FloatTensor<Self>>,
        Vec<FloatTensor<Self>>,
        Vec<FloatTensor<Self>>,
        Vec<FloatTensor<Self>>,
    );
}

implement! {
    Optimize:
    fn adamw(
        w: Tensors<Self>,
        half: Tensors<Self>,
        grad: Tensors<Self>,
        m: Tensors<Self>,
        v: Tensors<Self>,
        control: FloatTensor<Self>,
        kinds: Arc<[Kind]>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> Lists<Self> {
        Kernels::of(&control, mode), mode => update(
            Weight::of([w, half, grad, m, v], &kinds), control, scalars
        )
    }
}
