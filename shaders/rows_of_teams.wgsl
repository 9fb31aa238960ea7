// Each row belongs to a team of TEAM neighbouring invocations, which have its packs in turn. A part of a
// team, PART invocations, is in one subgroup whatever size the driver chooses, and adds up by shuffles. A
// team of one part needs no barrier, so the teams of a workgroup run at their own pace. Sums have a fixed
// order, and the same bits in the whole team.

// A team loads its next row while it adds up the present one.
const ROWS = 1u;
const AHEAD = true;
// The parts of a team exchange their sums through workgroup memory.
const PARTS = TEAM / PART;

var<workgroup> parts: array<vec2<f32>, WG / PART>;

// Returns both sums over a row to every invocation of its team. The whole workgroup must call it.
fn team_sum2(value: vec2<f32>, invocation: u32) -> vec2<f32> {
    var sum = value;
    // unroll
    for (var i = 0u; i < LEVELS; i++) {
        sum += subgroupShuffleXor(sum, 1u << i);
    }
    if (PARTS > 1u) {
        parts[invocation / PART] = sum;
        workgroupBarrier();
        let first = invocation / TEAM * PARTS;
        sum = parts[first];
        for (var i = 1u; i < PARTS; i++) {
            sum += parts[first + i];
        }
        // Every invocation must have read before the next call writes.
        workgroupBarrier();
    }
    return sum;
}
