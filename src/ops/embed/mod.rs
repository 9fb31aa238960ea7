//! Token and position embedding.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;

use super::OpsMode;
use super::shared::dispatch::op;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// Embeds `tokens` `[batch * time]` and their positions `0..time`; returns `[batch * time, c]`.
/// `wte` is the token embedding, in as many shards as the device needs.
///
/// Tokens are below the number of rows: the reader of the data checks that, because a kernel would
/// read memory of other tensors.
pub fn embed(
    wte: &[Tensor<2>],
    wpe: Tensor<2>,
    tokens: Arc<[u32]>,
    time: usize,
    mode: OpsMode,
) -> Tensor<2> {
    let mut y = wpe;
    let mut period = time;
    let mut first = 0;
    for shard in wte {
        let rows = shard.dims()[0];
        y = embed_shard(shard.clone(), y, tokens.clone(), first, period, mode);
        (first, period) = (first + rows, tokens.len());
    }
    y
}

/// Returns the gradients of both embeddings from `dy` `[n, c]`: of the tokens like
/// [`embed_tokens_backward`], and of the positions `[positions, c]`.
pub fn embed_backward(
    dy: Tensor<2>,
    into: Vec<Tensor<2>>,
    tokens: &Arc<[u32]>,
    time: usize,
    positions: usize,
    mode: OpsMode,
) -> (Vec<Tensor<2>>, Tensor<2>) {
    let shards = embed_tokens_backward(dy.clone(), into, tokens, mode);
    (shards, sum_by_position(dy, time, positions, mode))
}

/// Returns the gradient of the tokens' embedding from `dy` `[n, c]`, added to `into`, the output head's
/// gradients of the same weights, shard by shard.
pub fn embed_tokens_backward(
    dy: Tensor<2>,
    into: Vec<Tensor<2>>,
    tokens: &Arc<[u32]>,
    mode: OpsMode,
) -> Vec<Tensor<2>> {
    let mut first = 0;
    let add = |into: Tensor<2>| {
        let shard = first..first + into.dims()[0];
        first = shard.end;
        add_by_token(dy.clone(), into, tokens.clone(), shard, mode)
    };
    into.into_iter().map(add).collect()
}

op! {
    /// Embeds `n` tokens by one shard `[rows, c]`: returns
    /// `y[row] = base[row mod period] + shard[token - first]`, `[n, c]`, without the second term for
    /// tokens of other shards. `base` is `[period or more, c]`: the first shard adds to the positions,
    /// each other one to the output of the shard before.
    fn embed_shard(
        shard: Tensor<2>,
        base: Tensor<2>;
        tokens: Arc<[u32]>,
        first: usize,
        period: usize,
    ) -> Tensor<2> = forward(EmbedInputs);
}

op! {
    /// Adds each row of `dy` `[n, c]` to its token's row of `into`, the gradient of the tokens `shard`.
    /// Each sum is in the order of the tokens, so that the same step gives the same bits.
    fn add_by_token(
        dy: Tensor<2>,
        into: Tensor<2>;
        tokens: Arc<[u32]>,
        shard: Range<usize>,
    ) -> Tensor<2> = by_token(TokenGradientInputs);
}

op! {
    /// Returns the sum of `dy` `[n, c]` over the sequences of `time` rows, in their order, as
    /// `[positions, c]`: zero from `time` on.
    fn sum_by_position(
        dy: Tensor<2>;
        time: usize,
        positions: usize,
    ) -> Tensor<2> = by_position(PositionGradientInputs);
}

/// The rows of a batch sorted by token: for each token that occurs, its rows in order.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
struct Buckets {
    count: usize,
    /// The sorted rows; then the start of each bucket among them, and the end of the last one; then the
    /// row of each bucket's token in the shard.
    index: Vec<u32>,
    /// Where the starts and the rows of the shard begin.
    starts: usize,
    places: usize,
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Buckets {
    /// Sorts the rows whose token is in `shard`, a range of tokens. Returns `None` if there are none.
    fn new(tokens: &[u32], shard: &Range<usize>) -> Option<Self> {
        let held = |row: &u32| shard.contains(&(tokens[*row as usize] as usize));
        let mut rows: Vec<u32> = (0..tokens.len() as u32).filter(held).collect();
        rows.sort_by_key(|&row| tokens[row as usize]);
        let mut starts = Vec::new();
        let mut places = Vec::new();
        for (at, &row) in rows.iter().enumerate() {
            let place = tokens[row as usize] - shard.start as u32;
            if places.last() != Some(&place) {
                starts.push(at as u32);
                places.push(place);
            }
        }
        let count = places.len();
        let first = rows.len();
        starts.push(first as u32);
        let index = [rows, starts, places].concat();
        (count > 0).then_some(Self { count, index, starts: first, places: first + count + 1 })
    }
}

#[cfg(all(test, any(feature = "wgpu", feature = "cuda")))]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_the_rows_of_each_token_in_order() {
        let sorted = |shard| {
            let Buckets { count, index, starts, places } =
                Buckets::new(&[7, 2, 7, 7, 0, 2], &shard)?;
            assert_eq!(count, index.len() - places, "{shard:?}");
            let [rows, starts, places] =
                [&index[..starts], &index[starts..places], &index[places..]].map(<[u32]>::to_vec);
            Some((places, starts, rows))
        };
        let all = (vec![0, 2, 7], vec![0, 1, 3, 6], vec![4, 1, 5, 0, 2, 3]);
        assert_eq!(sorted(0..8), Some(all));
        assert_eq!(sorted(1..7), Some((vec![1], vec![0, 2], vec![1, 5])));
        assert_eq!(sorted(3..7), None);
    }
}
