// Shared by the two gemm kernels: the loads and the epilogue of out = a b, with out [m, n]. a is
// [m, k], or [k, m] if A_TRANSPOSED; b is [k, n], or [n, k] if B_TRANSPOSED. The unit of work is a
// block of 4 x 4. A kernel makes zero what is past the end of k, and never stores what other elements
// outside the matrices give. If ACTIVATED, it recomputes the GELU of a each time that it loads it, so
// that the output of GELU need not be stored. If the activation is GATED, a has two matrices side by side,
// gate and up of SwiGLU, and so have the outputs of its DERIVATIVE. Sums and epilogue are f32, whatever the
// matrices are stored in. Needs gelu.wgsl, swiglu.wgsl, gemm_params.wgsl.

@group(0) @binding(0) var<storage, read_write> a: array<left>;
@group(0) @binding(1) var<storage, read_write> b: array<right>;
@group(0) @binding(2) var<storage, read_write> out: array<result>;
// [n]: added to each row; if BIAS_GRADIENT, receives the column sums of b.
@group(0) @binding(3) var<storage, read_write> bias: array<pack>;
// [m, n]: added to the result.
@group(0) @binding(4) var<storage, read_write> residual: array<activation>;
// [m, n]: the input of GELU, by whose derivative the result is multiplied if DERIVATIVE. If GATED, gate
// and up, [m, 2 n] like out.
@group(0) @binding(5) var<storage, read_write> pre_activation: array<activation>;

@group(0) @binding(6) var<uniform> p: Params;

const LEFT_GATED = ACTIVATED && GATED;

// Returns four elements of a row of a, of its first matrix or, if `second`, of up. A position outside the
// matrix reads the nearest one inside instead, because a branch would make each load wait for the one
// before it.
fn a_nearest(second: bool, row: u32, column: u32, rows: u32, width: u32) -> vec4<f32> {
    let begin = p.a_offset + min(row, rows - 1u) * p.a_stride + select(0u, width, second);
    if (VEC == 4u) {
        return widen(pack(a[(begin + min(column, width - 4u)) / VEC]));
    }
    let at = begin + min(column + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(width - 1u));
    return vec4<f32>(
        widen(pack(a[at.x])).x,
        widen(pack(a[at.y])).x,
        widen(pack(a[at.z])).x,
        widen(pack(a[at.w])).x,
    );
}

// Returns four elements of a row of b, as a_nearest does.
fn b_nearest(row: u32, column: u32, rows: u32, width: u32) -> vec4<f32> {
    let begin = p.b_offset + min(row, rows - 1u) * width;
    if (VEC == 4u) {
        return widen(pack(b[(begin + min(column, width - 4u)) / VEC]));
    }
    let at = begin + min(column + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(width - 1u));
    return vec4<f32>(
        widen(pack(b[at.x])).x,
        widen(pack(b[at.y])).x,
        widen(pack(b[at.z])).x,
        widen(pack(b[at.w])).x,
    );
}

// Returns the block of the left factor, or of up, at (row, k): one matrix column per k.
fn a_by_k(second: bool, row: u32, k: u32) -> mat4x4<f32> {
    var block: mat4x4<f32>;
    // unroll
    for (var i = 0u; i < 4u; i++) {
        if (A_TRANSPOSED) {
            block[i] = a_nearest(second, k + i, row, p.k, p.m);
        } else {
            block[i] = a_nearest(second, row + i, k, p.m, p.k);
        }
    }
    if (A_TRANSPOSED) {
        return block;
    }
    return transpose(block);
}

// Returns the block of the right factor at (k, column): one matrix column per k.
fn b_by_k(k: u32, column: u32) -> mat4x4<f32> {
    var block: mat4x4<f32>;
    // unroll
    for (var i = 0u; i < 4u; i++) {
        if (B_TRANSPOSED) {
            block[i] = b_nearest(column + i, k, p.n, p.k);
        } else {
            block[i] = b_nearest(k + i, column, p.k, p.n);
        }
    }
    if (B_TRANSPOSED) {
        return transpose(block);
    }
    return block;
}

// Returns elements of the left factor, activated if ACTIVATED. `up` counts if it is GATED.
fn activated(v: vec4<f32>, up: vec4<f32>) -> vec4<f32> {
    if (LEFT_GATED) {
        return swiglu(v, up);
    }
    if (ACTIVATED) {
        return gelu(v);
    }
    return v;
}

// Returns elements of a factor, zero where k is past the end.
fn within_k(v: vec4<f32>, k: vec4<u32>) -> vec4<f32> {
    return select(vec4<f32>(), v, k < vec4<u32>(p.k));
}

// Applies the epilogue to a block of the product, one matrix column per row, and writes it to out.
fn write_block(row: u32, column: u32, product: mat4x4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if (row + i >= p.last_row) {
            return;
        }
        for (var j = 0u; j < 4u; j += VEC) {
            if (column + j < p.n) {
                let at = ((row + i) * p.n + column + j) / VEC;
                let out_at = (p.out_offset + (row + i) * p.out_stride + column + j) / VEC;
                var value = narrow(product[i], j);
                if (DERIVATIVE && GATED) {
                    let up_at = out_at + p.n / VEC;
                    let gate = widen(pack(pre_activation[out_at]));
                    let up = widen(pack(pre_activation[up_at]));
                    let gradients = swiglu_gradients(widen(value), gate, up);
                    var d_gate = narrow(gradients[0], 0u);
                    var d_up = narrow(gradients[1], 0u);
                    if (ACCUMULATE) {
                        d_gate += pack(out[out_at]);
                        d_up += pack(out[up_at]);
                    }
                    out[out_at] = to_result(d_gate);
                    out[up_at] = to_result(d_up);
                    continue;
                }
                if (BIAS) {
                    value += bias[(column + j) / VEC];
                }
                if (DERIVATIVE) {
                    value *= narrow(gelu_derivative(widen(pack(pre_activation[at]))), 0u);
                }
                if (RESIDUAL) {
                    value += pack(residual[at]);
                }
                if (ACCUMULATE) {
                    value += pack(out[out_at]);
                }
                out[out_at] = to_result(value);
            }
        }
    }
}

// Writes four column sums of b to bias.
fn write_column_sums(column: u32, sums: vec4<f32>) {
    for (var j = 0u; j < 4u; j += VEC) {
        if (column + j < p.n) {
            bias[(column + j) / VEC] = narrow(sums, j);
        }
    }
}
