// Shares rows within a workgroup through workgroup memory, TILE positions at a time: for each
// position two rows of SIZE packs, and in the backward pass two statistics.

const STAGED = true;

var<workgroup> first_tile: array<pack, TILE * SIZE>;
var<workgroup> second_tile: array<pack, TILE * SIZE>;
var<workgroup> statistics_tile: array<vec2<f32>, TILE>;

// Stores pack i of the tile's rows.
fn store_rows(i: u32, first: pack, second: pack) {
    first_tile[i] = first;
    second_tile[i] = second;
}

fn store_statistics(i: u32, statistics: vec2<f32>) {
    statistics_tile[i] = statistics;
}

// Returns pack d of the first row at `tile_row`. `loaded` and `lane` serve shuffles only.
fn first_row(loaded: pack, lane: u32, tile_row: u32, d: u32) -> pack {
    return first_tile[tile_row * SIZE + d];
}

fn second_row(loaded: pack, lane: u32, tile_row: u32, d: u32) -> pack {
    return second_tile[tile_row * SIZE + d];
}

fn softmax_statistics(loaded: vec2<f32>, lane: u32, tile_row: u32) -> vec2<f32> {
    return statistics_tile[tile_row];
}
