// Products of attention on cooperative matrices, f16 with sums in f32. A strip of STRIP of the
// workgroup's rows belongs to a subgroup, which keeps the strip's factors and sums in registers. The
// rows of the other side are staged for all subgroups. An invocation cannot read an element of a
// matrix, so scores and probabilities go through workgroup memory, [ROWS, COLUMNS], where SHARE
// invocations have a row, each PER vectors of four columns side by side.
//
// If SUBGROUPS is known, the invocations of a strip's rows are its subgroup, and strips wait for each other only
// where they stage. Else the size of subgroups is the driver's choice: with fewer than STRIPS of them,
// a workgroup takes its strips in rounds; with more, some only stage. Needs matrices8.wgsl or
// matrices16.wgsl, attention_heads.wgsl. A kernel declares `stored`, which returns pack `at` of the buffer
// that holds a part.

const ROWS = 64u;
const COLUMNS = 32u;
const STRIPS = ROWS / STRIP;
const SHARE = WG / ROWS;
// The size of a head, filled up with zeros to HEAD_MATRICES matrices. A strip has ROW_MATRICES
// matrices of rows, and COLUMNS take COLUMN_MATRICES. Sums leave their registers in CHUNKS of
// COLUMNS columns.
const WIDTH = HEAD_MATRICES * SIDE;
// Matrices are loaded with one stride, so rows cannot be swizzled. Another 16 bytes spread
// neighbouring rows over the banks.
const STAGED_STRIDE = WIDTH + 8u;
const SCORE_STRIDE = COLUMNS + 4u;
const FACTOR_STRIDE = COLUMNS + 8u;

// The strip's rows of a part, as left factors of products over the head.
alias Rows = array<array<Left, HEAD_MATRICES>, ROW_MATRICES>;
// The strip's rows of a sum.
alias Sums = array<array<Sum, HEAD_MATRICES>, ROW_MATRICES>;
// An invocation's part of a row of scores.
alias RowPart = array<vec4<f32>, PER>;

// Where COLUMNS rows of a part are staged as columns, if TURNED, behind the rows of PARTS parts. A matrix
// of them then loads along the positions, as its multiplication needs them.
const TURNED_AT = PARTS * COLUMNS * STAGED_STRIDE;
const TURNED_SIZE = select(0u, WIDTH * FACTOR_STRIDE, TURNED);

// The rows and columns of the other side. Before the loop, the workgroup's own rows of one part.
var<workgroup> staged: array<half_cell, max(ROWS * STAGED_STRIDE, TURNED_AT + TURNED_SIZE) / CELL>;
var<workgroup> scores: array<sum_cell, ROWS * SCORE_STRIDE / CELL>;
var<workgroup> factors: array<half_cell, ROWS * FACTOR_STRIDE / CELL>;

// Returns an invocation's first column of its vector j.
fn column_of(lane: u32, j: u32) -> u32 {
    return lane % SHARE * 4u * PER + 4u * j;
}

