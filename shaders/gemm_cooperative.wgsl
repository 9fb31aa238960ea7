// Matrix product by cooperative matrices, in tiles. a and b are f16, sums f32. a is [m, k], or [k,
// m] if A_TRANSPOSED; b is [k, n], or [n, k] if B_TRANSPOSED. Workgroup memory holds a tile of each
// factor, DEPTH of k at a time, with k contiguous, as GPUs load matrices fastest, and zeros outside
// the matrices. The next tiles load meanwhile. If ACTIVATED, a goes through GELU on the way, so that
// the output of GELU need not be stored. If that activation is GATED, a has two matrices side by side, gate
// and up of SwiGLU.
//
// A tile of out has ROW_MATRICES x COLUMN_MATRICES blocks of ROW_PARTS x COLUMN_PARTS matrices. A
// subgroup holds one part, the same matrix of each block, in registers.
//
// The size of subgroups may be the driver's choice. With fewer than PARTS of them in a workgroup, it
// computes its tile in rounds; with more, some only load.
//
// If WHOLE, tiles and DEPTH divide the matrices, and nothing is checked. If AS_STORED, which needs WHOLE and
// rows and offsets of 16 bytes, workgroup memory holds the rows of the buffers, along k or not, and it is the
// load of a matrix that transposes. Needs gelu.wgsl, swiglu.wgsl, gemm_epilogue.wgsl, and
// gemm_cooperative_direct.wgsl or gemm_cooperative_staged.wgsl, which write the sums.

alias quad = vec4<f16>;

@group(0) @binding(0) var<storage, read_write> a: array<left>;
@group(0) @binding(1) var<storage, read_write> b: array<right>;

const PARTS = ROW_PARTS * COLUMN_PARTS;
const BLOCK_ROWS = ROW_PARTS * SIDE;
const BLOCK_COLUMNS = COLUMN_PARTS * SIDE;
const TILE_ROWS = ROW_MATRICES * BLOCK_ROWS;
const TILE_COLUMNS = COLUMN_MATRICES * BLOCK_COLUMNS;
const STRIP = 8u;
const LEFT_GATED = ACTIVATED && GATED;

// A row of a tile in workgroup memory is DEPTH of a row of a, or of a column of b; if LEFT_BY_K or
// RIGHT_BY_K, it has one k and all columns of the buffer. Matrices are loaded with one stride, so rows
// cannot be swizzled. Another 8 elements spread eight rows over all banks. Strides count cells: compilers
// add constants to an index of cells, but not of elements.
const LEFT_BY_K = AS_STORED && A_TRANSPOSED;
const RIGHT_BY_K = AS_STORED && !B_TRANSPOSED;
const LEFT_WIDTH = select(DEPTH, TILE_ROWS, LEFT_BY_K);
const RIGHT_WIDTH = select(DEPTH, TILE_COLUMNS, RIGHT_BY_K);
const LEFT_STRIDE = (LEFT_WIDTH + 8u) / CELL;
const RIGHT_STRIDE = (RIGHT_WIDTH + 8u) / CELL;

var<workgroup> left_tile: array<half_cell, TILE_ROWS * DEPTH / LEFT_WIDTH * LEFT_STRIDE>;
var<workgroup> right_tile: array<half_cell, TILE_COLUMNS * DEPTH / RIGHT_WIDTH * RIGHT_STRIDE>;

// An invocation loads a square of 4 x 4 elements of each tile, in rows of the buffer. If these do not
// run along k, it transposes the square as it stages it. If AS_STORED, it loads 8 elements of each of two
// rows instead, half of a tile's rows apart.
alias Square = mat4x4<f16>;
const DEPTH_SQUARES = DEPTH / 4u;
alias Sums = array<array<Sum, COLUMN_MATRICES>, ROW_MATRICES>;

// True if neighbouring invocations load along rows of the buffer that do not run along k, up to 256 bytes:
// an H100 takes as long for 32 bytes of a cache line as for all of it. Where the driver chooses the size of
// subgroups, on AMD, they load along k, because its compiler would need more registers for this.
const LEFT_ALONG_ROWS = A_TRANSPOSED && SUBGROUPS > 0u && !AS_STORED;
const RIGHT_ALONG_ROWS = !B_TRANSPOSED && SUBGROUPS > 0u && !AS_STORED;

