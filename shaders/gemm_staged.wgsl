// Matrix product in tiles of 64 * ROW_BLOCKS x 64 * COLUMN_BLOCKS by 256 invocations, 16 x 16, each
// with ROW_BLOCKS x COLUMN_BLOCKS blocks of 4 x 4 in registers. Workgroup memory holds DEPTH steps
// of k at a time, as vectors of four rows of a or four columns of b, so the inner loop loads
// vectors only. Each invocation loads at most one block of 4 x 4 per iteration, and the next one
// while it computes. Needs gemm_operands.wgsl.

const ROWS4 = 16u * ROW_BLOCKS;
const COLUMNS4 = 16u * COLUMN_BLOCKS;
const A_LOADERS = ROWS4 * DEPTH / 4u;
const B_LOADERS = COLUMNS4 * DEPTH / 4u;

var<workgroup> a_tile: array<vec4<f32>, DEPTH * ROWS4>;
var<workgroup> b_tile: array<vec4<f32>, DEPTH * COLUMNS4>;

// Returns the block of a tile [DEPTH, width4] that a loader loads: (k / 4, row or column / 4).
// Neighbouring loaders follow the direction that is contiguous in memory.
fn block_of(loader: u32, width4: u32, along_k: bool) -> vec2<u32> {
    if (along_k) {
        return vec2<u32>(loader % (DEPTH / 4u), loader / (DEPTH / 4u));
    }
    return vec2<u32>(loader / width4, loader % width4);
}

// Returns the place of a vector in row k of a tile. Loaders along k store to the same place in rows
// that are multiples of four apart. The exclusive or spreads these over the banks.
fn place(k: u32, at: u32, along_k: bool) -> u32 {
    return select(at, at ^ (k / 4u % 8u), along_k);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = p.first_row + group.y * 4u * ROWS4;
    let column = group.x * 4u * COLUMNS4;
    // Neighbouring pairs share x and alternate in y. The reads of a warp then come in equal pairs,
    // which takes half the time of a layout in rows of 16.
    let x = lane / 2u % 16u;
    let y = lane / 32u * 2u + lane % 2u;
    // Only the first row of tiles sums the columns of b.
    let sums_columns = BIAS_GRADIENT && row == 0u;
    let loads_a = lane < A_LOADERS;
    let loads_b = !loads_a && lane < A_LOADERS + B_LOADERS;
    let a_block = block_of(lane, ROWS4, !A_TRANSPOSED);
    let b_block = block_of(lane - A_LOADERS, COLUMNS4, B_TRANSPOSED);

    let a_at = 4u * a_block.x * ROWS4 + place(4u * a_block.x, a_block.y, !A_TRANSPOSED);
    let b_at = 4u * b_block.x * COLUMNS4 + place(4u * b_block.x, b_block.y, B_TRANSPOSED);

    var acc: array<array<mat4x4<f32>, COLUMN_BLOCKS>, ROW_BLOCKS>;
    var sums: array<vec4<f32>, COLUMN_BLOCKS>;
    // The block as loaded: anything else is done when it is stored, so that nothing waits for it before.
    var in_flight: mat4x4<f32>;
    var up_in_flight: mat4x4<f32>;
    if (loads_a) {
        in_flight = a_by_k(false, row + 4u * a_block.y, 4u * a_block.x);
        if (LEFT_GATED) {
            up_in_flight = a_by_k(true, row + 4u * a_block.y, 4u * a_block.x);
        }
    }
    if (loads_b) {
        in_flight = b_by_k(4u * b_block.x, column + 4u * b_block.y);
    }
    for (var k = 0u; k < p.k; k += DEPTH) {
        if (loads_a) {
            // unroll
            for (var i = 0u; i < 4u; i++) {
                let at_k = vec4<u32>(k + 4u * a_block.x + i);
                a_tile[a_at + i * ROWS4] = within_k(activated(in_flight[i], up_in_flight[i]), at_k);
            }
        }
        if (loads_b) {
            // unroll
            for (var i = 0u; i < 4u; i++) {
                let at_k = vec4<u32>(k + 4u * b_block.x + i);
                b_tile[b_at + i * COLUMNS4] = within_k(in_flight[i], at_k);
            }
        }
        workgroupBarrier();
        if (loads_a) {
            in_flight = a_by_k(false, row + 4u * a_block.y, k + DEPTH + 4u * a_block.x);
            if (LEFT_GATED) {
                up_in_flight = a_by_k(true, row + 4u * a_block.y, k + DEPTH + 4u * a_block.x);
            }
        }
        if (loads_b) {
            in_flight = b_by_k(k + DEPTH + 4u * b_block.x, column + 4u * b_block.y);
        }
        for (var t = 0u; t < DEPTH; t += 4u) {
            // The places of four steps of k differ by constants.
            // unroll
            for (var s = 0u; s < 4u; s++) {
                var v: array<vec4<f32>, COLUMN_BLOCKS>;
                // unroll
                for (var j = 0u; j < COLUMN_BLOCKS; j++) {
                    v[j] = b_tile[(t + s) * COLUMNS4 + place(t, x + 16u * j, B_TRANSPOSED)];
                }
                // unroll
                for (var i = 0u; i < ROW_BLOCKS; i++) {
                    let u = a_tile[(t + s) * ROWS4 + place(t, y + 16u * i, !A_TRANSPOSED)];
                    // unroll
                    for (var j = 0u; j < COLUMN_BLOCKS; j++) {
                        acc[i][j] += mat4x4<f32>(v[j] * u.x, v[j] * u.y, v[j] * u.z, v[j] * u.w);
                    }
                }
            }
        }
        for (var t = 0u; sums_columns && t < DEPTH; t++) {
            // unroll
            for (var j = 0u; j < COLUMN_BLOCKS; j++) {
                sums[j] += b_tile[t * COLUMNS4 + place(t, x + 16u * j, B_TRANSPOSED)];
            }
        }
        workgroupBarrier();
    }
    // unroll
    for (var j = 0u; j < COLUMN_BLOCKS; j++) {
        let first_column = column + 4u * (x + 16u * j);
        // unroll
        for (var i = 0u; i < ROW_BLOCKS; i++) {
            write_block(row + 4u * (y + 16u * i), first_column, acc[i][j]);
        }
        if (sums_columns && y == 0u) {
            write_column_sums(first_column, sums[j]);
        }
    }
}
