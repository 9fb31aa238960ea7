//! Token and position embedding.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{FloatDType, IndexingUpdateOp, Slice, Tensor, TensorData};

use super::{OpsMode, Optional};

/// `y[row] = base[row mod period] + table[token of row - first]`, without the second term for tokens
/// that the table does not hold: the tables of one embedding are rows of its tokens, one after the
/// other, and each adds to what the former ones gave. The first adds to the positions.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
    Autodiff
)]
pub trait Embed: Backend {
    /// The differentiable op: `table` `[rows, c]`, `base` `[period or more, c]`, `n` tokens; gives
    /// `[n, c]`.
    fn embed(
        table: FloatTensor<Self>,
        base: FloatTensor<Self>,
        tokens: Arc<[u32]>,
        first: usize,
        period: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let _ = mode;
        reference_forward::<Self>(table, base, &tokens, first, period)
    }

    /// From `dy` `[n, c]` gives `dtable` `[rows, c]`, added to `into` where that is there, and
    /// `dbase` `[base_rows, c]`, each row summed in the order of the tokens, so that the same step
    /// gives the same bits.
    fn embed_backward(
        dy: FloatTensor<Self>,
        #[extension_type] into: Optional<Self>,
        tokens: Arc<[u32]>,
        table: Range<usize>,
        period: usize,
        base_rows: usize,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let _ = mode;
        reference_backward::<Self>(dy, into.into_option(), &tokens, table, period, base_rows)
    }
}

/// Embeds `tokens` `[batch * time]` and their positions `0..time`; gives `[batch * time, c]`. `wte`
/// is the rows of the tokens, in as many tensors as the device needs. Tokens are below their
/// number: whoever reads them has checked it, because nothing would stand for others.
pub fn embed(
    wte: &[Tensor<2>],
    wpe: Tensor<2>,
    tokens: Arc<[u32]>,
    time: usize,
    mode: OpsMode,
) -> Tensor<2> {
    let (mut y, mut period, mut first) = (wpe.into_dispatch(), time, 0);
    for table in wte {
        let rows = table.dims()[0];
        y = Dispatch::embed(table.clone().into_dispatch(), y, tokens.clone(), first, period, mode);
        (first, period) = (first + rows, tokens.len());
    }
    Tensor::from_dispatch(y)
}

/// The gradients of both embeddings from `dy` `[n, c]`, without autodiff: of the tokens added to
/// `into`, the tables of the output head's gradient, and of the positions `[positions, c]`.
pub(crate) fn embed_gradients(
    dy: Tensor<2>,
    into: Vec<Tensor<2>>,
    tokens: &Arc<[u32]>,
    time: usize,
    positions: usize,
    mode: OpsMode,
) -> (Vec<Tensor<2>>, Tensor<2>) {
    let (mut dbase, mut end) = (dy.into_dispatch(), into.iter().map(|into| into.dims()[0]).sum());
    let mut tables = Vec::new();
    // The first table's base is the positions, that of each other what the former gave.
    for into in into.into_iter().rev() {
        let first = end - into.dims()[0];
        let n = tokens.len();
        let (period, rows) = if first == 0 { (time, positions) } else { (n, n) };
        let into = Optional::Some(into.into_dispatch());
        let (dtable, below) =
            Dispatch::embed_backward(dbase, into, tokens.clone(), first..end, period, rows, mode);
        tables.push(Tensor::from_dispatch(dtable));
        (dbase, end) = (below, first);
    }
    tables.reverse();
    (tables, Tensor::from_dispatch(dbase))
}

#[derive(Debug)]
struct EmbedBackward;

#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    /// The table's own node, by which its gradient so far is found.
    table: FloatTensor<Autodiff<B>>,
    tokens: Arc<[u32]>,
    held: Range<usize>,
    period: usize,
    base_rows: usize,
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
        let Saved { table, tokens, held, period, base_rows, mode } = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        // The output head has the same weights and comes first in the backward pass: what it left
        // is added to, instead of a second gradient of that size being made and added.
        let into = grads.remove::<B>(&table).into();
        let (dtable, dbase) = B::embed_backward(dy, into, tokens, held, period, base_rows, mode);
        for (parent, grad) in ops.parents.into_iter().zip([dtable, dbase]) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, grad);
            }
        }
    }
}

