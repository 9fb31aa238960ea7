// Shares rows within a workgroup that is one subgroup: each invocation loads the row of one
// position, and the others read it by shuffles. The functions are those of
// attention_rows_staged.wgsl; no tile is stored.

const STAGED = false;

fn store_rows(i: u32, first: pack, second: pack) {}

fn store_statistics(i: u32, statistics: vec2<f32>) {}

// Returns what invocation `lane` has loaded.
fn first_row(loaded: pack, lane: u32, tile_row: u32, d: u32) -> pack {
    return subgroupShuffle(loaded, lane);
}

fn second_row(loaded: pack, lane: u32, tile_row: u32, d: u32) -> pack {
    return subgroupShuffle(loaded, lane);
}

fn softmax_statistics(loaded: vec2<f32>, lane: u32, tile_row: u32) -> vec2<f32> {
    return subgroupShuffle(loaded, lane);
}
