// Shared by the products on cooperative matrices and the sum over a split k: the parameters, the
// outputs, and the epilogue, in f32. Needs gelu.wgsl.

@group(0) @binding(2) var<storage, read_write> out: array<result>;
// [n]: added to each row; if BIAS_GRADIENT, receives the column sums of b.
@group(0) @binding(3) var<storage, read_write> bias: array<pack>;
// [m, n]: added to the result.
@group(0) @binding(4) var<storage, read_write> residual: array<activation>;
// [m, n]: the input of GELU, by whose derivative the result is multiplied if DERIVATIVE.
@group(0) @binding(5) var<storage, read_write> pre_activation: array<activation>;

struct Params {
    m: u32,
    n: u32,
    k: u32,
    // This dispatch computes rows first_row to last_row (exclusive) of out.
    first_row: u32,
    last_row: u32,
    // Offsets of the matrices in their buffers, in elements.
    a_offset: u32,
    b_offset: u32,
    out_offset: u32,
    // Elements from one row to the next: a and out may be columns of wider matrices.
    a_stride: u32,
    out_stride: u32,
    // Tiles that first_row to last_row take. The workgroups of a split follow those of the last.
    row_tiles: u32,
    // k is split into so many ranges, of so many elements each but the last.
    splits: u32,
    split_depth: u32,
}
@group(0) @binding(6) var<uniform> p: Params;

// Applies the epilogue to VEC elements of a row of the product and writes them to out.
fn write_result(row: u32, column: u32, product: pack) {
    let at = (row * p.n + column) / VEC;
    var value = product;
    if (BIAS) {
        value += bias[column / VEC];
    }
    if (DERIVATIVE) {
        value *= narrow(gelu_derivative(widen(pack(pre_activation[at]))), 0u);
    }
    if (RESIDUAL) {
        value += pack(residual[at]);
    }
    let out_at = (p.out_offset + row * p.out_stride + column) / VEC;
    if (ACCUMULATE) {
        value += pack(out[out_at]);
    }
    out[out_at] = result(value);
}