var<workgroup> column_sums: array<f32, TILE_COLUMNS>;

// Returns the row and k of an invocation's square in a tile of `squares` by DEPTH_SQUARES squares. The
// squares of neighbouring invocations follow each other along k, so that 16 of them store to all banks, or
// along the rows of the buffer.
fn square_of(lane: u32, squares: u32, along_rows: bool) -> vec2<u32> {
    if (along_rows) {
        let width = min(squares, 32u);
        let rest = lane / width;
        return 4u * vec2(lane % width + width * (rest / DEPTH_SQUARES), rest % DEPTH_SQUARES);
    }
    return 4u * vec2(lane / DEPTH_SQUARES, lane % DEPTH_SQUARES);
}

// Returns the row and the column of an invocation's first 8 elements in a tile as it is stored, `width`
// elements wide. Eight invocations store to all banks: four to a row along k, and four to the row that is
// four rows below.
fn piece_of(lane: u32, width: u32, by_k: bool) -> vec2<u32> {
    let pieces = width / 8u;
    let line = lane / pieces;
    let spread = line / 8u * 8u + line % 2u * 4u + line / 2u % 4u;
    return vec2(select(spread, line, by_k), lane % pieces * 8u);
}

// Returns the row of an invocation's second 8 elements, relative to the first, in a tile as it is stored.
fn second_row(width: u32) -> u32 {
    return WG * 8u / width;
}

