//! Token and position embedding.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::{ELEMENTWISE, Kernels, contiguous, owned};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::embed::{Embed, reference_backward, reference_forward};
use crate::ops::{OpsMode, Optional};

static FORWARD: Shader = Shader { name: "embed_forward", parts: &[wgsl!("embed_forward")] };
static TOKENS: Shader = Shader { name: "embed_tokens", parts: &[wgsl!("embed_tokens")] };
static POSITIONS: Shader = Shader { name: "embed_positions", parts: &[wgsl!("embed_positions")] };

fn spec(shader: &'static Shader, width: usize) -> Spec {
    Spec::new(shader, ELEMENTWISE).packed(pack_of(&[width]))
}

pub(super) fn variants() -> Vec<Spec> {
    let shaders = [&FORWARD, &TOKENS, &POSITIONS];
    shaders.into_iter().flat_map(|shader| [39, 768].map(|width| spec(shader, width))).collect()
}

/// The rows of a batch by their token: for each token that occurs, its rows in order.
struct Buckets {
    rows: Vec<u32>,
    /// Where each bucket begins in `rows`, and where the last one ends.
    starts: Vec<u32>,
    /// Their tokens' rows in the table.
    places: Vec<u32>,
}

impl Buckets {
    /// The rows whose token is in `table`, which holds a part of the tokens; the buckets' tokens
    /// are counted from its first.
    fn new(tokens: &[u32], table: &Range<usize>) -> Self {
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

impl Embed for CubeBackend {
    fn embed(
        table: FloatTensor<Self>,
        base: FloatTensor<Self>,
        tokens: Arc<[u32]>,
        first: usize,
        period: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let Some(kernels) = Kernels::of(&table, mode) else {
            return reference_forward::<Self>(table, base, &tokens, first, period);
        };
        let [rows, c] = table.shape().dims();
        let (table, base) = (contiguous(table), contiguous(base));
        let y = kernels.queue.empty([tokens.len(), c]);
        let ids = kernels.queue.upload(&tokens);
        let spec = spec(&FORWARD, c);
        let width = c / spec.pack() as usize;
        let packs = tokens.len() * width;
        kernels.queue.launch(
            spec,
            Workgroups::cover(packs, ELEMENTWISE),
            [&table.handle, &base.handle, &ids, &y.handle].map(|handle| handle.clone().binding()),
            &[packs, width, period, first, rows].map(|size| size as u32),
        );
        y
    }

    fn embed_backward(
        dy: FloatTensor<Self>,
        into: Optional<Self>,
        tokens: Arc<[u32]>,
        table: Range<usize>,
        period: usize,
        base_rows: usize,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let into = into.into_option();
        let Some(kernels) = Kernels::of(&dy, mode) else {
            return reference_backward::<Self>(dy, into, &tokens, table, period, base_rows);
        };
        let [n, c] = dy.shape().dims();
        let dy = contiguous(dy);
        let dtable = match into {
            Some(sum) => owned(sum),
            None => kernels.zeros([table.len(), c]),
        };
        let by_token = spec(&TOKENS, c);
        let width = c / by_token.pack() as usize;
        let Buckets { rows, starts, places } = Buckets::new(&tokens, &table);
        if !places.is_empty() {
            let first_start = rows.len();
            let first_place = first_start + starts.len();
            let buckets = places.len();
            let index = kernels.queue.upload(&[rows, starts, places].concat());
            kernels.queue.launch(
                by_token,
                Workgroups::cover(buckets * width, ELEMENTWISE),
                [&dy.handle, &index, &dtable.handle].map(|handle| handle.clone().binding()),
                &[buckets, width, first_start, first_place].map(|size| size as u32),
            );
        }
        if period == n && base_rows == n {
            return (dtable, dy);
        }
        let dbase = kernels.queue.empty([base_rows, c]);
        kernels.queue.launch(
            spec(&POSITIONS, c),
            Workgroups::cover(base_rows * width, ELEMENTWISE),
            [&dy, &dbase].map(|tensor| tensor.handle.clone().binding()),
            &[base_rows * width, period * width, n * width].map(|packs| packs as u32),
        );
        (dtable, dbase)
    }
}

#[cfg(test)]
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
