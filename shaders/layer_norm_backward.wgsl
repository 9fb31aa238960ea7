// Computes dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = dy * gamma, added to what dx
// holds if p.accumulates, and the partial sums of d_gamma and d_beta over p.rows_per_group rows. A
// workgroup takes its rows in order, ROWS at a time, and keeps both sums in registers, so that dy and x
// are read once. If RMS, neither x nor g has its mean subtracted, and d_beta is 0. Needs reduce.wgsl.

const COLUMNS = (WIDTH + WG - 1u) / WG;
// An invocation loads up to four packs of each factor at a time.
const ROWS = max(4u / COLUMNS, 1u);

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

alias Rows = array<array<pack, COLUMNS>, ROWS>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let size = f32(WIDTH * VEC);
    let first = group.x * p.rows_per_group;
    let last = min(first + p.rows_per_group, p.rows);
    var weights: array<pack, COLUMNS>;
    for (var i = 0u; i < COLUMNS; i++) {
        weights[i] = gamma[min(i * WG + lane, WIDTH - 1u)];
    }
    var d_gamma: array<pack, COLUMNS>;
    var d_beta: array<pack, COLUMNS>;
    for (var begin = first; begin < last; begin += ROWS) {
        // All loads come first and have no condition, or they would wait for one another. Past the end,
        // they read the last column or row again.
        var g = Rows();
        var x_hat = Rows();
        var previous = Rows();
        for (var r = 0u; r < ROWS; r++) {
            for (var i = 0u; i < COLUMNS; i++) {
                let at = min(begin + r, last - 1u) * WIDTH + min(i * WG + lane, WIDTH - 1u);
                g[r][i] = pack(dy[at]);
                x_hat[r][i] = pack(x[at]);
            }
        }
        if (p.accumulates != 0u) {
            for (var r = 0u; r < ROWS; r++) {
                for (var i = 0u; i < COLUMNS; i++) {
                    let at = min(begin + r, last - 1u) * WIDTH + min(i * WG + lane, WIDTH - 1u);
                    previous[r][i] = pack(dx[at]);
                }
            }
        }
        var sums: array<vec2<f32>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            let row = min(begin + r, last - 1u);
            var mu = 0.0;
            if (!RMS) {
                mu = mean[row];
            }
            let scale = rstd[row];
            var sum_g = pack();
            var sum_gx = pack();
            for (var i = 0u; i < COLUMNS; i++) {
                x_hat[r][i] = (x_hat[r][i] - mu) * scale;
                if (i * WG + lane < WIDTH && begin + r < last) {
                    d_gamma[i] += g[r][i] * x_hat[r][i];
                    if (!RMS) {
                        d_beta[i] += g[r][i];
                    }
                    g[r][i] *= weights[i];
                    sum_g += g[r][i];
                    sum_gx += g[r][i] * x_hat[r][i];
                }
            }
            sums[r] = vec2(select(sum_of(sum_g), 0.0, RMS), sum_of(sum_gx));
        }
        for (var r = 0u; r < ROWS; r++) {
            let means = workgroup_sum2(sums[r], lane) / size;
            for (var i = 0u; i < COLUMNS; i++) {
                let column = i * WG + lane;
                if (column < WIDTH && begin + r < last) {
                    let own = rstd[begin + r] * (g[r][i] - means.x - x_hat[r][i] * means.y);
                    dx[(begin + r) * WIDTH + column] = to_activation(own + previous[r][i]);
                }
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
