// Products of attention on cooperative matrices, f16 with sums in f32. A subgroup owns a strip of
// STRIP of the workgroup's rows, and keeps the strip's factors and sums in registers. The rows of
// the other side are staged for all subgroups. An invocation cannot read an element of a matrix, so
// scores and probabilities go through workgroup memory, [COLUMNS, ROWS], where each invocation of
// the grid has its block.
//
// The size of subgroups may be the driver's choice. With fewer than STRIPS of them in a workgroup, it
// takes its strips in rounds; with more, some only stage. Needs matrices8.wgsl or matrices16.wgsl,
// attention_grid.wgsl.

const Y_STEP = 4u;
const ROW_STEP = 1u;
const STRIP = 16u;
const STRIPS = ROWS / STRIP;
// The size of a head, filled up with zeros to HEAD_MATRICES matrices. A strip has ROW_MATRICES
// matrices of rows, and COLUMNS take COLUMN_MATRICES. Sums leave their registers in CHUNKS of
// COLUMNS columns.
const WIDTH = HEAD_MATRICES * SIDE;
// Matrices are loaded with one stride, so rows cannot be swizzled. Another 16 bytes spread
// neighbouring rows over the banks.
const STAGED_STRIDE = WIDTH + 8u;
const SCORE_STRIDE = ROWS + 4u;
const FACTOR_STRIDE = ROWS + 8u;

// The strip's rows of a part, as left factors of products over the head.
alias Rows = array<array<Left, HEAD_MATRICES>, ROW_MATRICES>;
// The strip's rows of a sum.
alias Sums = array<array<Sum, HEAD_MATRICES>, ROW_MATRICES>;

// COLUMNS rows of each of two parts. Before the loop, the workgroup's own rows of one part.
var<workgroup> staged: array<half_cell, 2u * COLUMNS * STAGED_STRIDE / CELL>;
var<workgroup> scores: array<sum_cell, COLUMNS * SCORE_STRIDE / CELL>;
var<workgroup> factors: array<half_cell, COLUMNS * FACTOR_STRIDE / CELL>;
// The final factor of each of the workgroup's rows of a sum.
var<workgroup> row_factors: array<f32, ROWS>;

fn cell_of(lane: u32) -> vec2<u32> {
    return vec2<u32>(lane / 16u, lane % 16u);
}

// Returns four elements of `scores`; `at` is a multiple of four.
fn scores4(at: u32) -> vec4<f32> {
    let i = at / CELL;
    if (CELL == 4u) {
        return vec4<f32>(scores[i]);
    }
    return vec4<f32>(
        vec4<f32>(scores[i]).x,
        vec4<f32>(scores[i + 1u]).x,
        vec4<f32>(scores[i + 2u]).x,
        vec4<f32>(scores[i + 3u]).x,
    );
}

fn set_scores4(at: u32, value: vec4<f32>) {
    for (var i = 0u; i < 4u / CELL; i++) {
        scores[at / CELL + i] = sum_cell_of(value, i);
    }
}

// The grid shows vectors in the memory of the scores.
fn show(i: u32, value: vec4<f32>) {
    set_scores4(4u * i, value);
}

fn shown(i: u32) -> vec4<f32> {
    return scores4(4u * i);
}

// Returns the place of an invocation's rows of a column of `scores`.
fn block_at(cell: vec2<u32>, j: u32) -> u32 {
    return (cell.x + j * LANES) * SCORE_STRIDE + Y_STEP * cell.y;
}

// Returns an invocation's block of `scores`.
fn scores_of(cell: vec2<u32>) -> Block {
    var block = Block();
    // unroll
    for (var j = 0u; j < PER; j++) {
        block[j] = scores4(block_at(cell, j));
    }
    return block;
}

// Writes an invocation's block of `factors`, rounded to f16.
fn set_factors(values: Block, cell: vec2<u32>) {
    var block = values;
    // unroll
    for (var j = 0u; j < PER; j++) {
        let at = (cell.x + j * LANES) * FACTOR_STRIDE + Y_STEP * cell.y;
        for (var i = 0u; i < 4u / CELL; i++) {
            factors[at / CELL + i] = half_cell_of(vec4<f16>(block[j]), i);
        }
    }
}