impl<B: Embed, C: CheckpointStrategy> Embed for Autodiff<B, C> {
    fn embed(
        table: FloatTensor<Self>,
        base: FloatTensor<Self>,
        tokens: Arc<[u32]>,
        first: usize,
        period: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let tied = table.clone();
        let (table, table_node) = table.into_parts();
        let (base, base_node) = base.into_parts();
        let [rows, _] = super::shape::<B>(&table).dims();
        let [base_rows, _] = super::shape::<B>(&base).dims();
        let y = B::embed(table, base, tokens.clone(), first, period, mode);
        match EmbedBackward.prepare::<C>([table_node, base_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let held = first..first + rows;
                prep.finish(Saved { table: tied, tokens, held, period, base_rows, mode }, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

/// The tokens' places in a table that holds `held`, and a factor for each, `[n, 1]`: 0 for a token
/// of another table.
fn places<B: Backend>(
    tokens: &[u32],
    held: &Range<usize>,
    device: &Device<B>,
) -> (IntTensor<B>, FloatTensor<B>) {
    let place = |&token: &u32| match held.contains(&(token as usize)) {
        true => (token as usize - held.start) as i32,
        false => 0,
    };
    let factor = |token: &u32| f32::from(held.contains(&(*token as usize)));
    let n = tokens.len();
    let places: Vec<i32> = tokens.iter().map(place).collect();
    let factors: Vec<f32> = tokens.iter().map(factor).collect();
    (
        B::int_from_data(TensorData::new(places, [n]), device),
        B::float_from_data(TensorData::new(factors, [n, 1]), device),
    )
}

pub(super) fn reference_forward<B: Backend>(
    table: FloatTensor<B>,
    base: FloatTensor<B>,
    tokens: &[u32],
    first: usize,
    period: usize,
) -> FloatTensor<B> {
    let [rows, c] = super::shape::<B>(&table).dims();
    let (places, factors) =
        places::<B>(tokens, &(first..first + rows), &super::device::<B>(&table));
    let x = B::float_mul(B::float_select(table, 0, places), factors);
    let x = B::float_reshape(x, [tokens.len() / period, period, c].into());
    let base = B::float_slice(base, &[Slice::from(0..period)]);
    let x = B::float_add(x, B::float_reshape(base, [1, period, c].into()));
    B::float_reshape(x, [tokens.len(), c].into())
}

pub(super) fn reference_backward<B: Backend>(
    dy: FloatTensor<B>,
    into: Option<FloatTensor<B>>,
    tokens: &[u32],
    table: Range<usize>,
    period: usize,
    base_rows: usize,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let device = super::device::<B>(&dy);
    let [n, c] = super::shape::<B>(&dy).dims();
    let by_period = B::float_reshape(dy.clone(), [n / period, period, c].into());
    let used = B::float_reshape(B::float_sum_dim(by_period, 0), [period, c].into());
    let dbase = if period == base_rows {
        used
    } else {
        let unused = B::float_zeros([base_rows - period, c].into(), &device, FloatDType::F32);
        B::float_cat(vec![used, unused], 0)
    };
    let zeros = || B::float_zeros([table.len(), c].into(), &device, FloatDType::F32);
    let sum = into.unwrap_or_else(zeros);
    let (places, factors) = places::<B>(tokens, &table, &device);
    let dy = B::float_mul(dy, factors);
    let dtable = B::float_select_assign(sum, 0, places, dy, IndexingUpdateOp::Add);
    (dtable, dbase)
}

/// The rows of a batch by their token: for each token that occurs, its rows in order.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) struct Buckets {
    pub rows: Vec<u32>,
    /// Where each bucket begins in `rows`, and where the last one ends.
    pub starts: Vec<u32>,
    /// Their tokens' rows in the table.
    pub places: Vec<u32>,
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Buckets {
    /// The rows whose token is in `table`, which holds a part of the tokens; the buckets' tokens
    /// are counted from its first.
    pub fn new(tokens: &[u32], table: &Range<usize>) -> Self {
        let held = |row: &u32| table.contains(&(tokens[*row as usize] as usize));
        let mut rows: Vec<u32> = (0..tokens.len() as u32).filter(held).collect();
        rows.sort_by_key(|&row| tokens[row as usize]);
        let (mut starts, mut places) = (Vec::new(), Vec::new());
        for (at, &row) in rows.iter().enumerate() {
            let place = tokens[row as usize] - table.start as u32;
            if places.last() != Some(&place) {
                starts.push(at as u32);
                places.push(place);
            }
        }
        starts.push(rows.len() as u32);
        Self { rows, starts, places }
    }
}

#[cfg(all(test, any(feature = "wgpu", feature = "cuda")))]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_the_rows_of_each_token_in_order() {
        let tokens = [7, 2, 7, 7, 0, 2];
        let Buckets { rows, starts, places } = Buckets::new(&tokens, &(0..8));
        assert_eq!(places, [0, 2, 7]);
        assert_eq!(starts, [0, 1, 3, 6]);
        assert_eq!(rows, [4, 1, 5, 0, 2, 3]);
        let Buckets { rows, starts, places } = Buckets::new(&tokens, &(1..7));
        assert_eq!((places, starts, rows), (vec![1], vec![0, 2], vec![1, 5]));
    }
}
