// Runs multiply-adds in registers to measure peak arithmetic. 8 independent chains of packs per
// invocation hide the latency of each, and the kernel touches memory only at the end.

@group(0) @binding(0) var<storage, read_write> y: array<pack>;

struct Params {
    packs: u32,
    rounds: u32,
    // Parameters rather than constants, so that the compiler cannot fold the loop.
    factor: f32,
    summand: f32,
}
@group(0) @binding(1) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group.x * WG + lane;
    if (i >= p.packs) {
        return;
    }
    let factor = pack(p.factor);
    let summand = pack(p.summand);
    var chains: array<pack, 8>;
    for (var chain = 0u; chain < 8u; chain++) {
        chains[chain] = pack(f32(lane + chain));
    }
    for (var round = 0u; round < p.rounds; round++) {
        for (var chain = 0u; chain < 8u; chain++) {
            chains[chain] = fma(chains[chain], factor, summand);
        }
    }
    var sum = pack(0.0);
    for (var chain = 0u; chain < 8u; chain++) {
        sum += chains[chain];
    }
    y[i] = sum;
}
