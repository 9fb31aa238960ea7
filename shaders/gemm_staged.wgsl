// The product in tiles of 64 * ROW_BLOCKS x 64 * COLUMN_BLOCKS by 256 invocations, 16 x 16, each with
// that many blocks of 4 x 4 in registers. DEPTH rows of k at a time lie in workgroup memory as
// vectors of four rows of a or four columns of b, so that the inner loop loads vectors only. Each
// invocation moves one block of 4 x 4 a turn, and has the next turn's in flight while it computes.
// Needs gemm_operands.wgsl.

const ROWS4 = 16u * ROW_BLOCKS;
const COLUMNS4 = 16u * COLUMN_BLOCKS;
const A_MOVERS = ROWS4 * DEPTH / 4u;
const B_MOVERS = COLUMNS4 * DEPTH / 4u;

var<workgroup> a_tile: array<vec4<f32>, DEPTH * ROWS4>;
var<workgroup> b_tile: array<vec4<f32>, DEPTH * COLUMNS4>;

// Which block of a tile of [DEPTH, width4] a mover moves: (k / 4, place / 4). Neighbours follow the
// direction that is contiguous in memory.
fn block_of(mover: u32, width4: u32, along_k: bool) -> vec2<u32> {
    if (along_k) {
        return vec2<u32>(mover % (DEPTH / 4u), mover / (DEPTH / 4u));
    }
    return vec2<u32>(mover / width4, mover % width4);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = p.first_row + group.y * 4u * ROWS4;
    let column = group.x * 4u * COLUMNS4;
    // Pairs of neighbours share x, and pairs of pairs y: a warp then reads each vector of a tile
    // twice, which takes half the time of reading a row of 16.
    let x = lane / 2u % 16u;
    let y = lane / 32u * 2u + lane % 2u;
    // Only the first row of tiles writes the sums.
    let adds_up = BIAS_GRADIENT && row == 0u;
    let moves_a = lane < A_MOVERS;
    let moves_b = !moves_a && lane < A_MOVERS + B_MOVERS;
    let a_block = block_of(lane, ROWS4, !A_TRANSPOSED);
    let b_block = block_of(lane - A_MOVERS, COLUMNS4, B_TRANSPOSED);

    var acc: array<array<mat4x4<f32>, COLUMN_BLOCKS>, ROW_BLOCKS>;
    var sums: array<vec4<f32>, COLUMN_BLOCKS>;
    var moving: mat4x4<f32>;
    if (moves_a) {
        moving = a_by_k(row + 4u * a_block.y, 4u * a_block.x);
    }
    if (moves_b) {
        moving = b_by_k(4u * b_block.x, column + 4u * b_block.y);
    }
    for (var k = 0u; k < p.k; k += DEPTH) {
        for (var i = 0u; i < 4u; i++) {
            if (moves_a) {
                a_tile[(4u * a_block.x + i) * ROWS4 + a_block.y] = moving[i];
            }
            if (moves_b) {
                b_tile[(4u * b_block.x + i) * COLUMNS4 + b_block.y] = moving[i];
            }
        }
        workgroupBarrier();
        if (moves_a) {
            moving = a_by_k(row + 4u * a_block.y, k + DEPTH + 4u * a_block.x);
        }
        if (moves_b) {
            moving = b_by_k(k + DEPTH + 4u * b_block.x, column + 4u * b_block.y);
        }
        for (var t = 0u; t < DEPTH; t++) {
            var v: array<vec4<f32>, COLUMN_BLOCKS>;
            for (var j = 0u; j < COLUMN_BLOCKS; j++) {
                v[j] = b_tile[t * COLUMNS4 + x + 16u * j];
                if (adds_up) {
                    sums[j] += v[j];
                }
            }
            for (var i = 0u; i < ROW_BLOCKS; i++) {
                let u = a_tile[t * ROWS4 + y + 16u * i];
                for (var j = 0u; j < COLUMN_BLOCKS; j++) {
                    acc[i][j] += mat4x4<f32>(v[j] * u.x, v[j] * u.y, v[j] * u.z, v[j] * u.w);
                }
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < COLUMN_BLOCKS; j++) {
        let own_column = column + 4u * (x + 16u * j);
        for (var i = 0u; i < ROW_BLOCKS; i++) {
            finish(row + 4u * (y + 16u * i), own_column, acc[i][j]);
        }
        if (adds_up && y == 0u) {
            finish_bias(own_column, sums[j]);
        }
    }
}
