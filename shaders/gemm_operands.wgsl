// Shared by the two gemm kernels: the loads and the epilogue of out = a b, with out [m, n]. a is
// [m, k], or [k, m] if A_TRANSPOSED; b is [k, n], or [n, k] if B_TRANSPOSED. The unit of work is a
// block of 4 x 4, zero outside the matrices. If ACTIVATED, each load of a recomputes its GELU, so
// that the output of GELU need not be stored. Sums and epilogue are f32, whatever the
// matrices are stored in. Needs gelu.wgsl, gemm_params.wgsl.

@group(0) @binding(0) var<storage, read_write> a: array<left>;
@group(0) @binding(1) var<storage, read_write> b: array<right>;
@group(0) @binding(2) var<storage, read_write> out: array<result>;
// [n]: added to each row; if BIAS_GRADIENT, receives the column sums of b.
@group(0) @binding(3) var<storage, read_write> bias: array<pack>;
// [m, n]: added to the result.
@group(0) @binding(4) var<storage, read_write> residual: array<activation>;
// [m, n]: the input of GELU, by whose derivative the result is multiplied if DERIVATIVE.
@group(0) @binding(5) var<storage, read_write> pre_activation: array<activation>;

@group(0) @binding(6) var<uniform> p: Params;

// Returns four elements of a row of a, activated if ACTIVATED. a is [rows, width] in memory.
fn a4(row: u32, column: u32, rows: u32, width: u32) -> vec4<f32> {
    let v = a_stored(row, column, rows, width);
    if (ACTIVATED) {
        return gelu(v);
    }
    return v;
}

// Returns four elements of a row of a as stored.
fn a_stored(row: u32, column: u32, rows: u32, width: u32) -> vec4<f32> {
    if (row >= rows || column >= width) {
        return vec4<f32>();
    }
    let at = p.a_offset + row * p.a_stride + column;
    if (VEC == 4u) {
        return widen(pack(a[at / VEC]));
    }
    var v = vec4<f32>(widen(pack(a[at])).x, 0.0, 0.0, 0.0);
    if (column + 1u < width) { v.y = widen(pack(a[at + 1u])).x; }
    if (column + 2u < width) { v.z = widen(pack(a[at + 2u])).x; }
    if (column + 3u < width) { v.w = widen(pack(a[at + 3u])).x; }
    return v;
}

// Returns four elements of a row of b.
fn b4(row: u32, column: u32, rows: u32, width: u32) -> vec4<f32> {
    if (row >= rows || column >= width) {
        return vec4<f32>();
    }
    let at = p.b_offset + row * width + column;
    if (VEC == 4u) {
        return widen(pack(b[at / VEC]));
    }
    var v = vec4<f32>(widen(pack(b[at])).x, 0.0, 0.0, 0.0);
    if (column + 1u < width) { v.y = widen(pack(b[at + 1u])).x; }
    if (column + 2u < width) { v.z = widen(pack(b[at + 2u])).x; }
    if (column + 3u < width) { v.w = widen(pack(b[at + 3u])).x; }
    return v;
}

// Returns the block at (row, column) of a as stored: matrix column i is row + i.
fn a_rows(row: u32, column: u32, rows: u32, width: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        a4(row, column, rows, width),
        a4(row + 1u, column, rows, width),
        a4(row + 2u, column, rows, width),
        a4(row + 3u, column, rows, width),
    );
}

// Returns the block at (row, column) of b as stored: matrix column i is row + i.
fn b_rows(row: u32, column: u32, rows: u32, width: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        b4(row, column, rows, width),
        b4(row + 1u, column, rows, width),
        b4(row + 2u, column, rows, width),
        b4(row + 3u, column, rows, width),
    );
}

// Returns the block of the left factor at (row, k): one matrix column per k.
fn a_by_k(row: u32, k: u32) -> mat4x4<f32> {
    if (A_TRANSPOSED) {
        return a_rows(k, row, p.k, p.m);
    }
    return transpose(a_rows(row, k, p.m, p.k));
}

// Returns the block of the right factor at (k, column): one matrix column per k.
fn b_by_k(k: u32, column: u32) -> mat4x4<f32> {
    if (B_TRANSPOSED) {
        return transpose(b_rows(column, k, p.n, p.k));
    }
    return b_rows(k, column, p.k, p.n);
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
                var value = narrow(product[i], j);
                if (BIAS) {
                    value += bias[(column + j) / VEC];
                }
                if (DERIVATIVE) {
                    value *= narrow(gelu_derivative(widen(pack(pre_activation[at]))), 0u);
                }
                if (RESIDUAL) {
                    value += pack(residual[at]);
                }
                let out_at = (p.out_offset + (row + i) * p.out_stride + column + j) / VEC;
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
