//! How the invocations of a workgroup share the rows of a matrix.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use crate::gpu::queue::{Queue, Workgroups};

/// Invocations in a workgroup of kernels on rows: 8 subgroups of CUDA.
pub(in crate::ops) const UNITS: usize = 256;

/// The elements of a row that an invocation keeps in registers, if the row is not too long.
pub(in crate::ops) const ELEMENTS: usize = 32;

/// Vectors of a row below which loops over them are written out, as registers need constant indices.
const UNROLLED: usize = 8;

/// The compile-time parameters of a kernel that reads rows in vectors. A row belongs to a team: neighbouring
/// invocations, each of them with every `team`-th vector. Teams of one subgroup add up a row by shuffles,
/// without barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) struct RowLayout {
    /// Vectors in a row.
    pub vectors: usize,
    /// Invocations of a team, a power of two.
    pub team: usize,
    /// Invocations that exchange values by shuffles: a subgroup or 1, at most a team.
    lanes: usize,
}

impl RowLayout {
    /// Returns the layout of rows of `width` elements in vectors of `vector` elements.
    pub fn new(queue: &Queue, width: usize, vector: usize) -> Self {
        Self::on(queue.subgroup(), width, vector, ELEMENTS)
    }

    /// Returns the layout where subgroups have `subgroup` invocations and an invocation has registers for
    /// `elements` of a row.
    pub fn on(subgroup: Option<u32>, width: usize, vector: usize, elements: usize) -> Self {
        let lanes = subgroup.map_or(1, |lanes| lanes as usize);
        let lanes = if lanes.is_power_of_two() && lanes <= UNITS { lanes } else { 1 };
        // Without shuffles, each invocation reads the sums of the whole team.
        let least = if lanes == 1 { 32 } else { lanes };
        let team = width.div_ceil(elements).next_power_of_two().clamp(least, UNITS);
        Self { vectors: width / vector, team, lanes }
    }

    /// Returns the teams of a workgroup.
    pub fn teams(self) -> usize {
        UNITS / self.team
    }

    /// Returns the vectors of a row that an invocation has.
    pub fn own(self) -> usize {
        self.vectors.div_ceil(self.team)
    }

    pub fn unrolls(self) -> bool {
        self.own() <= UNROLLED
    }

    fn is_ragged(self) -> bool {
        !self.vectors.is_multiple_of(self.team)
    }

    /// Returns a grid with a team for each of `rows`.
    pub fn team_each(self, rows: usize) -> (CubeCount, CubeDim) {
        self.workgroup_each(rows.div_ceil(self.teams()))
    }

    /// Returns a grid with a workgroup for each of `groups`.
    pub fn workgroup_each(self, groups: usize) -> (CubeCount, CubeDim) {
        (Workgroups::Line(groups).count(), CubeDim::new_1d(UNITS as u32))
    }
}

/// Returns the number of the invocation's team in its workgroup.
#[cube]
pub(in crate::ops) fn team_index(#[comptime] layout: RowLayout) -> usize {
    UNIT_POS as usize / comptime!(layout.team)
}

/// Returns the number of the invocation in its team.
#[cube]
pub(in crate::ops) fn team_lane(#[comptime] layout: RowLayout) -> usize {
    UNIT_POS as usize % comptime!(layout.team)
}

/// Returns true if the row has a vector `column`.
#[cube]
pub(in crate::ops) fn in_row(column: usize, #[comptime] layout: RowLayout) -> bool {
    if comptime!(layout.is_ragged()) { column < comptime!(layout.vectors) } else { true.runtime() }
}

/// Replaces each of the first `count` numbers by its sum over the team, in a fixed order, with the same
/// bits in all invocations. The whole workgroup has to call it.
#[cube]
pub(in crate::ops) fn team_sums(
    own: &mut Array<f32>,
    #[comptime] count: usize,
    #[comptime] layout: RowLayout,
) {
    let lanes = comptime!(layout.lanes);
    #[unroll]
    for k in 0..count {
        #[unroll]
        for i in 0..comptime!(lanes.ilog2()) {
            let sum = own[k];
            own[k] = sum + plane_shuffle_xor(sum, comptime!(1u32 << i));
        }
    }
    let parts = comptime!(layout.team / lanes);
    if comptime!(parts > 1) {
        let planes = comptime!(UNITS / lanes);
        let plane = UNIT_POS as usize / lanes;
        let lane = UNIT_POS as usize % lanes;
        let mut shared = Shared::<[f32]>::new_slice(comptime!(count * planes));
        if lane == 0 {
            #[unroll]
            for k in 0..count {
                shared[k * planes + plane] = own[k];
            }
        }
        sync_cube();
        let first = plane / parts * parts;
        #[unroll]
        for k in 0..count {
            let mut sum = shared[k * planes + first];
            for part in 1..parts {
                sum += shared[k * planes + first + part];
            }
            own[k] = sum;
        }
        // The next sums may get the same memory.
        sync_cube();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_belongs_to_as_few_subgroups_as_keep_it_in_registers() {
        let layout = |subgroup, width, vector| {
            let layout = RowLayout::on(subgroup, width, vector, ELEMENTS);
            (layout.team, layout.own(), layout.teams(), layout.is_ragged())
        };
        // CUDA: a subgroup for a row of GPT-2, two for a row of GPT-2 XL.
        assert_eq!(layout(Some(32), 768, 8), (32, 3, 8, false));
        assert_eq!(layout(Some(32), 1024, 8), (32, 4, 8, false));
        assert_eq!(layout(Some(32), 1600, 8), (64, 4, 4, true));
        assert_eq!(layout(Some(32), 4096, 4), (128, 8, 2, false));
        assert_eq!(layout(Some(32), 65, 1), (32, 3, 8, true));
        // A row that is too long for a workgroup's registers.
        assert_eq!(layout(Some(32), 16_384, 8), (256, 8, 1, false));
        // Software renderers have subgroups of 4 or 8.
        assert_eq!(layout(Some(8), 128, 4), (8, 4, 32, false));
        assert_eq!(layout(Some(8), 768, 4), (32, 6, 8, false));
        // Without subgroups of one size.
        assert_eq!(layout(None, 768, 4), (32, 6, 8, false));
        assert_eq!(layout(None, 5, 1), (32, 1, 8, true));
    }
}
