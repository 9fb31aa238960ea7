// Products of attention in f32. A workgroup owns ROWS positions and takes COLUMNS of the other side at
// a time. It is a grid of LANES x 16 invocations; (x, y) has a block of four rows, y + ROW_STEP * i, and
// columns x + LANES * j, j < PER. The 16 KiB of workgroup memory hold the factors of one product at a
// time: over the head, then over COLUMNS. Needs dropout_mask.wgsl, attention_heads.wgsl.

const ROWS = 64u;
const COLUMNS = 32u;
const ROW_STEP = 16u;
// An invocation owns vectors x + LANES * j, j < BLOCKS, of a row of the head. DEPTH4 vectors of a
// row are staged at a time for a product over the head.
const DEPTH4 = 8u;
// The start of the other side's rows for a product over COLUMNS, behind a factor for each pair of a
// row and a column.
const STAGED = ROWS * COLUMNS / 4u;
// The start of the vectors that the grid shows, behind the factors of a product over the head.
const SHOWN = (ROWS + COLUMNS) * DEPTH4;

// A vector of four rows for each column.
alias Block = array<vec4<f32>, PER>;
// Four of the invocation's rows of a sum, in the columns of its vectors. Matrix column i is row i.
alias Sums = array<mat4x4<f32>, BLOCKS>;

var<workgroup> tile: array<vec4<f32>, 1024>;

// Neighbouring pairs share x and alternate in y, as in gemm_staged.wgsl.
fn cell_of(lane: u32) -> vec2<u32> {
    return vec2<u32>(lane / 2u % LANES, lane / (2u * LANES) * 2u + lane % 2u);
}

// Returns the positions of an invocation's rows in the workgroup's rows that begin at `first`.
fn rows_from(first: u32, cell: vec2<u32>) -> vec4<u32> {
    return first + cell.y + ROW_STEP * vec4<u32>(0u, 1u, 2u, 3u);
}

// Shows an invocation's vector to the invocations of the same y.
fn exchange(value: vec4<f32>, cell: vec2<u32>) {
    tile[SHOWN + cell.y * LANES + cell.x] = value;
    workgroupBarrier();
}

// Returns vector i of the invocations of the same y, which all see the vectors in the same order.
// Each y begins with a different vector, in a different memory bank.
fn exchanged(i: u32, cell: vec2<u32>) -> vec4<f32> {
    return tile[SHOWN + cell.y * LANES + (i + cell.y) % LANES];
}

// Returns the maxima over the invocations of the same y. Needs a barrier before the memory of the
// exchange is written again.
fn row_maxima(value: vec4<f32>, cell: vec2<u32>) -> vec4<f32> {
    exchange(value, cell);
    var largest = value;
    for (var i = 0u; i < LANES; i++) {
        largest = max(largest, exchanged(i, cell));
    }
    return largest;
}

// Returns the sums over the invocations of the same y, with the same barriers as row_maxima.
fn row_sums(value: vec4<f32>, cell: vec2<u32>) -> vec4<f32> {
    exchange(value, cell);
    var sum = vec4<f32>();
    for (var i = 0u; i < LANES; i++) {
        sum += exchanged(i, cell);
    }
    return sum;
}

// Returns the place of vector d of a staged row. The exclusive or spreads neighbouring rows over
// the memory banks.
fn staged_at(row: u32, d: u32) -> u32 {
    return row * DEPTH4 + (d ^ (row % DEPTH4));
}

// Returns the place of the factors of four rows at a column. The exclusive or puts neighbouring
// columns into different banks.
fn factors_at(column: u32, y: u32) -> u32 {
    return column * 16u + (y ^ (column % 8u));
}

