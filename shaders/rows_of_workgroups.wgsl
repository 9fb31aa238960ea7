// Each row belongs to a workgroup. Needs reduce.wgsl.

const TEAM = WG;
const COLUMNS = (WIDTH + TEAM - 1u) / TEAM;
// An invocation loads up to four packs of a factor at a time.
const ROWS = max(4u / COLUMNS, 1u);
const AHEAD = false;

// Returns both sums over a row to every invocation of its team. The whole workgroup must call it.
fn team_sum2(value: vec2<f32>, invocation: u32) -> vec2<f32> {
    return workgroup_sum2(value, invocation);
}

// There is one team, so nothing is left to add.
fn sum_of_teams(a: pack, b: pack, invocation: u32) -> pack {
    return a;
}
