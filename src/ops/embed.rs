//! Token and position embedding.

use std::sync::Arc;

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{FloatDType, IndexingUpdateOp, Slice, Tensor, TensorData};

use super::{OpsMode, Optional, cpu};

/// `y[b * time + t] = wte[token] + wpe[t]`.
#[backend_extension(Cube: cfg(any(feature = "wgpu", feature = "cuda")), Flex, Autodiff)]
pub trait Embed: Backend {
    /// The differentiable op: `wte` `[vocab, c]`, `wpe` `[block, c]`, tokens `[batch * time]`;
    /// gives `[batch * time, c]`. Tokens are below the vocabulary: whoever reads them has checked
    /// it, because a kernel would read wild.
    fn embed(
        wte: FloatTensor<Self>,
        wpe: FloatTensor<Self>,
        tokens: Arc<[u32]>,
        time: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let _ = mode;
        reference_forward::<Self>(wte, wpe, &tokens, time)
    }

    /// From `dy` `[n, c]` gives `dwte` `[vocab, c]`, added to `into` where that is there, and `dwpe`
    /// `[block, c]`, each row summed in the order of the tokens, so that the same step gives the
    /// same bits.
    fn embed_backward(
        dy: FloatTensor<Self>,
        #[extension_type] into: Optional<Self>,
        tokens: Arc<[u32]>,
        time: usize,
        vocab: usize,
        block: usize,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let _ = mode;
        reference_backward::<Self>(dy, into.into_option(), &tokens, time, vocab, block)
    }
}

/// Embeds `tokens` `[batch * time]` and their positions `0..time`; gives `[batch * time, c]`.
pub fn embed(
    wte: Tensor<2>,
    wpe: Tensor<2>,
    tokens: Arc<[u32]>,
    time: usize,
    mode: OpsMode,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::embed(
        wte.into_dispatch(),
        wpe.into_dispatch(),
        tokens,
        time,
        mode,
    ))
}

/// The gradients of both embeddings from `dy` `[n, c]`: of the tokens added to `into` `[vocab, c]`,
/// of the positions `[time, c]`. What the backward pass does, for measuring it alone.
pub(crate) fn embed_gradients(
    dy: Tensor<2>,
    into: Tensor<2>,
    tokens: Arc<[u32]>,
    time: usize,
    mode: OpsMode,
) -> [Tensor<2>; 2] {
    let [vocab, _] = into.dims();
    let into = Optional::Some(into.into_dispatch());
    let (dwte, dwpe) =
        Dispatch::embed_backward(dy.into_dispatch(), into, tokens, time, vocab, time, mode);
    [dwte, dwpe].map(Tensor::from_dispatch)
}

#[cfg(all(feature = "cuda", not(feature = "wgpu")))]
impl Embed for burn_cubecl::CubeBackend {}

impl Embed for Flex {
    fn embed_backward(
        dy: FloatTensor<Self>,
        into: Optional<Self>,
        tokens: Arc<[u32]>,
        time: usize,
        vocab: usize,
        block: usize,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let into = into.into_option();
        match mode {
            OpsMode::Auto | OpsMode::Wide => {
                cpu::embed::backward(&dy, into, &tokens, time, vocab, block)
            }
            OpsMode::Reference => reference_backward::<Self>(dy, into, &tokens, time, vocab, block),
        }
    }
}

#[derive(Debug)]
struct EmbedBackward;

#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    /// The embedding's own node, by which its gradient so far is found.
    wte: FloatTensor<Autodiff<B>>,
    tokens: Arc<[u32]>,
    time: usize,
    vocab: usize,
    block: usize,
    mode: OpsMode,
}

impl<B: Embed> Backward<B, 2> for EmbedBackward {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let Saved { wte, tokens, time, vocab, block, mode } = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        // The output head has the same weights and comes first in the backward pass: what it left
        // is added to, instead of a second gradient of that size being made and added.
        let into = grads.remove::<B>(&wte).into();
        let (dwte, dwpe) = B::embed_backward(dy, into, tokens, time, vocab, block, mode);
        for (parent, grad) in ops.parents.into_iter().zip([dwte, dwpe]) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, grad);
            }
        }
    }
}

impl<B: Embed, C: CheckpointStrategy> Embed for Autodiff<B, C> {
    fn embed(
        wte: FloatTensor<Self>,
        wpe: FloatTensor<Self>,
        tokens: Arc<[u32]>,
        time: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let tied = wte.clone();
        let (wte, wte_node) = wte.into_parts();
        let (wpe, wpe_node) = wpe.into_parts();
        let [vocab, _] = super::shape::<B>(&wte).dims();
        let [block, _] = super::shape::<B>(&wpe).dims();
        let y = B::embed(wte, wpe, tokens.clone(), time, mode);
        match EmbedBackward.prepare::<C>([wte_node, wpe_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                prep.finish(Saved { wte: tied, tokens, time, vocab, block, mode }, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

fn ids<B: Backend>(tokens: &[u32], device: &Device<B>) -> IntTensor<B> {
    let ids: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
    let len = ids.len();
    B::int_from_data(TensorData::new(ids, [len]), device)
}

pub(super) fn reference_forward<B: Backend>(
    wte: FloatTensor<B>,
    wpe: FloatTensor<B>,
    tokens: &[u32],
    time: usize,
) -> FloatTensor<B> {
    let [_, c] = super::shape::<B>(&wte).dims();
    let ids = ids::<B>(tokens, &super::device::<B>(&wte));
    let x = B::float_select(wte, 0, ids);
    let x = B::float_reshape(x, [tokens.len() / time, time, c].into());
    let positions = B::float_slice(wpe, &[Slice::from(0..time)]);
    let x = B::float_add(x, B::float_reshape(positions, [1, time, c].into()));
    B::float_reshape(x, [tokens.len(), c].into())
}

pub(super) fn reference_backward<B: Backend>(
    dy: FloatTensor<B>,
    into: Option<FloatTensor<B>>,
    tokens: &[u32],
    time: usize,
    vocab: usize,
    block: usize,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let device = super::device::<B>(&dy);
    let [n, c] = super::shape::<B>(&dy).dims();
    let by_sequence = B::float_reshape(dy.clone(), [n / time, time, c].into());
    let positions = B::float_reshape(B::float_sum_dim(by_sequence, 0), [time, c].into());
    let dwpe = if time == block {
        positions
    } else {
        let unused = B::float_zeros([block - time, c].into(), &device, FloatDType::F32);
        B::float_cat(vec![positions, unused], 0)
    };
    let sum = into.unwrap_or_else(|| B::float_zeros([vocab, c].into(), &device, FloatDType::F32));
    let ids = ids::<B>(tokens, &device);
    let dwte = B::float_select_assign(sum, 0, ids, dy, IndexingUpdateOp::Add);
    (dwte, dwpe)
}
