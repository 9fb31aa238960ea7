//! The memory of ops in addition to their results, which depends on the kernels and the precision.

use crate::config::Precision;
use crate::plan::products::{Tiling, ranges_of_k};
use crate::plan::{Class, Kernels, NORM_GROUPS, Row};

#[derive(Clone, Copy)]
pub(super) struct OpMemory {
    pub kernels: Kernels,
    pub precision: Precision,
}

impl OpMemory {
    pub fn are_cpu(self) -> bool {
        self.kernels == Kernels::Cpu
    }

    /// Returns true if products are not fused with the ops around them, which then write tensors.
    pub fn are_unfused(self) -> bool {
        self.kernels == Kernels::Cube
    }

    /// A row of elements in the dtype of activations.
    pub fn row(self, name: &str, class: Class, elements: u64) -> Row {
        Row::new(name, class, elements.saturating_mul(self.precision.activation_bytes()))
    }

    /// Counts the elements of the partial sums for the weights of a layer norm of `n` rows, over groups of
    /// rows.
    pub fn norm_sums(self, n: u64, width: u64) -> u64 {
        let groups =
            if self.are_cpu() { 1 } else { n.div_ceil(n.div_ceil(NORM_GROUPS as u64).max(1)) };
        2 * groups * width
    }

    /// The partial products of the largest of several products `[m, n, k]`: `ops` splits k into ranges
    /// where few tiles would leave a GPU idle. CUDA counts its multiprocessors, which the plan does not
    /// know, so it may take up to 24 MiB more or less.
    pub fn partial_products(self, sizes: &[[u64; 3]]) -> Row {
        let elements = |&[m, n, k]: &[u64; 3]| {
            let ranges = match self.precision.matrices() {
                _ if self.are_unfused() => {
                    Tiling::of([m, n, k].map(|size| size as usize), None).ranges as u64
                }
                Some(matrices) => {
                    let side = 4 * u64::from(matrices.side());
                    let tiles = m.div_ceil(side) * n.div_ceil(side);
                    ranges_of_k(tiles as usize, k as usize) as u64
                }
                None => 1,
            };
            if ranges > 1 { ranges * m * n } else { 0 }
        };
        let most = sizes.iter().map(elements).max().unwrap_or(0);
        Row::f32("partial products", Class::Workspace, most)
    }
}
