// The parameters of matrix products out = a b, with out [m, n].

struct Params {
    m: u32,
    n: u32,
    k: u32,
    // This dispatch computes rows first_row to last_row (exclusive) of out.
    first_row: u32,
    last_row: u32,
    // Offsets of the matrices in their buffers, in elements.
    a_offset: u32,
    b_offset: u32,
    out_offset: u32,
    // Elements from one row to the next: a and out may be columns of wider matrices.
    a_stride: u32,
    out_stride: u32,
    // Only on cooperative matrices: the tiles of first_row to last_row. The workgroups of a split
    // follow the workgroups of the split before.
    row_tiles: u32,
    // The number of ranges that k is split into, and the elements of each range except the last.
    splits: u32,
    split_depth: u32,
}
