// Shared by the attention kernels for GPUs: rows of a head, four elements at a time, and what belongs
// to a position. A kernel declares `load`, which returns pack `at` of the buffer that holds a part, and
// `store`, which writes one to its output. Needs attention_rows.wgsl.

// The parts of a position: three in packed qkv, two in [batch * time, heads * size].
const QUERY = 0u;
const KEY = 1u;
const VALUE = 2u;
const OUT = 3u;
const D_OUT = 4u;

// The size of a head in vectors of four, the last filled up with zeros.
const SIZE4 = (SIZE * VEC + 3u) / 4u;

// A sequence and a head of queries, with the head of keys that it shares.
struct Pair {
    index: u32,
    sequence: u32,
    head: u32,
    kv_head: u32,
}

fn pair_of(index: u32) -> Pair {
    let head = index % p.heads;
    return Pair(index, index / p.heads, head, head / (p.heads / p.kv_heads));
}

// Returns the pair of head `nth` of those that share the head of keys of a pair of the pass for keys.
fn sharing_pair(index: u32, nth: u32) -> Pair {
    let sequence = index / p.kv_heads;
    let kv_head = index % p.kv_heads;
    let head = kv_head * (p.heads / p.kv_heads) + nth;
    return Pair(sequence * p.heads + head, sequence, head, kv_head);
}

// Returns the place of a position's value in [batch, heads, time].
fn statistic_at(pair: Pair, position: u32) -> u32 {
    return pair.index * p.time + min(position, p.time - 1u);
}

// Returns the index of a probability in its sequence's dropout mask.
fn mask_index(pair: Pair, query: u32, key: u32) -> u32 {
    return (pair.head * p.time + query) * p.time + key;
}

// Returns the dropout factors of elements first + i * step, i < 4.
fn dropout_factors(mask_key: u32, first: u32, step: u32) -> vec4<f32> {
    return vec4<f32>(
        dropout_factor(p.mask, mask_key, first),
        dropout_factor(p.mask, mask_key, first + step),
        dropout_factor(p.mask, mask_key, first + 2u * step),
        dropout_factor(p.mask, mask_key, first + 3u * step),
    );
}

// Returns the start of a row in its buffer, in packs.
fn row_begin(pair: Pair, part: u32, position: u32) -> u32 {
    if (part == QUERY) {
        return packed_at(p, pair.sequence, position, pair.head);
    }
    if (part < OUT) {
        let head = p.heads + (part - KEY) * p.kv_heads + pair.kv_head;
        return packed_at(p, pair.sequence, position, head);
    }
    return row_at(p, pair.sequence, position, pair.head);
}

// Returns elements 4 * d to 4 * d + 4 of a row, zero from the end of the head on. Positions past
// the end read the last row, and the kernels mask the result.
fn row4(pair: Pair, part: u32, position: u32, d: u32) -> vec4<f32> {
    if (d >= SIZE4) {
        return vec4<f32>();
    }
    let begin = row_begin(pair, part, position);
    if (VEC == 4u) {
        return widen(load(part, begin + d));
    }
    let i = vec4<u32>(4u * d) + vec4<u32>(0u, 1u, 2u, 3u);
    let at = begin + min(i, vec4<u32>(SIZE - 1u));
    let v = vec4<f32>(
        widen(load(part, at.x)).x,
        widen(load(part, at.y)).x,
        widen(load(part, at.z)).x,
        widen(load(part, at.w)).x,
    );
    return select(vec4<f32>(), v, i < vec4<u32>(SIZE));
}

// Writes elements 4 * d to 4 * d + 4 of a row, within the head and the sequence.
fn store4(pair: Pair, part: u32, position: u32, d: u32, value: vec4<f32>) {
    let begin = row_begin(pair, part, position);
    for (var j = 0u; j < 4u; j += VEC) {
        let at = (4u * d + j) / VEC;
        if (position < p.time && at < SIZE) {
            store(begin + at, narrow(value, j));
        }
    }
}