// Returns four elements of a row of a, which is [rows, width] in memory, or, if `second`, of up.
fn a4(second: bool, row: u32, column: u32, rows: u32, width: u32) -> quad {
    if (!WHOLE && any(vec2(row, column) >= vec2(rows, width))) {
        return quad();
    }
    let at = p.a_offset + row * p.a_stride + column + select(0u, width, second);
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
    if (!WHOLE && any(vec2(row, column) >= vec2(rows, width))) {
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

// Returns two times 8 elements of rows of a, or of up, of one row and of the row `apart` rows below. The
// address is written so that a compiler can see that it is a multiple of 16 bytes.
fn a_pieces(second: bool, row: u32, column: u32, apart: u32) -> Square {
    let width = select(p.k, p.m, A_TRANSPOSED);
    let start = p.a_offset + row * p.a_stride + column + select(0u, width, second);
    let first = start / 8u * 2u;
    let last = (start + apart * p.a_stride) / 8u * 2u;
    return Square(quad(a[first]), quad(a[first + 1u]), quad(a[last]), quad(a[last + 1u]));
}

// Returns two times 8 elements of rows of b.
fn b_pieces(row: u32, column: u32, apart: u32) -> Square {
    let width = select(p.n, p.k, B_TRANSPOSED);
    let start = p.b_offset + row * width + column;
    let first = start / 8u * 2u;
    let last = (start + apart * width) / 8u * 2u;
    return Square(quad(b[first]), quad(b[first + 1u]), quad(b[last]), quad(b[last + 1u]));
}

// Returns the square of a, or of up, at (row, k).
fn load_left(second: bool, row: u32, k: u32) -> Square {
    if (AS_STORED && A_TRANSPOSED) {
        return a_pieces(second, k, row, second_row(LEFT_WIDTH));
    }
    if (AS_STORED) {
        return a_pieces(second, row, k, second_row(LEFT_WIDTH));
    }
    var square: Square;
    // unroll
    for (var i = 0u; i < 4u; i++) {
        if (A_TRANSPOSED) {
            square[i] = a4(second, k + i, row, p.k, p.m);
        } else {
            square[i] = a4(second, row + i, k, p.m, p.k);
        }
    }
    return square;
}

// Returns the square of b at (k, column).
fn load_right(k: u32, column: u32) -> Square {
    if (AS_STORED && B_TRANSPOSED) {
        return b_pieces(column, k, second_row(RIGHT_WIDTH));
    }
    if (AS_STORED) {
        return b_pieces(k, column, second_row(RIGHT_WIDTH));
    }
    var square: Square;
    // unroll
    for (var i = 0u; i < 4u; i++) {
        if (B_TRANSPOSED) {
            square[i] = b4(column + i, k, p.n, p.k);
        } else {
            square[i] = b4(k + i, column, p.k, p.n);
        }
    }
    return square;
}

// Returns the rows of a square, from row `by` modulo 4 on.
fn rotated(v: Square, by: u32) -> Square {
    let one = by % 2u != 0u;
    let two = by % 4u >= 2u;
    let w = Square(
        select(v[0], v[1], one),
        select(v[1], v[2], one),
        select(v[2], v[3], one),
        select(v[3], v[0], one),
    );
    return Square(
        select(w[0], w[2], two),
        select(w[1], w[3], two),
        select(w[2], w[0], two),
        select(w[3], w[1], two),
    );
}

// Returns which of the four rows from `row` on an invocation stores first, if it loads along the rows of the
// buffer: other ones than its neighbours, because the first rows of all squares are in the same banks.
fn first_of(row: u32) -> u32 {
    return row / 8u % 4u;
}

// Returns the cell of the row that an invocation stores as number i, of the square at (row, k).
fn cell_of(row: u32, k: u32, i: u32, along_rows: bool) -> u32 {
    let to = row + select(i, (i + first_of(row)) % 4u, along_rows);
    return to * ((DEPTH + 8u) / CELL) + k / CELL;
}

// Returns the cell of the four elements that an invocation stores as number i, if AS_STORED.
fn piece_cell(row: u32, column: u32, i: u32, width: u32) -> u32 {
    let to = row + i / 2u * second_row(width);
    return to * ((width + 8u) / CELL) + (column + i % 2u * 4u) / CELL;
}

// Returns the cell of an invocation's four elements i in the tile of a.
fn left_cell(row: u32, k: u32, i: u32) -> u32 {
    if (LEFT_BY_K) {
        return piece_cell(k, row, i, LEFT_WIDTH);
    }
    if (AS_STORED) {
        return piece_cell(row, k, i, LEFT_WIDTH);
    }
    return cell_of(row, k, i, LEFT_ALONG_ROWS);
}

// Returns the cell of an invocation's four elements i in the tile of b.
fn right_cell(row: u32, k: u32, i: u32) -> u32 {
    if (RIGHT_BY_K) {
        return piece_cell(k, row, i, RIGHT_WIDTH);
    }
    if (AS_STORED) {
        return piece_cell(row, k, i, RIGHT_WIDTH);
    }
    return cell_of(row, k, i, RIGHT_ALONG_ROWS);
}

// `up` counts if a is gated.
fn stage_left(loaded: Square, up: Square, row: u32, k: u32) {
    var square = loaded;
    if (LEFT_GATED) {
        // unroll
        for (var i = 0u; i < 4u; i++) {
            square[i] = quad(swiglu(vec4<f32>(loaded[i]), vec4<f32>(up[i])));
        }
    }
    if (A_TRANSPOSED && !AS_STORED) {
        square = transpose(square);
    }
    if (LEFT_ALONG_ROWS) {
        square = rotated(square, first_of(row));
    }
    // unroll
    for (var i = 0u; i < 4u; i++) {
        var v = square[i];
        if (ACTIVATED && !GATED) {
            v = quad(gelu(vec4<f32>(v)));
        }
        for (var j = 0u; j < 4u / CELL; j++) {
            left_tile[left_cell(row, k, i) + j] = half_cell_of(v, j);
        }
    }
}

fn stage_right(loaded: Square, row: u32, k: u32) {
    var square = loaded;
    if (!B_TRANSPOSED && !AS_STORED) {
        square = transpose(loaded);
    }
    if (RIGHT_ALONG_ROWS) {
        square = rotated(square, first_of(row));
    }
    // unroll
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u / CELL; j++) {
            right_tile[right_cell(row, k, i) + j] = half_cell_of(square[i], j);
        }
    }
}

