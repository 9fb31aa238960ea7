// Computes dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = dy * gamma, added to what dx
// holds if p.accumulates, and the partial sums of d_gamma and d_beta over p.rows_per_group rows. A
// workgroup loops over its rows in order and keeps both sums in registers, so that dy and x are read
// once. Needs reduce.wgsl.

const COLUMNS = (WIDTH + WG - 1u) / WG;

@group(0) @binding(0) var<storage, read_write> dy: array<activation>;
@group(0) @binding(1) var<storage, read_write> x: array<activation>;
@group(0) @binding(2) var<storage, read_write> gamma: array<pack>;
@group(0) @binding(3) var<storage, read_write> mean: array<f32>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<activation>;
// [groups, 2, WIDTH]: d_gamma and d_beta of each workgroup's rows.
@group(0) @binding(6) var<storage, read_write> partial: array<pack>;

struct Params {
    rows: u32,
    rows_per_group: u32,
    // 1 or 0. This is no constant, so that there is one kernel less to compile.
    accumulates: u32,
}
@group(0) @binding(7) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let size = f32(WIDTH * VEC);
    let first = group.x * p.rows_per_group;
    let last = min(first + p.rows_per_group, p.rows);
    var d_gamma: array<pack, COLUMNS>;
    var d_beta: array<pack, COLUMNS>;
    for (var row = first; row < last; row++) {
        let base = row * WIDTH;
        let mu = mean[row];
        let scale = rstd[row];
        var x_hat: array<pack, COLUMNS>;
        var g: array<pack, COLUMNS>;
        var sum_g = pack();
        var sum_gx = pack();
        for (var i = 0u; i < COLUMNS; i++) {
            let column = i * WG + lane;
            if (column < WIDTH) {
                let d = pack(dy[base + column]);
                x_hat[i] = (pack(x[base + column]) - mu) * scale;
                g[i] = d * gamma[column];
                sum_g += g[i];
                sum_gx += g[i] * x_hat[i];
                d_gamma[i] += d * x_hat[i];
                d_beta[i] += d;
            }
        }
        let mean_g = workgroup_sum(sum_of(sum_g), lane) / size;
        let mean_gx = workgroup_sum(sum_of(sum_gx), lane) / size;
        for (var i = 0u; i < COLUMNS; i++) {
            let column = i * WG + lane;
            if (column < WIDTH) {
                var value = scale * (g[i] - mean_g - x_hat[i] * mean_gx);
                if (p.accumulates != 0u) {
                    value += pack(dx[base + column]);
                }
                dx[base + column] = to_activation(value);
            }
        }
    }
    for (var i = 0u; i < COLUMNS; i++) {
        let column = i * WG + lane;
        if (column < WIDTH) {
            partial[group.x * 2u * WIDTH + column] = d_gamma[i];
            partial[(group.x * 2u + 1u) * WIDTH + column] = d_beta[i];
        }
    }
}
