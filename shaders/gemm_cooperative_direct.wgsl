// Writes the sums of gemm_cooperative.wgsl from their registers, if out is f32, all tiles are whole, and nothing
// is fused except adding to out.

// Writes the matrices of a part to out, from (row, column) on.
fn write_part(sums: ptr<function, Sums>, row: u32, column: u32) {
    let stride = p.out_stride / VEC;
    // unroll
    for (var i = 0u; i < ROW_MATRICES; i++) {
        // unroll
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            let start = (row + i * BLOCK_ROWS) * p.out_stride + column + j * BLOCK_COLUMNS;
            let at = (p.out_offset + start) / VEC;
            var sum = (*sums)[i][j];
            if (ACCUMULATE) {
                let before = coopLoadT<Sum>(&out[at], stride);
                sum = sum + before;
            }
            coopStoreT(sum, &out[at], stride);
        }
    }
}

// Writes the sums of the tile at (row, column) of the product over a range of k. A subgroup writes the part that
// it holds.
fn write_sums(
    sums: ptr<function, Sums>,
    row: u32,
    column: u32,
    split: u32,
    first_part: u32,
    part: u32,
    subgroups: u32,
    lane: u32,
) {
    if (SUBGROUPS == PARTS || part < PARTS) {
        let own_row = split * p.m + row + part / COLUMN_PARTS * SIDE;
        write_part(sums, own_row, column + part % COLUMN_PARTS * SIDE);
    }
    // Never true. wgpt binds the buffers of the epilogue, and a kernel's layout has those that its source uses.
    if (PARTS == 0u) {
        write_result(row, column, pack());
    }
}
