// Matrix product by one subgroup of WG invocations, four or eight: each computes 4 * COLUMN_BLOCKS
// columns of WG * ROW_BLOCKS rows. One invocation loads a row of a and shuffles it to the others.
// This suits software adapters, whose subgroup is a CPU vector register: they access memory lane
// by lane there, which costs far more than a multiplication. Needs gemm_operands.wgsl.

// Groups of four rows in a subgroup.
const QUADS = WG / 4u;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = p.first_row + group.y * WG * ROW_BLOCKS;
    let column = (group.x * WG + lane) * 4u * COLUMN_BLOCKS;
    // Only the first row of tiles sums the columns of b.
    let sums_columns = BIAS_GRADIENT && row == 0u;
    var acc: array<array<array<mat4x4<f32>, COLUMN_BLOCKS>, QUADS>, ROW_BLOCKS>;
    var sums: array<vec4<f32>, COLUMN_BLOCKS>;
    for (var k = 0u; k < p.k; k += 4u) {
        var y: array<mat4x4<f32>, COLUMN_BLOCKS>;
        for (var j = 0u; j < COLUMN_BLOCKS; j++) {
            y[j] = b_by_k(k, column + 4u * j);
            // unroll
            for (var i = 0u; i < 4u; i++) {
                y[j][i] = within_k(y[j][i], vec4<u32>(k + i));
            }
            if (sums_columns) {
                sums[j] += (y[j][0] + y[j][1]) + (y[j][2] + y[j][3]);
            }
        }
        for (var i = 0u; i < ROW_BLOCKS; i++) {
            // Each invocation loads one row of the WG rows by 4 k.
            var loaded: vec4<f32>;
            var up = vec4<f32>();
            if (A_TRANSPOSED) {
                let at_row = row + i * WG + lane / 4u * 4u;
                loaded = a_nearest(false, k + lane % 4u, at_row, p.k, p.m);
                if (LEFT_GATED) {
                    up = a_nearest(true, k + lane % 4u, at_row, p.k, p.m);
                }
                loaded = within_k(activated(loaded, up), vec4<u32>(k + lane % 4u));
            } else {
                loaded = a_nearest(false, row + i * WG + lane, k, p.m, p.k);
                if (LEFT_GATED) {
                    up = a_nearest(true, row + i * WG + lane, k, p.m, p.k);
                }
                loaded = within_k(activated(loaded, up), k + vec4<u32>(0u, 1u, 2u, 3u));
            }
            for (var h = 0u; h < QUADS; h++) {
                var x = mat4x4<f32>(
                    subgroupShuffle(loaded, 4u * h),
                    subgroupShuffle(loaded, 4u * h + 1u),
                    subgroupShuffle(loaded, 4u * h + 2u),
                    subgroupShuffle(loaded, 4u * h + 3u),
                );
                if (A_TRANSPOSED) {
                    x = transpose(x);
                }
                for (var j = 0u; j < COLUMN_BLOCKS; j++) {
                    // Column r of x is row r of a: column r of y * x is its product with the
                    // columns of b that y holds.
                    acc[i][h][j] += y[j] * x;
                }
            }
        }
    }
    for (var j = 0u; j < COLUMN_BLOCKS; j++) {
        for (var i = 0u; i < ROW_BLOCKS; i++) {
            for (var h = 0u; h < QUADS; h++) {
                write_block(row + i * WG + 4u * h, column + 4u * j, acc[i][h][j]);
            }
        }
        if (sums_columns) {
            write_column_sums(column + 4u * j, sums[j]);
        }
    }
}
