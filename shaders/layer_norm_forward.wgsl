// Computes y = (x - mean) * rstd * gamma + beta, one team per row. The row is read once and held in
// registers. If RMS, there is no mean. Needs layer_norm_rows.wgsl.

@group(0) @binding(0) var<storage, read_write> x: array<activation>;
@group(0) @binding(1) var<storage, read_write> gamma: array<pack>;
@group(0) @binding(2) var<storage, read_write> beta: array<pack>;
@group(0) @binding(3) var<storage, read_write> y: array<activation>;
@group(0) @binding(4) var<storage, read_write> mean: array<f32>;
@group(0) @binding(5) var<storage, read_write> rstd: array<f32>;

struct Params {
    rows: u32,
    eps: f32,
}
@group(0) @binding(6) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let lane = invocation % TEAM;
    let index = (group.x + group.y * groups.x) * TEAMS + invocation / TEAM;
    // Teams without a row read the last one, because the whole workgroup takes part in the sums.
    let row = min(index, p.rows - 1u);
    let base = row * WIDTH;
    let size = f32(WIDTH * VEC);
    var values: array<pack, COLUMNS>;
    // unroll
    for (var i = 0u; i < COLUMNS; i++) {
        values[i] = pack(x[base + nearest(i * TEAM + lane)]);
    }
    var mu = 0.0;
    if (!RMS) {
        var sum = pack();
        // unroll
        for (var i = 0u; i < COLUMNS; i++) {
            if (in_row(i * TEAM + lane)) {
                sum += values[i];
            }
        }
        mu = team_sum2(vec2(sum_of(sum)), invocation).x / size;
    }
    // This uses centred values, because E[x^2] - E[x]^2 would cancel.
    var squares = pack();
    // unroll
    for (var i = 0u; i < COLUMNS; i++) {
        values[i] -= mu;
        if (in_row(i * TEAM + lane)) {
            squares += values[i] * values[i];
        }
    }
    let scale = inverseSqrt(team_sum2(vec2(sum_of(squares)), invocation).x / size + p.eps);
    if (index >= p.rows) {
        return;
    }
    // unroll
    for (var i = 0u; i < COLUMNS; i++) {
        let column = i * TEAM + lane;
        if (in_row(column)) {
            var value = values[i] * scale * gamma[column];
            if (BETA) {
                value += beta[column];
            }
            y[base + column] = to_activation(value);
        }
    }
    if (lane == 0u) {
        if (!RMS) {
            mean[row] = mu;
        }
        rstd[row] = scale;
    }
}
