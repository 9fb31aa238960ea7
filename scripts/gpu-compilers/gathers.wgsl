// A product of matrices whose left factor lies in workgroup memory in the wrong order for RDNA 3, which
// then loads each element by itself. scripts/gpu-compilers.sh must refuse it.

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(0) var<storage, read_write> x: array<f16>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

var<workgroup> tile: array<f16, 512>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    let steps = u32(out[0]);
    var sum: coop_mat16x16<f32, C>;
    for (var k = 0u; k < steps; k++) {
        for (var i = lane; i < 512u; i += 64u) {
            tile[i] = x[512u * k + i];
        }
        workgroupBarrier();
        let left = coopLoad<coop_mat16x16<f16, A>>(&tile[0], 16u);
        let right = coopLoad<coop_mat16x16<f16, B>>(&tile[256], 16u);
        sum = coopMultiplyAdd(left, right, sum);
        workgroupBarrier();
    }
    coopStoreT(sum, &out[0], 16u);
}
