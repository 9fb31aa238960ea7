// Matrix product by cooperative matrices, in tiles. a and b are f16, sums f32. a is [m, k], or [k,
// m] if A_TRANSPOSED; b is [k, n], or [n, k] if B_TRANSPOSED. Workgroup memory holds a tile of each
// factor, DEPTH of k at a time, in the order of its buffer, with zeros outside the matrices. The
// next tiles load meanwhile. If ACTIVATED, a goes through GELU on the way, so that the output of
// GELU need not be stored.
//
// A tile of out has ROW_MATRICES x COLUMN_MATRICES blocks of ROW_PARTS x COLUMN_PARTS matrices. A
// subgroup holds one part, the same matrix of each block, in registers. An invocation cannot read
// an element of a matrix, so the result goes through workgroup memory, block by block.
//
// The size of subgroups may be the driver's choice. With fewer than PARTS of them in a workgroup, it
// computes its tile in rounds; with more, some only load. Needs gelu.wgsl, gemm_epilogue.wgsl.

alias quad = vec4<f16>;

@group(0) @binding(0) var<storage, read_write> a: array<left>;
@group(0) @binding(1) var<storage, read_write> b: array<right>;

const PARTS = ROW_PARTS * COLUMN_PARTS;
const BLOCK_ROWS = ROW_PARTS * SIDE;
const BLOCK_COLUMNS = COLUMN_PARTS * SIDE;
const TILE_ROWS = ROW_MATRICES * BLOCK_ROWS;
const TILE_COLUMNS = COLUMN_MATRICES * BLOCK_COLUMNS;

// The rows of the factors' tiles in workgroup memory. Matrices are loaded with one stride, so rows
// cannot be swizzled. Another 8 elements spread eight rows over all banks.
const LEFT_ROWS = select(TILE_ROWS, DEPTH, A_TRANSPOSED);
const LEFT_WIDTH = select(DEPTH, TILE_ROWS, A_TRANSPOSED);
const LEFT_STRIDE = LEFT_WIDTH + 8u;
const RIGHT_ROWS = select(DEPTH, TILE_COLUMNS, B_TRANSPOSED);
const RIGHT_WIDTH = select(TILE_COLUMNS, DEPTH, B_TRANSPOSED);
const RIGHT_STRIDE = RIGHT_WIDTH + 8u;
const BLOCK_STRIDE = BLOCK_COLUMNS + 8u;

var<workgroup> left_tile: array<half_cell, LEFT_ROWS * LEFT_STRIDE / CELL>;
var<workgroup> right_tile: array<half_cell, RIGHT_ROWS * RIGHT_STRIDE / CELL>;
var<workgroup> block: array<sum_cell, BLOCK_ROWS * BLOCK_STRIDE / CELL>;

// The elements that an invocation loads, four of a row at a time.
alias LeftQuads = array<quad, LEFT_QUADS>;
alias RightQuads = array<quad, RIGHT_QUADS>;
alias Sums = array<array<Sum, COLUMN_MATRICES>, ROW_MATRICES>;

// If b is not transposed, neighbouring invocations load one of its rows. WG is a multiple of
// COLUMN_QUADS, so an invocation loads the same columns each time.
const COLUMN_QUADS = TILE_COLUMNS / 4u;
var<workgroup> column_sums: array<vec4<f32>, COLUMN_QUADS>;

// Returns four elements of a row of a, which is [rows, width] in memory.
fn a4(row: u32, column: u32, rows: u32, width: u32) -> quad {
    if (any(vec2(row, column) >= vec2(rows, width))) {
        return quad();
    }
    let at = p.a_offset + row * p.a_stride + column;
    if (VEC == 4u) {
        return quad(a[at / VEC]);
    }
    var v = quad(quad(a[at]).x, 0.0h, 0.0h, 0.0h);
    if (column + 1u < width) { v.y = quad(a[at + 1u]).x; }
    if (column + 2u < width) { v.z = quad(a[at + 2u]).x; }
    if (column + 3u < width) { v.w = quad(a[at + 3u]).x; }
    return v;
}

// Returns four elements of a row of b.
fn b4(row: u32, column: u32, rows: u32, width: u32) -> quad {
    if (any(vec2(row, column) >= vec2(rows, width))) {
        return quad();
    }
    let at = p.b_offset + row * width + column;
    if (VEC == 4u) {
        return quad(b[at / VEC]);
    }
    var v = quad(quad(b[at]).x, 0.0h, 0.0h, 0.0h);
    if (column + 1u < width) { v.y = quad(b[at + 1u]).x; }
    if (column + 2u < width) { v.z = quad(b[at + 2u]).x; }
    if (column + 3u < width) { v.w = quad(b[at + 3u]).x; }
    return v;
}

