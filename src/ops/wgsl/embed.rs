//! Token and position embedding.

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
    tokens: Vec<u32>,
}

impl Buckets {
    fn new(tokens: &[u32]) -> Self {
        let mut rows: Vec<u32> = (0..tokens.len() as u32).collect();
        rows.sort_by_key(|&row| tokens[row as usize]);
        let (mut starts, mut ids) = (Vec::new(), Vec::new());
        for (at, &row) in rows.iter().enumerate() {
            let token = tokens[row as usize];
            if ids.last() != Some(&token) {
                starts.push(at as u32);
                ids.push(token);
            }
        }
        starts.push(rows.len() as u32);
        Self { rows, starts, tokens: ids }
    }
}

impl Embed for CubeBackend {
    fn embed(
        wte: FloatTensor<Self>,
        wpe: FloatTensor<Self>,
        tokens: Arc<[u32]>,
        time: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let Some(kernels) = Kernels::of(&wte, mode) else {
            return reference_forward::<Self>(wte, wpe, &tokens, time);
        };
        let [_, c] = wte.shape().dims();
        let (wte, wpe) = (contiguous(wte), contiguous(wpe));
        let y = kernels.queue.empty([tokens.len(), c]);
        let ids = kernels.queue.upload(&tokens);
        let spec = spec(&FORWARD, c);
        let width = c / spec.pack() as usize;
        let packs = tokens.len() * width;
        kernels.queue.launch(
            spec,
            Workgroups::cover(packs, ELEMENTWISE),
            [&wte.handle, &wpe.handle, &ids, &y.handle].map(|handle| handle.clone().binding()),
            &[packs as u32, width as u32, time as u32],
        );
        y
    }

    fn embed_backward(
        dy: FloatTensor<Self>,
        into: Optional<Self>,
        tokens: Arc<[u32]>,
        time: usize,
        vocab: usize,
        block: usize,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let Some(kernels) = Kernels::of(&dy, mode) else {
            return reference_backward::<Self>(dy, into.into_option(), &tokens, time, vocab, block);
        };
        let [n, c] = dy.shape().dims();
        let dy = contiguous(dy);
        let dwte = match into.into_option() {
            Some(sum) => owned(sum),
            None => kernels.zeros([vocab, c]),
        };
        let Buckets { rows, starts, tokens } = Buckets::new(&tokens);
        let first_start = rows.len();
        let first_token = first_start + starts.len();
        let buckets = tokens.len();
        let index = kernels.queue.upload(&[rows, starts, tokens].concat());
        let by_token = spec(&TOKENS, c);
        let width = c / by_token.pack() as usize;
        kernels.queue.launch(
            by_token,
            Workgroups::cover(buckets * width, ELEMENTWISE),
            [&dy.handle, &index, &dwte.handle].map(|handle| handle.clone().binding()),
            &[buckets, width, first_start, first_token].map(|size| size as u32),
        );
        let dwpe = kernels.queue.empty([block, c]);
        kernels.queue.launch(
            spec(&POSITIONS, c),
            Workgroups::cover(block * width, ELEMENTWISE),
            [&dy, &dwpe].map(|tensor| tensor.handle.clone().binding()),
            &[block * width, time * width, n * width].map(|packs| packs as u32),
        );
        (dwte, dwpe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_the_rows_of_each_token_in_order() {
        let Buckets { rows, starts, tokens } = Buckets::new(&[7, 2, 7, 7, 0, 2]);
        assert_eq!(tokens, [0, 2, 7]);
        assert_eq!(starts, [0, 1, 3, 6]);
        assert_eq!(rows, [4, 1, 5, 0, 2, 3]);
    }
}
