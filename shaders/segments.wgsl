// The workgroups of each tensor, for a kernel that runs on TENSORS tensors at once.

struct Segment {
    first_group: u32,
    groups: u32,
    packs: u32,
    // A parameter of the kernel for this tensor.
    word: u32,
}
