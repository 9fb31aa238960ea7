use std::ops::Range;

use burn::backend::TensorMetadata;

use super::{CpuTensor, contiguous, from_values, math, values, values_mut};

/// Sums the rows of `dy` into their token's row of `into`, which holds the tokens `table`, and into
/// the base's row, in order.
pub(in crate::ops) fn backward(
    dy: &CpuTensor,
    into: Option<CpuTensor>,
    tokens: &[u32],
    table: Range<usize>,
    period: usize,
    base_rows: usize,
) -> (CpuTensor, CpuTensor) {
    let [_, c] = dy.shape().dims();
    let dy = contiguous(dy.clone());
    let zeros = || from_values(vec![0.0; table.len() * c], [table.len(), c].into());
    let mut dtable = into.map_or_else(zeros, contiguous);
    let sums = values_mut(&mut dtable);
    let mut dbase = vec![0.0f32; base_rows * c];
    for (row, (dy, &token)) in values(&dy).chunks(c).zip(tokens).enumerate() {
        if table.contains(&(token as usize)) {
            let at = token as usize - table.start;
            math::axpy(&mut sums[at * c..(at + 1) * c], 1.0, dy);
        }
        let position = row % period;
        math::axpy(&mut dbase[position * c..(position + 1) * c], 1.0, dy);
    }
    (dtable, from_values(dbase, [base_rows, c].into()))
}