// Returns the products, over the head, of the invocation's rows of one part with rows of another.
fn products(
    pair: Pair,
    left: u32,
    first_row: u32,
    right: u32,
    first_column: u32,
    lane: u32,
) -> Block {
    let cell = cell_of(lane);
    // This is initialised explicitly, like all variables within loops, because SwiftShader under
    // Chromium would keep the values of the previous iteration.
    var sums = Block();
    for (var depth = 0u; depth < SIZE4; depth += DEPTH4) {
        // All vectors are loaded before the first is stored, since each store waits for its load. WG divides
        // the number of both parts' vectors.
        var vectors = array<vec4<f32>, LOADS>();
        // unroll
        for (var i = 0u; i < LOADS; i++) {
            let row = (i * WG + lane) / DEPTH4;
            let d = depth + lane % DEPTH4;
            if (i * WG < ROWS * DEPTH4) {
                vectors[i] = row4(pair, left, first_row + row, d);
            } else {
                vectors[i] = row4(pair, right, first_column + row - ROWS, d);
            }
        }
        workgroupBarrier();
        // unroll
        for (var i = 0u; i < LOADS; i++) {
            tile[staged_at((i * WG + lane) / DEPTH4, lane % DEPTH4)] = vectors[i];
        }
        workgroupBarrier();
        let steps = min(DEPTH4, SIZE4 - depth);
        for (var d = 0u; d < steps; d++) {
            let row_at = staged_at(cell.y, d);
            let rows = transpose(mat4x4<f32>(
                tile[row_at],
                tile[row_at + ROW_STEP * DEPTH4],
                tile[row_at + 2u * ROW_STEP * DEPTH4],
                tile[row_at + 3u * ROW_STEP * DEPTH4],
            ));
            let column_at = staged_at(ROWS + cell.x, d);
            // unroll
            for (var j = 0u; j < PER; j++) {
                let column = tile[column_at + j * LANES * DEPTH4];
                sums[j] += rows[0] * column.x;
                sums[j] += rows[1] * column.y;
                sums[j] += rows[2] * column.z;
                sums[j] += rows[3] * column.w;
            }
        }
    }
    return sums;
}

// Adds to the invocation's rows the sum over COLUMNS positions of `block` times a part's rows.
fn accumulate(
    sums: ptr<function, Sums>,
    block: Block,
    pair: Pair,
    part: u32,
    first: u32,
    lane: u32,
) {
    let cell = cell_of(lane);
    var factors = block;
    workgroupBarrier();
    // unroll
    for (var j = 0u; j < PER; j++) {
        tile[factors_at(cell.x + j * LANES, cell.y)] = factors[j];
    }
    for (var begin = 0u; begin < COLUMNS; begin += STAGED_ROWS) {
        if (begin > 0u) {
            workgroupBarrier();
        }
        for (var i = lane; i < STAGED_ROWS * SIZE4; i += WG) {
            tile[STAGED + i] = row4(pair, part, first + begin + i / SIZE4, i % SIZE4);
        }
        workgroupBarrier();
        for (var c = 0u; c < STAGED_ROWS; c++) {
            let f = tile[factors_at(begin + c, cell.y)];
            // unroll
            for (var j = 0u; j < BLOCKS; j++) {
                // Past the end of the head, this reads the last vector again, and its sum is not
                // stored.
                let v = tile[STAGED + c * SIZE4 + min(cell.x + j * LANES, SIZE4 - 1u)];
                (*sums)[j] += mat4x4<f32>(v * f.x, v * f.y, v * f.z, v * f.w);
            }
        }
    }
}

// Writes the invocation's rows of a sum, each times its factor.
fn store_sums(
    sums: ptr<function, Sums>,
    factors: vec4<f32>,
    pair: Pair,
    part: u32,
    first: u32,
    lane: u32,
) {
    let cell = cell_of(lane);
    let rows = rows_from(first, cell);
    // unroll
    for (var j = 0u; j < BLOCKS; j++) {
        let d = cell.x + j * LANES;
        store4(pair, part, rows.x, d, (*sums)[j][0] * factors.x);
        store4(pair, part, rows.y, d, (*sums)[j][1] * factors.y);
        store4(pair, part, rows.z, d, (*sums)[j][2] * factors.z);
        store4(pair, part, rows.w, d, (*sums)[j][3] * factors.w);
    }
}
