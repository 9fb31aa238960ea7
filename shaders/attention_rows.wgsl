// Shared by the attention kernels: their parameters, and the addresses of rows in packed qkv,
// [batch * time, (heads + 2 * kv_heads) * size]. SIZE is the size of a head in packs. Needs
// dropout_mask.wgsl.

struct Params {
    time: u32,
    heads: u32,
    // The heads of keys and of values, each shared by heads / kv_heads heads of queries.
    kv_heads: u32,
    // 1 / sqrt(head size).
    scale: f32,
    // The number of workgroups for a pair of a sequence and a head.
    blocks: u32,
    // The index of this dispatch's first pair. The pass for keys has pairs of heads of keys.
    first_pair: u32,
    @align(16) mask: Mask,
}

// Stands for minus infinity. It is finite, because the difference of two infinities is NaN.
const LOWEST = -3.0e38;

// Returns the start of a row in packed qkv: of a head of queries, which come first, then keys, then values.
// Positions past the end read the last row, and the kernels mask the result.
fn packed_at(p: Params, sequence: u32, position: u32, head: u32) -> u32 {
    let row = sequence * p.time + min(position, p.time - 1u);
    return (row * (p.heads + 2u * p.kv_heads) + head) * SIZE;
}

// Returns the start of a row in the output, [batch * time, heads * size].
fn row_at(p: Params, sequence: u32, position: u32, head: u32) -> u32 {
    let row = sequence * p.time + min(position, p.time - 1u);
    return (row * p.heads + head) * SIZE;
}
