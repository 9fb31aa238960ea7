// Writes the sums of gemm_cooperative.wgsl with an epilogue. An invocation cannot read an element of a matrix,
// so each part goes through its own place in workgroup memory, one matrix after the other. LANES invocations
// write a part: where subgroups have one size, those of its subgroup, which wait for no others.

const LANES = WG / PARTS;

// Four more elements spread rows over the banks. Software renderers, whose DEPTH is 16, have none.
const SUM_STRIDE = SIDE + select(0u, 4u, DEPTH > 16u);

var<workgroup> staged_sums: array<sum_cell, PARTS * SIDE * SUM_STRIDE / CELL>;

// Stores matrix (i, j) of a part. Comparing the indices keeps the indices of the registers constant.
fn put(sums: ptr<function, Sums>, i: u32, j: u32, part: u32) {
    let to = part * SIDE * SUM_STRIDE / CELL;
    // unroll
    for (var r = 0u; r < ROW_MATRICES; r++) {
        // unroll
        for (var c = 0u; c < COLUMN_MATRICES; c++) {
            if (r == i && c == j) {
                coopStoreT((*sums)[r][c], &staged_sums[to], SUM_STRIDE / CELL);
            }
        }
    }
}

// Returns the pack at element `at` of the staged sums.
fn staged_pack(at: u32) -> pack {
    let cell = at / CELL;
    if (CELL == 4u) {
        return narrow(vec4<f32>(staged_sums[cell]), at % 4u);
    }
    if (VEC == 1u) {
        return narrow(vec4<f32>(staged_sums[cell]), 0u);
    }
    let x = vec4<f32>(staged_sums[cell]).x;
    let y = vec4<f32>(staged_sums[cell + 1u]).x;
    let z = vec4<f32>(staged_sums[cell + 2u]).x;
    return narrow(vec4<f32>(x, y, z, vec4<f32>(staged_sums[cell + 3u]).x), 0u);
}

// Waits for the invocations that exchange a part.
fn part_barrier() {
    if (SUBGROUPS == PARTS) {
        subgroup_barrier();
    } else {
        workgroupBarrier();
    }
}

// Writes the matrix of a part at (row, column) of the product over a range of k.
fn write_matrix(row: u32, column: u32, split: u32, part: u32, lane: u32) {
    for (var at = lane * VEC; at < SIDE * SIDE; at += LANES * VEC) {
        let i = at / SIDE;
        let j = at % SIDE;
        if (WHOLE || row + i < p.last_row && column + j < p.n) {
            let sums = staged_pack((part * SIDE + i) * SUM_STRIDE + j);
            write_result(split * p.m + row + i, column + j, sums);
        }
    }
}

// Writes the sums of the tile at (row, column), of the parts from first_part on that the workgroup's subgroups
// hold.
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
    let own = lane / LANES;
    let is_held = SUBGROUPS == PARTS || own >= first_part && own < first_part + subgroups;
    let own_row = row + own / COLUMN_PARTS * SIDE;
    let own_column = column + own % COLUMN_PARTS * SIDE;
    for (var i = 0u; i < ROW_MATRICES; i++) {
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            if (SUBGROUPS == PARTS || part < PARTS) {
                put(sums, i, j, part);
            }
            part_barrier();
            if (is_held) {
                let block_row = own_row + i * BLOCK_ROWS;
                let block_column = own_column + j * BLOCK_COLUMNS;
                write_matrix(block_row, block_column, split, own, lane % LANES);
            }
            part_barrier();
        }
    }
}
