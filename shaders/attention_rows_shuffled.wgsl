// How the invocations of a workgroup share rows: each loads the row of one position, and the
// subgroup, which is the workgroup, shuffles. There is no tile.

const STAGED = false;

fn put_rows(i: u32, first: pack, second: pack) {}

fn put_numbers(i: u32, numbers: vec2<f32>) {}

// What invocation `lane` loaded.
fn first_row(own: pack, lane: u32, place: u32, d: u32) -> pack {
    return subgroupShuffle(own, lane);
}

fn second_row(own: pack, lane: u32, place: u32, d: u32) -> pack {
    return subgroupShuffle(own, lane);
}

fn numbers_of(own: vec2<f32>, lane: u32, place: u32) -> vec2<f32> {
    return subgroupShuffle(own, lane);
}
