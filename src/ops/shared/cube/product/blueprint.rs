//! How cubek multiplies: which instructions, in tiles of what size. docs/kernels.md has the reasons,
//! under "Products on CUDA".
//!
//! Without tensor cores there is one stage: two would make the kernels four times as long, and software
//! renderers, which test them, compile for minutes.

use burn_cubecl::cubecl::prelude::{Scalar, tf32};
use cubek::matmul::definition::{MatmulElems, MatmulProblem};
use cubek::matmul::multi_level::components::stage::PartitionBuffering;
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::definition::{BatchMatmulBlueprint, TilingScheme};
use cubek::matmul::multi_level::stage::{SwizzleMode, SwizzleModes};
use cubek::matmul::multi_level::{GlobalPartitionSize, PartitionSize, StageSize, TileSize};
use cubek::std::MatrixLayout;
use cubek::std::cube_count::{CubeCountStrategy, GlobalOrder, HypercubeBlueprint};

use crate::plan::products::Tile;

/// The kind of instruction that multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// `mma.sync` m16n8k16 of float16 or bfloat16: compute capability 8.0.
    Mma,
    /// `mma.sync` m16n8k8 of tf32: compute capability 8.0.
    MmaTf32,
    /// `wmma` m16n16k16 of float16: compute capability 7.0.
    Wmma,
    /// Multiply-adds of single invocations.
    Scalar,
}

impl Instruction {
    /// Returns the sizes from a table: the tile of one instruction, the tiles of a subgroup (of an invocation
    /// without tensor cores), and the subgroups of a workgroup; each `(m, n, k)`. Two stages of the
    /// large tile take 32 KiB of workgroup memory (one without tensor cores 8 KiB, and the output
    /// 16), so that every generation holds two workgroups at once.
    fn scheme(self, tile: Tile) -> TilingScheme {
        type Sizes = (u32, u32, u32);
        let large = tile == Tile::Large;
        let (instruction, partition, stage): (Sizes, Sizes, Sizes) = match (self, large) {
            (Instruction::Mma, true) => ((16, 8, 16), (2, 8, 2), (4, 2, 1)),
            (Instruction::Mma, false) => ((16, 8, 16), (2, 4, 2), (2, 2, 1)),
            // Elements take twice the bytes, so a stage has half of k.
            (Instruction::MmaTf32, true) => ((16, 8, 8), (2, 8, 2), (4, 2, 1)),
            (Instruction::MmaTf32, false) => ((16, 8, 8), (2, 4, 2), (2, 2, 1)),
            (Instruction::Wmma, true) => ((16, 16, 16), (2, 4, 2), (4, 2, 1)),
            (Instruction::Wmma, false) => ((16, 16, 16), (2, 2, 2), (2, 2, 1)),
            // 8 x 8 outputs for each of 256 or 64 invocations.
            (Instruction::Scalar, true) => ((4, 4, 4), (2, 2, 2), (16, 16, 1)),
            (Instruction::Scalar, false) => ((4, 4, 4), (2, 2, 2), (8, 8, 1)),
        };
        TilingScheme {
            tile_size: TileSize::from(instruction),
            partition_size: PartitionSize::from(partition),
            stage_size: StageSize::from(stage),
            global_partition_size: GlobalPartitionSize::new(1, 1, 1),
        }
    }

    /// Returns the stages in workgroup memory at once.
    fn stages(self) -> u32 {
        if self == Instruction::Scalar { 1 } else { 2 }
    }

    /// How 16 bytes of a stage change places, so that a subgroup's reads of a tile meet different
    /// banks. cubek stores tile after tile; the rows of most have 32 bytes, and reads across rows take
    /// 16 of them: every fourth row would meet the same banks. Other tiles are read by whole rows.
    fn swizzle(self, lhs: MatrixLayout, rhs: MatrixLayout) -> SwizzleModes {
        use MatrixLayout::{ColMajor, RowMajor};
        let or_none = |swizzled| if swizzled { SwizzleMode::B32 } else { SwizzleMode::None };
        let along_k = |along_k| if along_k { SwizzleMode::B32 } else { SwizzleMode::B128 };
        let (lhs, rhs) = match self {
            Instruction::Mma => (SwizzleMode::B32, or_none(rhs == ColMajor)),
            Instruction::MmaTf32 => (or_none(lhs == RowMajor), or_none(rhs == ColMajor)),
            // `wmma` reads no swizzled matrix.
            Instruction::Wmma => (SwizzleMode::None, SwizzleMode::None),
            // As cubek infers it: by the bytes of the stage that are contiguous.
            Instruction::Scalar => (along_k(lhs == RowMajor), along_k(rhs == ColMajor)),
        };
        SwizzleModes { lhs, rhs, ..SwizzleModes::default() }
    }

    /// Returns the blueprint of a product for subgroups of `plane` invocations.
    pub fn blueprint(
        self,
        tile: Tile,
        problem: &MatmulProblem,
        plane: u32,
        aligned: bool,
    ) -> BatchMatmulBlueprint {
        // Workgroups that run at once share factors through the cache if they are neighbours both
        // ways: they take strips of up to eight rows of tiles.
        let rows = problem.m.div_ceil(tile.side()) as u32;
        let strip = [8, 4, 2].into_iter().find(|strip| rows.is_multiple_of(*strip)).unwrap_or(1);
        let order = HypercubeBlueprint::builder()
            .global_order(GlobalOrder::SwizzleRow(strip).canonicalize())
            .cube_count_strategy(CubeCountStrategy::Flattened)
            .build();
        // While a tile of the right factor is multiplied, the next one is read.
        let (kind, buffering) = match self {
            Instruction::Mma | Instruction::MmaTf32 => {
                (TileMatmulKind::Mma, PartitionBuffering::Double)
            }
            Instruction::Wmma => (TileMatmulKind::Cmma, PartitionBuffering::Double),
            Instruction::Scalar => (TileMatmulKind::Register, PartitionBuffering::Single),
        };
        let swizzle = if aligned {
            self.swizzle(problem.lhs_layout, problem.rhs_layout)
        } else {
            SwizzleModes::default()
        };
        BatchMatmulBlueprint::builder(kind, self.scheme(tile), plane, problem)
            .stage_buffering(self.stages())
            .partition_buffering(buffering)
            .shared_swizzle(swizzle)
            .hypercube_blueprint(order)
            .build()
    }

    /// Returns the dtypes in device memory, in stages and in registers.
    pub fn elements(self, problem: &MatmulProblem) -> MatmulElems {
        let mut elems = MatmulElems::from_globals(&problem.global_dtypes);
        match self {
            // Sums are staged on their way to the output in its dtype.
            Instruction::Mma => elems.adjust_stage_dtypes(),
            // Rounded once, on their way to a stage.
            Instruction::MmaTf32 => {
                elems.adjust_stage_dtypes();
                let tf32 = tf32::elem_type_native();
                elems.lhs_stage = tf32;
                elems.rhs_stage = tf32;
                elems.lhs_register = tf32;
                elems.rhs_register = tf32;
            }
            Instruction::Wmma | Instruction::Scalar => {}
        }
        elems
    }
}

#[cfg(test)]
mod tests;
