// How the invocations of a workgroup share rows, two of SIZE packs and two numbers for each
// position: through workgroup memory, TILE positions at a time.

const STAGED = true;

var<workgroup> first_tile: array<pack, TILE * SIZE>;
var<workgroup> second_tile: array<pack, TILE * SIZE>;
var<workgroup> numbers_tile: array<vec2<f32>, TILE>;

// Pack i of the tile's rows.
fn put_rows(i: u32, first: pack, second: pack) {
    first_tile[i] = first;
    second_tile[i] = second;
}

fn put_numbers(i: u32, numbers: vec2<f32>) {
    numbers_tile[i] = numbers;
}

// Pack d of the first row at `place` in the tile. What the invocation itself loaded is not needed.
fn first_row(own: pack, lane: u32, place: u32, d: u32) -> pack {
    return first_tile[place * SIZE + d];
}

fn second_row(own: pack, lane: u32, place: u32, d: u32) -> pack {
    return second_tile[place * SIZE + d];
}

fn numbers_of(own: vec2<f32>, lane: u32, place: u32) -> vec2<f32> {
    return numbers_tile[place];
}