// The columns of b that an invocation sums, if it is one of the first. It is one vector, where a row of b's
// tile has them side by side.
const SUMMED = select(1u, CELL, RIGHT_BY_K);

// Returns the sums of SUMMED staged columns of b over DEPTH of k, in the same order in both forms of the tile.
fn sums_of_columns(column: u32) -> vec4<f32> {
    if (RIGHT_BY_K) {
        var sums = vec4<f32>();
        for (var k = 0u; k < DEPTH; k += 4u) {
            var rows: mat4x4<f32>;
            // unroll
            for (var i = 0u; i < 4u; i++) {
                let row = right_tile[(k + i) * RIGHT_STRIDE + column / CELL];
                rows[i] = vec4<f32>(quad(row));
            }
            sums += (rows[0] + rows[1]) + (rows[2] + rows[3]);
        }
        return sums;
    }
    var sum = 0.0;
    for (var i = 0u; i < DEPTH / CELL; i++) {
        let v = vec4<f32>(quad(right_tile[column * RIGHT_STRIDE + i]));
        sum += select((v.x + v.y) + (v.z + v.w), v.x, CELL == 1u);
    }
    return vec4(sum);
}

// Returns sums of zeros. Where the size of subgroups is known, as on NVIDIA, they are products: Mesa's
// compiler leaves sums in the registers of their first products, but moves sums that begin as
// constants around for each DEPTH of k.
fn zeros() -> Sums {
    var sums: Sums;
    if (SUBGROUPS == 0u) {
        return sums;
    }
    // unroll
    for (var i = 0u; i < ROW_MATRICES; i++) {
        // unroll
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            sums[i][j] = coopMultiplyAdd(Left(), Right(), Sum());
        }
    }
    return sums;
}

// Returns how much of DEPTH is left of k. NVIDIA's compiler would unroll a loop to DEPTH and load the
// matrices of all iterations first. That takes so many registers that only one workgroup fits a
// multiprocessor. AMD's compiler and software renderers, whose DEPTH is 16, make better code for a
// constant.
fn depth_from(k: u32, last_k: u32) -> u32 {
    return select(DEPTH, min(DEPTH, last_k - k), SUBGROUPS > 0u && DEPTH > 16u);
}

// Returns the matrix of a at (row, k) of the staged tile.
fn load_matrix_left(row: u32, k: u32) -> Left {
    if (LEFT_BY_K) {
        return coopLoad<Left>(&left_tile[k * LEFT_STRIDE + row / CELL], LEFT_STRIDE);
    }
    return coopLoadT<Left>(&left_tile[row * LEFT_STRIDE + k / CELL], LEFT_STRIDE);
}

// Returns the matrix of b at (k, column) of the staged tile.
fn load_matrix_right(k: u32, column: u32) -> Right {
    if (RIGHT_BY_K) {
        return coopLoadT<Right>(&right_tile[k * RIGHT_STRIDE + column / CELL], RIGHT_STRIDE);
    }
    return coopLoad<Right>(&right_tile[column * RIGHT_STRIDE + k / CELL], RIGHT_STRIDE);
}

// Adds the product over `depth` of the staged tiles to the part whose matrix is at (row, column) of a
// block.
fn multiply(sums: ptr<function, Sums>, row: u32, column: u32, depth: u32) {
    for (var k = 0u; k < depth; k += SIDE) {
        var y: array<Right, COLUMN_MATRICES>;
        // unroll
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            y[j] = load_matrix_right(k, column + j * BLOCK_COLUMNS);
        }
        // unroll
        for (var i = 0u; i < ROW_MATRICES; i++) {
            let x = load_matrix_left(row + i * BLOCK_ROWS, k);
            // unroll
            for (var j = 0u; j < COLUMN_MATRICES; j++) {
                (*sums)[i][j] = coopMultiplyAdd(x, y[j], (*sums)[i][j]);
            }
        }
    }
}