// Returns the positions of an invocation's vector j in the other side's rows that begin at `begin`.
fn columns_from(begin: u32, lane: u32, j: u32) -> vec4<u32> {
    return begin + column_of(lane, j) + vec4<u32>(0u, 1u, 2u, 3u);
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

// Returns the place of an invocation's vector j in `scores`.
fn score_at(lane: u32, j: u32) -> u32 {
    return lane / SHARE * SCORE_STRIDE + column_of(lane, j);
}

fn scores_of(lane: u32) -> RowPart {
    var part = RowPart();
    // unroll
    for (var j = 0u; j < PER; j++) {
        part[j] = scores4(score_at(lane, j));
    }
    return part;
}

// Writes an invocation's part of `factors`, rounded to f16.
fn set_factors(values: RowPart, lane: u32) {
    var part = values;
    // unroll
    for (var j = 0u; j < PER; j++) {
        let at = lane / SHARE * FACTOR_STRIDE + column_of(lane, j);
        for (var i = 0u; i < 4u / CELL; i++) {
            factors[at / CELL + i] = half_cell_of(vec4<f16>(part[j]), i);
        }
    }
}

// Shows a value to the invocations that share a row, in the memory of the row's scores.
fn exchange(value: f32, lane: u32) {
    set_scores4(score_at(lane, 0u), vec4<f32>(value));
    subgroup_barrier();
}

fn exchanged(i: u32, lane: u32) -> f32 {
    return scores4(score_at(lane / SHARE * SHARE + i, 0u)).x;
}

// Returns the maximum over the invocations that share a row. Needs a barrier before the scores are
// written again.
fn row_maximum(value: f32, lane: u32) -> f32 {
    if (SHARE == 1u) {
        return value;
    }
    exchange(value, lane);
    var largest = value;
    for (var i = 0u; i < SHARE; i++) {
        largest = max(largest, exchanged(i, lane));
    }
    return largest;
}

// Returns the sum over the invocations that share a row, with the same barriers as row_maximum.
fn row_sum(value: f32, lane: u32) -> f32 {
    if (SHARE == 1u) {
        return value;
    }
    exchange(value, lane);
    var sum = 0.0;
    for (var i = 0u; i < SHARE; i++) {
        sum += exchanged(i, lane);
    }
    return sum;
}

fn load(part: u32, at: u32) -> pack {
    return pack(stored(part, at));
}

// Returns elements 4 * d to 4 * d + 4 of a row, as row4.
fn half4(pair: Pair, part: u32, position: u32, d: u32) -> vec4<f16> {
    if (VEC == 4u && WIDTH == 4u * SIZE4) {
        return vec4<f16>(stored(part, row_begin(pair, part, position) + d));
    }
    return vec4<f16>(row4(pair, part, position, d));
}

fn set_staged4(at: u32, value: vec4<f16>) {
    for (var i = 0u; i < 4u / CELL; i++) {
        staged[at / CELL + i] = half_cell_of(value, i);
    }
}

// Stages `count` rows of a part, from staged row `to` on.
fn stage(pair: Pair, part: u32, first: u32, to: u32, count: u32, lane: u32) {
    let vectors = count * WIDTH / 4u;
    // The number of iterations is constant, so that compilers unroll the loop and load in advance.
    for (var n = 0u; n < vectors; n += WG) {
        if (vectors % WG != 0u && n + lane >= vectors) {
            break;
        }
        var row = (n + lane) / (WIDTH / 4u);
        var d = (n + lane) % (WIDTH / 4u);
        if (WG % (WIDTH / 4u) == 0u) {
            row = n / (WIDTH / 4u) + lane / (WIDTH / 4u);
            d = lane % (WIDTH / 4u);
        }
        let value = half4(pair, part, first + row, d);
        set_staged4((to + row) * STAGED_STRIDE + 4u * d, value);
    }
}

// Stages COLUMNS rows of a part as columns, and as rows if `as_rows`.
fn stage_turned(pair: Pair, part: u32, first: u32, as_rows: bool, lane: u32) {
    let blocks = COLUMNS / 4u * WIDTH / 4u;
    for (var n = 0u; n < blocks; n += WG) {
        let block = min(n + lane, blocks - 1u);
        let row = block % (COLUMNS / 4u) * 4u;
        let d = block / (COLUMNS / 4u);
        var rows = array<vec4<f16>, 4>();
        // unroll
        for (var i = 0u; i < 4u; i++) {
            rows[i] = half4(pair, part, first + row + i, d);
        }
        // Only the stores are conditional, so that the loads need not wait for one another.
        if (blocks % WG == 0u || n + lane < blocks) {
            // unroll
            for (var i = 0u; i < 4u; i++) {
                let column = vec4<f16>(rows[0][i], rows[1][i], rows[2][i], rows[3][i]);
                set_staged4(TURNED_AT + (4u * d + i) * FACTOR_STRIDE + row, column);
                if (as_rows) {
                    set_staged4((row + i) * STAGED_STRIDE + 4u * d, rows[i]);
                }
            }
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
    var sums = array<array<Sum, ROW_MATRICES>, COLUMN_MATRICES>();
    // unroll
    for (var d = 0u; d < HEAD_MATRICES; d++) {
        // unroll
        for (var n = 0u; n < COLUMN_MATRICES; n++) {
            let at = (first + n * SIDE) * STAGED_STRIDE + d * SIDE;
            let right = coopLoad<Right>(&staged[at / CELL], STAGED_STRIDE / CELL);
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                sums[n][i] = coopMultiplyAdd((*rows)[i][d], right, sums[n][i]);
            }
        }
    }
    // unroll
    for (var n = 0u; n < COLUMN_MATRICES; n++) {
        // unroll
        for (var i = 0u; i < ROW_MATRICES; i++) {
            let to = (strip * STRIP + i * SIDE) * SCORE_STRIDE + n * SIDE;
            coopStoreT(sums[n][i], &scores[to / CELL], SCORE_STRIDE / CELL);
        }
    }
}

// Returns columns n to n + SIDE of a strip's rows of `factors`.
fn factors_of(strip: u32, n: u32) -> array<Left, ROW_MATRICES> {
    var left = array<Left, ROW_MATRICES>();
    // unroll
    for (var i = 0u; i < ROW_MATRICES; i++) {
        let at = (strip * STRIP + i * SIDE) * FACTOR_STRIDE + n;
        left[i] = coopLoadT<Left>(&factors[at / CELL], FACTOR_STRIDE / CELL);
    }
    return left;
}

// Adds to a strip of sums the products of its `factors` with COLUMNS staged rows.
fn accumulate(sums: ptr<function, Sums>, first: u32, strip: u32) {
    for (var n = 0u; n < COLUMNS; n += SIDE) {
        var left = factors_of(strip, n);
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

// Adds the products with the rows that are staged as columns.
fn accumulate_turned(sums: ptr<function, Sums>, strip: u32) {
    for (var n = 0u; n < COLUMNS; n += SIDE) {
        var left = factors_of(strip, n);
        // unroll
        for (var d = 0u; d < HEAD_MATRICES; d++) {
            let at = TURNED_AT + d * SIDE * FACTOR_STRIDE + n;
            let right = coopLoad<Right>(&staged[at / CELL], FACTOR_STRIDE / CELL);
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                (*sums)[i][d] = coopMultiplyAdd(left[i], right, (*sums)[i][d]);
            }
        }
    }
}

// Returns true if this round computes an invocation's row.
fn in_round(lane: u32, first_strip: u32, subgroups: u32) -> bool {
    let strip = lane / (STRIP * SHARE);
    return SUBGROUPS > 0u || (strip >= first_strip && strip < first_strip + subgroups);
}

// Returns the place of a matrix of a chunk of a strip's sums in `scores`.
fn chunk_at(strip: u32, i: u32, d: u32) -> u32 {
    return ((strip * STRIP + i * SIDE) * SCORE_STRIDE + d % COLUMN_MATRICES * SIDE) / CELL;
}

// Writes a chunk of a strip of sums to `scores`. Comparing the indices keeps the indices of the
// registers constant.
fn put_chunk(sums: ptr<function, Sums>, chunk: u32, strip: u32) {
    // unroll
    for (var d = 0u; d < HEAD_MATRICES; d++) {
        if (d / COLUMN_MATRICES == chunk) {
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                coopStoreT((*sums)[i][d], &scores[chunk_at(strip, i, d)], SCORE_STRIDE / CELL);
            }
        }
    }
}

// Multiplies each row of all strips of sums by its invocations' `by`.
fn rescale(sums: ptr<function, Sums>, by: f32, strip: u32, lane: u32) {
    // unroll
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        subgroup_barrier();
        if (strip < STRIPS) {
            put_chunk(sums, chunk, strip);
        }
        subgroup_barrier();
        // unroll
        for (var j = 0u; j < PER; j++) {
            let at = score_at(lane, j);
            set_scores4(at, scores4(at) * by);
        }
        subgroup_barrier();
        // unroll
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            // Past the end of the head, this is the last matrix again.
            let d = min(chunk * COLUMN_MATRICES + j, HEAD_MATRICES - 1u);
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                let at = chunk_at(min(strip, STRIPS - 1u), i, d);
                (*sums)[i][d] = coopLoadT<Sum>(&scores[at], SCORE_STRIDE / CELL);
            }
        }
    }
}

// Writes the rows of this round's sums as a part.
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
    let first_row = lane / (STRIP * SHARE) * STRIP;
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        subgroup_barrier();
        if (strip < STRIPS) {
            put_chunk(sums, chunk, strip);
        }
        subgroup_barrier();
        if (in_round(lane, first_strip, subgroups)) {
            // Neighbouring invocations write what is contiguous in memory.
            for (var j = 0u; j < PER; j++) {
                let i = lane % (STRIP * SHARE) + j * STRIP * SHARE;
                let row = first_row + i / (COLUMNS / 4u);
                let d = i % (COLUMNS / 4u);
                let value = scores4(row * SCORE_STRIDE + 4u * d);
                store4(pair, part, first + row, chunk * COLUMNS / 4u + d, value);
            }
        }
    }
}