// Stages `count` rows of a part, from staged row `to` on.
fn stage(pair: Pair, part: u32, first: u32, to: u32, count: u32, lane: u32) {
    for (var i = lane; i < count * WIDTH / 4u; i += WG) {
        let row = i / (WIDTH / 4u);
        let d = i % (WIDTH / 4u);
        let value = vec4<f16>(row4(pair, part, first + row, d));
        let at = ((to + row) * STAGED_STRIDE + 4u * d) / CELL;
        for (var j = 0u; j < 4u / CELL; j++) {
            staged[at + j] = half_cell_of(value, j);
        }
    }
}

// Loads a strip of the workgroup's staged rows.
fn load_rows(rows: ptr<function, Rows>, strip: u32) {
    // unroll
    for (var i = 0u; i < ROW_MATRICES; i++) {
        // unroll
        for (var d = 0u; d < HEAD_MATRICES; d++) {
            let at = (strip * STRIP + i * SIDE) * STAGED_STRIDE + d * SIDE;
            (*rows)[i][d] = coopLoadT<Left>(&staged[at / CELL], STAGED_STRIDE / CELL);
        }
    }
}

// Writes to `scores` the products of a strip with COLUMNS staged rows over the head.
fn multiply(rows: ptr<function, Rows>, first: u32, strip: u32) {
    for (var n = 0u; n < COLUMNS; n += SIDE) {
        var sums = array<Sum, ROW_MATRICES>();
        // unroll
        for (var d = 0u; d < HEAD_MATRICES; d++) {
            let at = (first + n) * STAGED_STRIDE + d * SIDE;
            let right = coopLoad<Right>(&staged[at / CELL], STAGED_STRIDE / CELL);
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                sums[i] = coopMultiplyAdd((*rows)[i][d], right, sums[i]);
            }
        }
        // unroll
        for (var i = 0u; i < ROW_MATRICES; i++) {
            let to = n * SCORE_STRIDE + strip * STRIP + i * SIDE;
            coopStore(sums[i], &scores[to / CELL], SCORE_STRIDE / CELL);
        }
    }
}

// Adds to a strip of sums the products of its `factors` with COLUMNS staged rows.
fn accumulate(sums: ptr<function, Sums>, first: u32, strip: u32) {
    for (var n = 0u; n < COLUMNS; n += SIDE) {
        var left = array<Left, ROW_MATRICES>();
        // unroll
        for (var i = 0u; i < ROW_MATRICES; i++) {
            let at = n * FACTOR_STRIDE + strip * STRIP + i * SIDE;
            left[i] = coopLoad<Left>(&factors[at / CELL], FACTOR_STRIDE / CELL);
        }
        // unroll
        for (var d = 0u; d < HEAD_MATRICES; d++) {
            let at = (first + n) * STAGED_STRIDE + d * SIDE;
            let right = coopLoadT<Right>(&staged[at / CELL], STAGED_STRIDE / CELL);
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                (*sums)[i][d] = coopMultiplyAdd(left[i], right, (*sums)[i][d]);
            }
        }
    }
}

// Returns true if this round computes a row.
fn in_round(row: u32, first_strip: u32, subgroups: u32) -> bool {
    return row / STRIP >= first_strip && row / STRIP < first_strip + subgroups;
}

// Writes a chunk of a strip of sums to `scores`, [ROWS, COLUMNS]. Comparing the indices keeps the
// indices of the registers constant.
fn put_chunk(sums: ptr<function, Sums>, chunk: u32, strip: u32) {
    // unroll
    for (var d = 0u; d < HEAD_MATRICES; d++) {
        if (d / COLUMN_MATRICES == chunk) {
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                let to = (strip * STRIP + i * SIDE) * COLUMNS + d % COLUMN_MATRICES * SIDE;
                coopStoreT((*sums)[i][d], &scores[to / CELL], COLUMNS / CELL);
            }
        }
    }
}

// Writes the rows of this round's sums, each times its row_factors, as a part.
fn store_sums(
    sums: ptr<function, Sums>,
    pair: Pair,
    part: u32,
    first: u32,
    strip: u32,
    first_strip: u32,
    subgroups: u32,
    lane: u32,
) {
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        workgroupBarrier();
        if (strip < STRIPS) {
            put_chunk(sums, chunk, strip);
        }
        workgroupBarrier();
        for (var i = lane; i < ROWS * COLUMNS / 4u; i += WG) {
            let row = i / (COLUMNS / 4u);
            let d = i % (COLUMNS / 4u);
            if (in_round(row, first_strip, subgroups)) {
                let value = scores4(row * COLUMNS + 4u * d) * row_factors[row];
                store4(pair, part, first + row, chunk * COLUMNS / 4u + d, value);
            }
        }
    }
}
