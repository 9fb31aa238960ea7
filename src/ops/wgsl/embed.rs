//! Token and position embedding.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{ELEMENTWISE, Kernels, contiguous, owned, zeros};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::embed::Buckets;

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

impl Kernels {
    pub fn embed(
        &self,
        table: CubeTensor,
        base: CubeTensor,
        tokens: Arc<[u32]>,
        first: usize,
        period: usize,
    ) -> CubeTensor {
        let [rows, c] = table.shape().dims();
        let (table, base) = (contiguous(table), contiguous(base));
        let y = self.queue.empty([tokens.len(), c]);
        let ids = self.queue.upload(&tokens);
        let spec = spec(&FORWARD, c);
        let width = c / spec.pack() as usize;
        let packs = tokens.len() * width;
        self.queue.launch(
            spec,
            Workgroups::cover(packs, ELEMENTWISE),
            [&table.handle, &base.handle, &ids, &y.handle].map(|handle| handle.clone().binding()),
            &[packs, width, period, first, rows].map(|size| size as u32),
        );
        y
    }

    pub fn embed_backward(
        &self,
        dy: CubeTensor,
        into: Option<CubeTensor>,
        tokens: Arc<[u32]>,
        table: Range<usize>,
        period: usize,
        base_rows: usize,
    ) -> (CubeTensor, CubeTensor) {
        let [n, c] = dy.shape().dims();
        let dy = contiguous(dy);
        let dtable = match into {
            Some(sum) => owned(sum),
            None => zeros(&self.queue, [table.len(), c]),
        };
        let by_token = spec(&TOKENS, c);
        let width = c / by_token.pack() as usize;
        let Buckets { rows, starts, places } = Buckets::new(&tokens, &table);
        if !places.is_empty() {
            let first_start = rows.len();
            let first_place = first_start + starts.len();
            let buckets = places.len();
            let index = self.queue.upload(&[rows, starts, places].concat());
            self.queue.launch(
                by_token,
                Workgroups::cover(buckets * width, ELEMENTWISE),
                [&dy.handle, &index, &dtable.handle].map(|handle| handle.clone().binding()),
                &[buckets, width, first_start, first_place].map(|size| size as u32),
            );
        }
        if period == n && base_rows == n {
            return (dtable, dy);
        }
        let dbase = self.queue.empty([base_rows, c]);
        self.queue.launch(
            spec(&POSITIONS, c),
            Workgroups::cover(base_rows * width, ELEMENTWISE),
            [&dy, &dbase].map(|tensor| tensor.handle.clone().binding()),
            &[base_rows * width, period * width, n * width].map(|packs| packs as u32),
        );
        (dtable, dbase)
    }
}
