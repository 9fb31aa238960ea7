// The dropout mask. A hash of seed, step, layer, sequence and index decides whether an element is
// kept, so no mask is stored and the backward pass computes the same one.

// Mixes 32 bits: "lowbias32", found by Chris Wellons' hash prospector.
fn mix32(seed: u32) -> u32 {
    var x = seed;
    x = (x ^ (x >> 16u)) * 0x7feb352du;
    x = (x ^ (x >> 15u)) * 0x846ca68bu;
    return x ^ (x >> 16u);
}

struct Mask {
    key0: u32,
    key1: u32,
    // The index of the micro-batch's first sequence in the global batch.
    first_sequence: u32,
    // An element is dropped if the upper 24 bits of its hash are below this threshold.
    threshold: u32,
    // The factor of kept elements, 1 / (1 - rate).
    scale: f32,
}

// Returns the part of the hash that a sequence's elements share.
fn sequence_key(mask: Mask, sequence: u32) -> u32 {
    return mix32(mix32((mask.first_sequence + sequence) ^ mask.key0) ^ mask.key1);
}

// Returns the factor of element `index` in the sequence with this key: 0 or the scale.
fn dropout_factor(mask: Mask, key: u32, index: u32) -> f32 {
    let hash = mix32(mix32(index ^ key) ^ mask.key1) >> 8u;
    return select(0.0, mask.scale, hash >= mask.threshold);
}