// Loads this invocation's share of the left tile at (row, k).
fn load_left(quads: ptr<function, LeftQuads>, row: u32, k: u32, lane: u32) {
    // unroll
    for (var i = 0u; i < LEFT_QUADS; i++) {
        let at = 4u * (lane + i * WG);
        if (A_TRANSPOSED) {
            (*quads)[i] = a4(k + at / LEFT_WIDTH, row + at % LEFT_WIDTH, p.k, p.m);
        } else {
            (*quads)[i] = a4(row + at / LEFT_WIDTH, k + at % LEFT_WIDTH, p.m, p.k);
        }
    }
}

// Loads this invocation's share of the right tile at (k, column).
fn load_right(quads: ptr<function, RightQuads>, k: u32, column: u32, lane: u32) {
    // unroll
    for (var i = 0u; i < RIGHT_QUADS; i++) {
        let at = 4u * (lane + i * WG);
        if (B_TRANSPOSED) {
            (*quads)[i] = b4(column + at / RIGHT_WIDTH, k + at % RIGHT_WIDTH, p.n, p.k);
        } else {
            (*quads)[i] = b4(k + at / RIGHT_WIDTH, column + at % RIGHT_WIDTH, p.k, p.n);
        }
    }
}

fn stage_left(quads: ptr<function, LeftQuads>, lane: u32) {
    // unroll
    for (var i = 0u; i < LEFT_QUADS; i++) {
        let at = 4u * (lane + i * WG);
        let to = (at / LEFT_WIDTH * LEFT_STRIDE + at % LEFT_WIDTH) / CELL;
        var v = (*quads)[i];
        if (ACTIVATED) {
            v = quad(gelu(vec4<f32>(v)));
        }
        for (var j = 0u; j < 4u / CELL; j++) {
            left_tile[to + j] = half_cell_of(v, j);
        }
    }
}

// Returns the sum of the quads, which all have the same columns if b is not transposed.
fn stage_right(quads: ptr<function, RightQuads>, lane: u32) -> vec4<f32> {
    var sum: vec4<f32>;
    // unroll
    for (var i = 0u; i < RIGHT_QUADS; i++) {
        let at = 4u * (lane + i * WG);
        let to = (at / RIGHT_WIDTH * RIGHT_STRIDE + at % RIGHT_WIDTH) / CELL;
        let v = (*quads)[i];
        for (var j = 0u; j < 4u / CELL; j++) {
            right_tile[to + j] = half_cell_of(v, j);
        }
        if (BIAS_GRADIENT) {
            sum += vec4<f32>(v);
        }
    }
    return sum;
}

// Adds the product of the staged tiles to the part whose matrix is at (row, column) of a block.
fn multiply(sums: ptr<function, Sums>, row: u32, column: u32) {
    for (var k = 0u; k < DEPTH; k += SIDE) {
        var y: array<Right, COLUMN_MATRICES>;
        // unroll
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            let at = column + j * BLOCK_COLUMNS;
            if (B_TRANSPOSED) {
                let start = (at * RIGHT_STRIDE + k) / CELL;
                y[j] = coopLoad<Right>(&right_tile[start], RIGHT_STRIDE / CELL);
            } else {
                let start = (k * RIGHT_STRIDE + at) / CELL;
                y[j] = coopLoadT<Right>(&right_tile[start], RIGHT_STRIDE / CELL);
            }
        }
        // unroll
        for (var i = 0u; i < ROW_MATRICES; i++) {
            let at = row + i * BLOCK_ROWS;
            var x: Left;
            if (A_TRANSPOSED) {
                let start = (k * LEFT_STRIDE + at) / CELL;
                x = coopLoad<Left>(&left_tile[start], LEFT_STRIDE / CELL);
            } else {
                let start = (at * LEFT_STRIDE + k) / CELL;
                x = coopLoadT<Left>(&left_tile[start], LEFT_STRIDE / CELL);
            }
            // unroll
            for (var j = 0u; j < COLUMN_MATRICES; j++) {
                (*sums)[i][j] = coopMultiplyAdd(x, y[j], (*sums)[i][j]);
            }
        }
    }
}

