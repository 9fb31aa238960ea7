// The product by one subgroup of WG invocations, four or eight: each holds its own
// 4 * COLUMN_BLOCKS columns of WG * ROW_BLOCKS rows. A row of a is loaded by one invocation and
// shuffled to the others. For devices where a subgroup is a vector of the processor: memory is
// accessed lane by lane there, which costs far more than a product. Needs gemm_operands.wgsl.

const HALVES = WG / 4u;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = p.first_row + group.y * WG * ROW_BLOCKS;
    let column = (group.x * WG + lane) * 4u * COLUMN_BLOCKS;
    // Only the first row of tiles writes the sums.
    let adds_up = BIAS_GRADIENT && row == 0u;
    var acc: array<array<array<mat4x4<f32>, COLUMN_BLOCKS>, HALVES>, ROW_BLOCKS>;
    var sums: array<vec4<f32>, COLUMN_BLOCKS>;
    for (var k = 0u; k < p.k; k += 4u) {
        var y: array<mat4x4<f32>, COLUMN_BLOCKS>;
        for (var j = 0u; j < COLUMN_BLOCKS; j++) {
            y[j] = b_by_k(k, column + 4u * j);
            if (adds_up) {
                sums[j] += (y[j][0] + y[j][1]) + (y[j][2] + y[j][3]);
            }
        }
        for (var i = 0u; i < ROW_BLOCKS; i++) {
            // Each invocation one line of the WG rows by 4 k.
            var own: vec4<f32>;
            if (A_TRANSPOSED) {
                own = a4(k + lane % 4u, row + i * WG + lane / 4u * 4u, p.k, p.m);
            } else {
                own = a4(row + i * WG + lane, k, p.m, p.k);
            }
            for (var h = 0u; h < HALVES; h++) {
                var x = mat4x4<f32>(
                    subgroupShuffle(own, 4u * h),
                    subgroupShuffle(own, 4u * h + 1u),
                    subgroupShuffle(own, 4u * h + 2u),
                    subgroupShuffle(own, 4u * h + 3u),
                );
                if (A_TRANSPOSED) {
                    x = transpose(x);
                }
                for (var j = 0u; j < COLUMN_BLOCKS; j++) {
                    // Column r of x is row r of a: its products with the columns that y holds.
                    acc[i][h][j] += y[j] * x;
                }
            }
        }
    }
    for (var j = 0u; j < COLUMN_BLOCKS; j++) {
        for (var i = 0u; i < ROW_BLOCKS; i++) {
            for (var h = 0u; h < HALVES; h++) {
                finish(row + i * WG + 4u * h, column + 4u * j, acc[i][h][j]);
            }
        }
        if (adds_up) {
            finish_bias(column + 4u * j, sums[j]);
        }
    }
}
