// The dropout mask: whether an element is kept is a hash of where it falls.

// The 32-bit finaliser that Wellons' hash prospector found ("lowbias32").
fn mix32(seed: u32) -> u32 {
    var x = seed;
    x = (x ^ (x >> 16u)) * 0x7feb352du;
    x = (x ^ (x >> 15u)) * 0x846ca68bu;
    return x ^ (x >> 16u);
}

struct Mask {
    key0: u32,
    key1: u32,
    // The number of the micro-batch's first sequence in the global batch.
    first_sequence: u32,
    // A hash whose upper 24 bits are below this is dropped.
    threshold: u32,
    // What a kept element is multiplied with.
    scale: f32,
}

fn sequence_key(mask: Mask, sequence: u32) -> u32 {
    return mix32(mix32((mask.first_sequence + sequence) ^ mask.key0) ^ mask.key1);
}

// Zero or the scale, for element `index` of the sequence with this key.
fn keep(mask: Mask, key: u32, index: u32) -> f32 {
    let hash = mix32(mix32(index ^ key) ^ mask.key1) >> 8u;
    return select(0.0, mask.scale, hash >= mask.threshold);
}
