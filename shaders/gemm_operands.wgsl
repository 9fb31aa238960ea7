// What the two gemm kernels have in common: out = a b with its epilogue, out [m, n]. a is [m, k], or
// [k, m] where A_TRANSPOSED; b is [k, n], or [n, k] where B_TRANSPOSED. All is done in blocks of
// 4 x 4, which are zero outside of the matrices. Where ACTIVATED, a is what GELU is applied to: it
// is computed again at each load, so that nobody has to keep its result. Needs gelu.wgsl.

@group(0) @binding(0) var<storage, read_write> a: array<pack>;
@group(0) @binding(1) var<storage, read_write> b: array<pack>;
@group(0) @binding(2) var<storage, read_write> out: array<pack>;
// [n]: added to each row, or, where BIAS_GRADIENT, the column sums of b.
@group(0) @binding(3) var<storage, read_write> bias: array<pack>;
// [m, n]: added to the result.
@group(0) @binding(4) var<storage, read_write> residual: array<pack>;
// [m, n]: what GELU was applied to; the result is multiplied with its derivative there.
@group(0) @binding(5) var<storage, read_write> pre: array<pack>;

struct Params {
    m: u32,
    n: u32,
    k: u32,
    // The rows of out that this dispatch computes: from here to last_row.
    first_row: u32,
    last_row: u32,
    // Where the matrices begin in their buffers, in elements.
    a_offset: u32,
    b_offset: u32,
    out_offset: u32,
    // From one line to the next: they may be columns of wider matrices.
    a_stride: u32,
    out_stride: u32,
}
@group(0) @binding(6) var<uniform> p: Params;

fn a4(line: u32, column: u32, lines: u32, width: u32) -> vec4<f32> {
    let v = a_stored(line, column, lines, width);
    if (ACTIVATED) {
        return gelu(v);
    }
    return v;
}

// Four elements of a line of a matrix [lines, width] in memory.
fn a_stored(line: u32, column: u32, lines: u32, width: u32) -> vec4<f32> {
    if (line >= lines || column >= width) {
        return vec4<f32>();
    }
    let at = p.a_offset + line * p.a_stride + column;
    if (VEC == 4u) {
        return widen(a[at / VEC]);
    }
    var v = vec4<f32>(widen(a[at]).x, 0.0, 0.0, 0.0);
    if (column + 1u < width) { v.y = widen(a[at + 1u]).x; }
    if (column + 2u < width) { v.z = widen(a[at + 2u]).x; }
    if (column + 3u < width) { v.w = widen(a[at + 3u]).x; }
    return v;
}

fn b4(line: u32, column: u32, lines: u32, width: u32) -> vec4<f32> {
    if (line >= lines || column >= width) {
        return vec4<f32>();
    }
    let at = p.b_offset + line * width + column;
    if (VEC == 4u) {
        return widen(b[at / VEC]);
    }
    var v = vec4<f32>(widen(b[at]).x, 0.0, 0.0, 0.0);
    if (column + 1u < width) { v.y = widen(b[at + 1u]).x; }
    if (column + 2u < width) { v.z = widen(b[at + 2u]).x; }
    if (column + 3u < width) { v.w = widen(b[at + 3u]).x; }
    return v;
}

// The block of four lines from `line` on, a matrix column for each.
fn a_lines(line: u32, column: u32, lines: u32, width: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        a4(line, column, lines, width),
        a4(line + 1u, column, lines, width),
        a4(line + 2u, column, lines, width),
        a4(line + 3u, column, lines, width),
    );
}

fn b_lines(line: u32, column: u32, lines: u32, width: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        b4(line, column, lines, width),
        b4(line + 1u, column, lines, width),
        b4(line + 2u, column, lines, width),
        b4(line + 3u, column, lines, width),
    );
}

// The block of the left factor at (row, k): a matrix column for each k.
fn a_by_k(row: u32, k: u32) -> mat4x4<f32> {
    if (A_TRANSPOSED) {
        return a_lines(k, row, p.k, p.m);
    }
    return transpose(a_lines(row, k, p.m, p.k));
}

// The block of the right factor at (k, column): a matrix column for each k.
fn b_by_k(k: u32, column: u32) -> mat4x4<f32> {
    if (B_TRANSPOSED) {
        return transpose(b_lines(column, k, p.n, p.k));
    }
    return b_lines(k, column, p.k, p.n);
}

// Writes a block of the product, a matrix column for each row, through the epilogue.
fn finish(row: u32, column: u32, product: mat4x4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if (row + i >= p.last_row) {
            return;
        }
        for (var j = 0u; j < 4u; j += VEC) {
            if (column + j < p.n) {
                let at = ((row + i) * p.n + column + j) / VEC;
                var value = part(product[i], j);
                if (BIAS) {
                    value += bias[(column + j) / VEC];
                }
                if (DERIVATIVE) {
                    value *= part(gelu_derivative(widen(pre[at])), 0u);
                }
                if (RESIDUAL) {
                    value += residual[at];
                }
                let out_at = (p.out_offset + (row + i) * p.out_stride + column + j) / VEC;
                if (ACCUMULATE) {
                    value += out[out_at];
                }
                out[out_at] = value;
            }
        }
    }
}

// Writes column sums of b.
fn finish_bias(column: u32, sums: vec4<f32>) {
    for (var j = 0u; j < 4u; j += VEC) {
        if (column + j < p.n) {
            bias[(column + j) / VEC] = part(sums, j);
        }
    }
}
