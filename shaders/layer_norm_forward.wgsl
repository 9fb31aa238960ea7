// Computes y = (x - mean) * rstd * gamma + beta, one workgroup per row. The row is read once and
// held in registers: WIDTH packs over WG invocations. If RMS, there is no mean. Needs reduce.wgsl.

const COLUMNS = (WIDTH + WG - 1u) / WG;

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
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.x + group.y * groups.x;
    if (row >= p.rows) {
        return;
    }
    let base = row * WIDTH;
    let size = f32(WIDTH * VEC);
    var values: array<pack, COLUMNS>;
    var sum = pack();
    for (var i = 0u; i < COLUMNS; i++) {
        let column = i * WG + lane;
        if (column < WIDTH) {
            values[i] = pack(x[base + column]);
            sum += values[i];
        }
    }
    var mu = 0.0;
    if (!RMS) {
        mu = workgroup_sum(sum_of(sum), lane) / size;
    }
    // This uses centred values, because E[x^2] - E[x]^2 would cancel.
    var squares = pack();
    for (var i = 0u; i < COLUMNS; i++) {
        if (i * WG + lane < WIDTH) {
            values[i] -= mu;
            squares += values[i] * values[i];
        }
    }
    let scale = inverseSqrt(workgroup_sum(sum_of(squares), lane) / size + p.eps);
    for (var i = 0u; i < COLUMNS; i++) {
        let column = i * WG + lane;
        if (column < WIDTH) {
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
