// Computes out = a b, one product of matrices of SIDE x SIDE, stored row after row. A driver that
// lists cooperative matrices must compute it before anything relies on them. The buffers have
// exactly that size, so there is nothing to guard, and every subgroup stores the same result.

@group(0) @binding(0) var<storage, read_write> a: array<f16>;
@group(0) @binding(1) var<storage, read_write> b: array<f16>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn main() {
    let left = coopLoadT<Left>(&a[0], SIDE);
    let right = coopLoadT<Right>(&b[0], SIDE);
    var sum: Sum;
    sum = coopMultiplyAdd(left, right, sum);
    coopStoreT(sum, &out[0], SIDE);
}
