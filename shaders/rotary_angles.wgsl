// Shared by the kernels of the rotation: their parameters, the places of heads in packed qkv, [rows,
// (heads + 2 * kv_heads) * SIZE * VEC], and sines. An invocation has pack d of both halves of a head, d <
// HALF; SIZE and HALF count packs. A workgroup has HEADS heads. A kernel declares the parameters, `p`: as an
// argument, they would be copied to memory.

const HALF = SIZE / 2u;
const HEADS = WG / HALF;

struct Turns {
    x: u32,
    y: u32,
    z: u32,
    w: u32,
}

struct Params {
    rows: u32,
    rows_per_group: u32,
    time: u32,
    heads: u32,
    kv_heads: u32,
    eps: f32,
    // 1, or -1 to rotate back.
    direction: f32,
    // The angle from one position to the next of each pair of elements, in units of 2^-32 turns.
    @align(16) turns: array<Turns, QUADS>,
}

struct Rotation {
    cosine: pack,
    sine: pack,
}

// Returns the start of a head of a row, in packs.
fn head_at(row: u32, head: u32) -> u32 {
    return (row * (p.heads + 2u * p.kv_heads) + head) * SIZE;
}

// Returns the rotation of pack d at a position. An angle in units of 2^-32 turns wraps around exactly. The
// polynomials are those of Cephes' sinf and cosf, because WGSL's sine is off by up to 2^-11.
fn rotation(position: u32, d: u32) -> Rotation {
    let quad = p.turns[d * VEC / 4u];
    var turns = vec4<u32>(quad.x, quad.y, quad.z, quad.w);
    if (VEC == 1u) {
        turns = vec4<u32>(turns[d % 4u]);
    }
    let angle = position * turns;
    let quadrant = (angle + (1u << 29u)) >> vec4<u32>(30u);
    let x = vec4<f32>(bitcast<vec4<i32>>(angle - (quadrant << vec4<u32>(30u)))) * 1.4629181e-9;
    let square = x * x;
    let sine = x + x * square * (-1.6666655e-1 + square * (8.332161e-3 + square * -1.9515296e-4));
    let tail = 4.1666646e-2 + square * (-1.3887316e-3 + square * 2.4433157e-5);
    let cosine = 1.0 - 0.5 * square + square * square * tail;
    let odd = quadrant % 2u == vec4<u32>(1u);
    let signs = select(vec4<f32>(1.0), vec4<f32>(-1.0), quadrant >= vec4<u32>(2u));
    let next = select(vec4<f32>(1.0), vec4<f32>(-1.0), (quadrant + 1u) % 4u >= vec4<u32>(2u));
    return Rotation(
        narrow(select(cosine, sine, odd) * next, 0u),
        narrow(select(sine, cosine, odd) * signs * p.direction, 0u),
    );
}

// Numbers of the invocations, to be summed over a head.
var<workgroup> parts: array<f32, WG>;

// Returns the sum over the invocations of head `nth` of the workgroup. All invocations must call it.
fn head_sum(value: f32, nth: u32, lane: u32) -> f32 {
    parts[lane] = value;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < HALF; i++) {
        sum += parts[min(nth, HEADS - 1u) * HALF + i];
    }
    // Every invocation must have read before the next call writes.
    workgroupBarrier();
    return sum;
}
