// Computes dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = dy * gamma, added to what dx
// holds if p.accumulates, and the partial sums of d_gamma and d_beta over p.rows_per_group rows. The teams
// of a workgroup take its rows in turn, ROWS at a time, and keep both sums in registers, so that dy and x
// are read once. If WHOLE, each team has as many rows: without a condition, compilers leave the loads ahead
// where they are. If RMS, neither x nor g has its mean subtracted, and d_beta is 0. Needs
// layer_norm_rows.wgsl and, for rows of teams, sums_of_teams.wgsl.

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
    @builtin(local_invocation_index) invocation: u32,
) {
    let lane = invocation % TEAM;
    let team = invocation / TEAM;
    let size = f32(WIDTH * VEC);
    let first = group.x * p.rows_per_group;
    let last = min(first + p.rows_per_group, p.rows);
    var weights: array<pack, COLUMNS>;
    if (!AHEAD) {
        for (var i = 0u; i < COLUMNS; i++) {
            weights[i] = gamma[nearest(i * TEAM + lane)];
        }
    }
    var d_gamma: array<pack, COLUMNS>;
    var d_beta: array<pack, COLUMNS>;
    // The row of the next turn, if AHEAD. It is copied element by element, because a compiler (RADV, Mesa
    // 25.0) confuses structs that are copied as a whole.
    var next_dy: array<activation, COLUMNS>;
    var next_x: array<activation, COLUMNS>;
    var next_mean = 0.0;
    var next_rstd = 0.0;
    if (AHEAD) {
        let row = min(first + team, last - 1u);
        // unroll
        for (var i = 0u; i < COLUMNS; i++) {
            let at = row * WIDTH + nearest(i * TEAM + lane);
            next_dy[i] = dy[at];
            next_x[i] = x[at];
        }
        if (!RMS) {
            next_mean = mean[row];
        }
        next_rstd = rstd[row];
    }
    for (var begin = first; begin < last; begin += TEAMS * ROWS) {
        let own = begin + team * ROWS;
        // All loads come first and have no condition, or they would wait for one another. Past the end,
        // they read the last column or row again.
        var row_dy: array<array<activation, COLUMNS>, ROWS>;
        var row_x: array<array<activation, COLUMNS>, ROWS>;
        var means: array<f32, ROWS>;
        var scales: array<f32, ROWS>;
        if (!AHEAD) {
            for (var r = 0u; r < ROWS; r++) {
                let row = min(own + r, last - 1u);
                for (var i = 0u; i < COLUMNS; i++) {
                    let at = row * WIDTH + nearest(i * TEAM + lane);
                    row_dy[r][i] = dy[at];
                    row_x[r][i] = x[at];
                }
                if (!RMS) {
                    means[r] = mean[row];
                }
                scales[r] = rstd[row];
            }
        }
        // A team with the sums and two rows in registers has no room for the weights.
        if (AHEAD) {
            // unroll
            for (var i = 0u; i < COLUMNS; i++) {
                weights[i] = gamma[nearest(i * TEAM + lane)];
            }
        }
        // A team loads what dx holds even if it does not use it.
        var previous: array<array<activation, COLUMNS>, ROWS>;
        if (AHEAD || p.accumulates != 0u) {
            for (var r = 0u; r < ROWS; r++) {
                // unroll
                for (var i = 0u; i < COLUMNS; i++) {
                    let row = min(own + r, last - 1u);
                    previous[r][i] = dx[row * WIDTH + nearest(i * TEAM + lane)];
                }
            }
        }
        // Loads ahead come last, because who waits for a load waits for all before it.
        if (AHEAD) {
            let row = min(own + TEAMS, last - 1u);
            // unroll
            for (var i = 0u; i < COLUMNS; i++) {
                row_dy[0][i] = next_dy[i];
                row_x[0][i] = next_x[i];
                let at = row * WIDTH + nearest(i * TEAM + lane);
                next_dy[i] = dy[at];
                next_x[i] = x[at];
            }
            means[0] = next_mean;
            scales[0] = next_rstd;
            if (!RMS) {
                next_mean = mean[row];
            }
            next_rstd = rstd[row];
        }
        var g: array<array<pack, COLUMNS>, ROWS>;
        var x_hat: array<array<pack, COLUMNS>, ROWS>;
        var sums: array<vec2<f32>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            let mu = select(means[r], 0.0, RMS);
            var sum_g = pack();
            var sum_gx = pack();
            // unroll
            for (var i = 0u; i < COLUMNS; i++) {
                let column = i * TEAM + lane;
                let exists = in_row(column) && (WHOLE || own + r < last);
                let slope = select(pack(), pack(row_dy[r][i]), exists);
                x_hat[r][i] = (pack(row_x[r][i]) - mu) * scales[r];
                g[r][i] = slope * weights[i];
                d_gamma[i] += slope * x_hat[r][i];
                if (!RMS) {
                    d_beta[i] += slope;
                }
                sum_g += g[r][i];
                sum_gx += g[r][i] * x_hat[r][i];
            }
            sums[r] = vec2(select(sum_of(sum_g), 0.0, RMS), sum_of(sum_gx));
        }
        for (var r = 0u; r < ROWS; r++) {
            let averages = team_sum2(sums[r], invocation) / size;
            if (WHOLE || own + r < last) {
                // unroll
                for (var i = 0u; i < COLUMNS; i++) {
                    let column = i * TEAM + lane;
                    if (in_row(column)) {
                        let slope = scales[r] * (g[r][i] - averages.x - x_hat[r][i] * averages.y);
                        let old = select(pack(), pack(previous[r][i]), p.accumulates != 0u);
                        dx[(own + r) * WIDTH + column] = to_activation(slope + old);
                    }
                }
            }
        }
    }
    // unroll
    for (var i = 0u; i < COLUMNS; i++) {
        let column = i * TEAM + lane;
        let at = 2u * group.x * WIDTH + column;
        if (TEAMS > 1u) {
            // The first team has the sums for d_gamma, the second those for d_beta.
            let sum = sum_of_teams(d_gamma[i], d_beta[i], invocation);
            if (team < 2u && in_row(column)) {
                partial[at + team * WIDTH] = sum;
            }
        } else if (in_row(column)) {
            partial[at] = d_gamma[i];
            partial[at + WIDTH] = d_beta[i];
        }
    }
}
