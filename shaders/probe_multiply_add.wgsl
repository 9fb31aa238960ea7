// Multiply-adds in registers, for the most that the device can compute: 8 chains of packs to an
// invocation, so that none waits for its own last result, and nothing of memory but the end.

@group(0) @binding(0) var<storage, read_write> y: array<pack>;

struct Params {
    packs: u32,
    rounds: u32,
    // Unknown to the compiler, which would work out the sum otherwise.
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
