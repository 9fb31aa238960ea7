// Adds up the products over the ranges of a split k, in the order of k, and applies the epilogue:
// one invocation per pack of out. Needs gelu.wgsl, gemm_epilogue.wgsl.

// [splits, m, n].
@group(0) @binding(0) var<storage, read_write> products: array<pack>;
// [splits, n]: if BIAS_GRADIENT, the column sums of b.
@group(0) @binding(1) var<storage, read_write> column_sums: array<pack>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = ((group.y * groups.x + group.x) * WG + lane) * VEC;
    let row = item / p.n;
    if (row >= p.m) {
        return;
    }
    let column = item % p.n;
    var product = pack();
    for (var split = 0u; split < p.splits; split++) {
        product += products[(split * p.m * p.n + item) / VEC];
    }
    write_result(row, column, product);
    if (BIAS_GRADIENT && row == 0u) {
        var sum = pack();
        for (var split = 0u; split < p.splits; split++) {
            sum += column_sums[(split * p.n + column) / VEC];
        }
        bias[column / VEC] = sum;
    }
}
