// Shared by the attention kernels: their parameters, and the addresses of rows in packed qkv,
// [batch * time, 3 * heads * size]. SIZE is the size of a head in packs. Needs dropout_mask.wgsl.

struct Params {
    time: u32,
    heads: u32,
    // 1 / sqrt(head size).
    scale: f32,
    // The number of workgroups for a pair of a sequence and a head.
    blocks: u32,
    // The index of this dispatch's first pair.
    first_pair: u32,
    @align(16) mask: Mask,
}

// Stands for minus infinity. It is finite, because the difference of two infinities is NaN.
const LOWEST = -3.0e38;

// Returns the start of a row in packed qkv: the query for component 0, the key for 1, the value for
// 2. Positions past the end read the last row, and the kernels mask the result.
fn packed_at(p: Params, sequence: u32, position: u32, head: u32, component: u32) -> u32 {
    let row = sequence * p.time + min(position, p.time - 1u);
    return ((row * 3u + component) * p.heads + head) * SIZE;
}

// Returns the start of a row in the output, [batch * time, heads * size].
fn row_at(p: Params, sequence: u32, position: u32, head: u32) -> u32 {
    let row = sequence * p.time + min(position, p.time - 1u);
    return (row * p.heads + head) * SIZE;
}
