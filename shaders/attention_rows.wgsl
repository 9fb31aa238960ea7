// What the attention kernels have in common: how packed qkv, [batch * time, 3 * heads * size], is
// read. SIZE is a head's size in packs. Needs dropout_mask.wgsl.

struct Params {
    time: u32,
    heads: u32,
    // 1 / sqrt(head size).
    scale: f32,
    // Blocks of WG * ROWS positions.
    blocks: u32,
    // The number of the dispatch's first pair of a sequence and a head.
    first_pair: u32,
    @align(16) mask: Mask,
}

const LEAST = -3.0e38;

// Where the row of a position begins in packed qkv; part 0 is the query, 1 the key, 2 the value.
// Positions from time on stand for the last one: what is read there is masked.
fn packed_at(p: Params, sequence: u32, position: u32, head: u32, third: u32) -> u32 {
    let row = sequence * p.time + min(position, p.time - 1u);
    return ((row * 3u + third) * p.heads + head) * SIZE;
}

// Where it begins in the output, [batch * time, heads * size].
fn row_at(p: Params, sequence: u32, position: u32, head: u32) -> u32 {
    let row = sequence * p.time + min(position, p.time - 1u);
    return (row * p.heads + head) * SIZE;
}
