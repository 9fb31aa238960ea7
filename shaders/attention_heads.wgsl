// Shared by the attention kernels for GPUs: rows of a head, four elements at a time. A kernel
// declares `load`, which returns pack `at` of the buffer that holds a part, and `store`, which
// writes one to its output. Needs attention_rows.wgsl.

// The parts of a position: three in packed qkv, two in [batch * time, heads * size].
const QUERY = 0u;
const KEY = 1u;
const VALUE = 2u;
const OUT = 3u;
const D_OUT = 4u;

// The size of a head in vectors of four, the last filled up with zeros.
const SIZE4 = (SIZE * VEC + 3u) / 4u;

struct Pair {
    index: u32,
    sequence: u32,
    head: u32,
}

fn pair_of(index: u32) -> Pair {
    return Pair(index, index / p.heads, index % p.heads);
}

// Returns the start of a row in its buffer, in packs.
fn row_begin(pair: Pair, part: u32, position: u32) -> u32 {
    if (part < OUT) {
        return packed_at(p, pair.sequence, position, pair.head, part);
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