// Writes the sums of the columns of the first invocations to bias.
fn write_column_sums(column: u32, split: u32, sums_of_lane: vec4<f32>, lane: u32) {
    if (lane < TILE_COLUMNS / SUMMED) {
        for (var i = 0u; i < SUMMED; i++) {
            column_sums[lane * SUMMED + i] = sums_of_lane[i];
        }
    }
    workgroupBarrier();
    let at = lane * VEC;
    if (at < TILE_COLUMNS && column + at < p.n) {
        var sums = vec4<f32>(column_sums[at]);
        if (VEC == 4u) {
            sums = vec4(sums.x, column_sums[at + 1u], column_sums[at + 2u], column_sums[at + 3u]);
        }
        bias[(split * p.n + column + at) / VEC] = narrow(sums, 0u);
    }
}

// Returns the row and column of a workgroup's tile. Workgroups that follow each other go down a strip
// of tiles, column by column: the workgroups that run at a time then read few rows of both factors,
// and b is read from memory once for each strip instead of each row of tiles.
fn tile_of(row: u32, column: u32) -> vec2<u32> {
    let columns = (p.n + TILE_COLUMNS - 1u) / TILE_COLUMNS;
    let first = row / STRIP * STRIP;
    let rows = min(STRIP, p.row_tiles - first);
    let at = (row - first) * columns + column;
    return vec2(first + at % rows, at / rows);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, invocation: Invocation) {
    let lane = invocation.lane;
    var own_left = square_of(lane, TILE_ROWS / 4u, LEFT_ALONG_ROWS);
    var own_right = square_of(lane, TILE_COLUMNS / 4u, RIGHT_ALONG_ROWS);
    if (AS_STORED) {
        own_left = piece_of(lane, LEFT_WIDTH, LEFT_BY_K);
        own_right = piece_of(lane, RIGHT_WIDTH, RIGHT_BY_K);
    }
    // The invocation's row and k of a, column and k of b.
    own_left = select(own_left, own_left.yx, LEFT_BY_K);
    own_right = select(own_right, own_right.yx, RIGHT_BY_K);
    let subgroup = subgroup_of(invocation);
    let subgroups = subgroups_of(invocation);
    let split = group.y / p.row_tiles;
    let tile = tile_of(group.y % p.row_tiles, group.x);
    let row = p.first_row + tile.x * TILE_ROWS;
    let column = tile.y * TILE_COLUMNS;
    let first_k = split * p.split_depth;
    let last_k = min(first_k + p.split_depth, p.k);
    for (var first_part = 0u; first_part < PARTS; first_part += subgroups) {
        let part = first_part + subgroup;
        let part_row = part / COLUMN_PARTS * SIDE;
        let part_column = part % COLUMN_PARTS * SIDE;
        var sums = zeros();
        // Only the first row of tiles sums the columns of b.
        let sums_columns =
            BIAS_GRADIENT && row == 0u && first_part == 0u && lane < TILE_COLUMNS / SUMMED;
        var column_sum = vec4<f32>();
        var left = load_left(false, row + own_left.x, first_k + own_left.y);
        var up: Square;
        if (LEFT_GATED) {
            up = load_left(true, row + own_left.x, first_k + own_left.y);
        }
        var right = load_right(first_k + own_right.y, column + own_right.x);
        for (var k = first_k; k < last_k; k += DEPTH) {
            stage_left(left, up, own_left.x, own_left.y);
            stage_right(right, own_right.x, own_right.y);
            workgroupBarrier();
            // Without checks, the last k is loaded once more.
            let next = select(k + DEPTH, min(k + DEPTH, last_k - DEPTH), WHOLE);
            left = load_left(false, row + own_left.x, next + own_left.y);
            if (LEFT_GATED) {
                up = load_left(true, row + own_left.x, next + own_left.y);
            }
            right = load_right(next + own_right.y, column + own_right.x);
            if (SUBGROUPS == PARTS || part < PARTS) {
                multiply(&sums, part_row, part_column, depth_from(k, last_k));
            }
            if (sums_columns) {
                column_sum += sums_of_columns(lane * SUMMED);
            }
            workgroupBarrier();
        }
        if (BIAS_GRADIENT && row == 0u && first_part == 0u) {
            write_column_sums(column, split, column_sum, lane);
        }
        write_sums(&sums, row, column, split, first_part, part, subgroups, lane);
    }
}
