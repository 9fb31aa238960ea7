// Sums over the teams of a workgroup. Needs rows_of_teams.wgsl.

var<workgroup> packs: array<array<pack, WG>, 2>;

// Adds up the values of all teams, lane by lane. Returns the sums of a to the first team, and those of b to
// the second. The whole workgroup must call it, and it must have two teams.
fn sum_of_teams(a: pack, b: pack, invocation: u32) -> pack {
    packs[0][invocation] = a;
    packs[1][invocation] = b;
    workgroupBarrier();
    var sum = pack();
    let team = invocation / TEAM;
    if (team < 2u) {
        for (var i = 0u; i < WG / TEAM; i++) {
            sum += packs[team][i * TEAM + invocation % TEAM];
        }
    }
    workgroupBarrier();
    return sum;
}
