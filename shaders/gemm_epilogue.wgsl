// Shared by the products on cooperative matrices and the sum over a split k: the outputs, and the
// epilogue, in f32. Needs gelu.wgsl, swiglu.wgsl, gemm_params.wgsl.

@group(0) @binding(2) var<storage, read_write> out: array<result>;
// [n]: added to each row; if BIAS_GRADIENT, receives the column sums of b.
@group(0) @binding(3) var<storage, read_write> bias: array<pack>;
// [m, n]: added to the result.
@group(0) @binding(4) var<storage, read_write> residual: array<activation>;
// [m, n]: the input of GELU, by whose derivative the result is multiplied if DERIVATIVE. If GATED, gate
// and up, [m, 2 n] like out.
@group(0) @binding(5) var<storage, read_write> pre_activation: array<activation>;

@group(0) @binding(6) var<uniform> p: Params;

// Applies the epilogue to VEC elements of a row of the product and writes them to out.
fn write_result(row: u32, column: u32, product: pack) {
    let at = (row * p.n + column) / VEC;
    let out_at = (p.out_offset + row * p.out_stride + column) / VEC;
    var value = product;
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
        return;
    }
    if (BIAS) {
        value += bias[column / VEC];
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
