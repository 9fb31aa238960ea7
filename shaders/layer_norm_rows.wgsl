// What the kernels of a layer norm share: where the packs of a row are. Needs rows_of_teams.wgsl or
// rows_of_workgroups.wgsl.

const TEAMS = WG / TEAM;

// Returns false for the columns by which the team is longer than the end of a row.
fn in_row(column: u32) -> bool {
    return WIDTH % TEAM == 0u || column < WIDTH;
}

// Returns the column to load instead, which is in the row.
fn nearest(column: u32) -> u32 {
    return select(min(column, WIDTH - 1u), column, WIDTH % TEAM == 0u);
}