// Stores matrix (i, j) of the part at (row, column) of a block. Comparing the indices keeps the
// indices of the registers constant.
fn put(sums: ptr<function, Sums>, i: u32, j: u32, row: u32, column: u32) {
    let to = (row * BLOCK_STRIDE + column) / CELL;
    // unroll
    for (var r = 0u; r < ROW_MATRICES; r++) {
        // unroll
        for (var c = 0u; c < COLUMN_MATRICES; c++) {
            if (r == i && c == j) {
                coopStoreT((*sums)[r][c], &block[to], BLOCK_STRIDE / CELL);
            }
        }
    }
}

// Returns the pack at (row, column) of the block.
fn block_pack(row: u32, column: u32) -> pack {
    let at = (row * BLOCK_STRIDE + column) / CELL;
    if (CELL == 4u) {
        return narrow(vec4<f32>(block[at]), column % 4u);
    }
    if (VEC == 1u) {
        return narrow(vec4<f32>(block[at]), 0u);
    }
    let x = vec4<f32>(block[at]).x;
    let y = vec4<f32>(block[at + 1u]).x;
    let z = vec4<f32>(block[at + 2u]).x;
    return narrow(vec4<f32>(x, y, z, vec4<f32>(block[at + 3u]).x), 0u);
}

// Writes parts first_part to last_part (exclusive) of the block at (row, column) of the product
// over a range of k.
fn write_block(row: u32, column: u32, split: u32, first_part: u32, last_part: u32, lane: u32) {
    for (var at = lane * VEC; at < BLOCK_ROWS * BLOCK_COLUMNS; at += WG * VEC) {
        let i = at / BLOCK_COLUMNS;
        let j = at % BLOCK_COLUMNS;
        let part = i / SIDE * COLUMN_PARTS + j / SIDE;
        let present = part >= first_part && part < last_part;
        if (present && row + i < p.last_row && column + j < p.n) {
            write_result(split * p.m + row + i, column + j, block_pack(i, j));
        }
    }
}

// Adds up the column sums of the invocations that load the same columns, in their order, and writes
// them to bias.
fn write_column_sums(column: u32, split: u32, sum: vec4<f32>, lane: u32) {
    let own = lane % COLUMN_QUADS;
    if (lane < COLUMN_QUADS) {
        column_sums[own] = sum;
    }
    for (var i = 1u; i < WG / COLUMN_QUADS; i++) {
        workgroupBarrier();
        if (lane / COLUMN_QUADS == i) {
            column_sums[own] += sum;
        }
    }
    workgroupBarrier();
    for (var j = 0u; j < 4u; j += VEC) {
        let at = column + 4u * own + j;
        if (lane < COLUMN_QUADS && at < p.n) {
            bias[(split * p.n + at) / VEC] = narrow(column_sums[own], j);
        }
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, invocation: Invocation) {
    let lane = invocation.lane;
    let subgroup = subgroup_of(invocation);
    let subgroups = subgroups_of(invocation);
    let row = p.first_row + group.y % p.row_tiles * TILE_ROWS;
    let column = group.x * TILE_COLUMNS;
    let split = group.y / p.row_tiles;
    let first_k = split * p.split_depth;
    let last_k = min(first_k + p.split_depth, p.k);
    for (var first_part = 0u; first_part < PARTS; first_part += subgroups) {
        let part = first_part + subgroup;
        let part_row = part / COLUMN_PARTS * SIDE;
        let part_column = part % COLUMN_PARTS * SIDE;
        var sums: Sums;
        var column_sum: vec4<f32>;
        var left_quads: LeftQuads;
        var right_quads: RightQuads;
        load_left(&left_quads, row, first_k, lane);
        load_right(&right_quads, first_k, column, lane);
        for (var k = first_k; k < last_k; k += DEPTH) {
            stage_left(&left_quads, lane);
            column_sum += stage_right(&right_quads, lane);
            workgroupBarrier();
            load_left(&left_quads, row, k + DEPTH, lane);
            load_right(&right_quads, k + DEPTH, column, lane);
            if (part < PARTS) {
                multiply(&sums, part_row, part_column);
            }
            workgroupBarrier();
        }
        // Only the first row of tiles sums the columns of b.
        if (BIAS_GRADIENT && row == 0u && first_part == 0u) {
            write_column_sums(column, split, column_sum, lane);
        }
        let last_part = first_part + subgroups;
        for (var i = 0u; i < ROW_MATRICES; i++) {
            for (var j = 0u; j < COLUMN_MATRICES; j++) {
                if (part < PARTS) {
                    put(&sums, i, j, part_row, part_column);
                }
                workgroupBarrier();
                let block_row = row + i * BLOCK_ROWS;
                write_block(
                    block_row, column + j * BLOCK_COLUMNS, split, first_part, last_part, lane,
                );
                workgroupBarrier();
            }
        }
    }
}
