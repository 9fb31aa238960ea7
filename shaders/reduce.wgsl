// Sums and maxima over a workgroup of WG invocations, WG a power of two. The tree has a fixed
// shape, so the order of the additions, and every bit of the sum, is the same in each run.

var<workgroup> lanes: array<f32, WG>;

// Returns the sum to every invocation. All invocations of the workgroup must call it.
fn workgroup_sum(value: f32, lane: u32) -> f32 {
    lanes[lane] = value;
    workgroupBarrier();
    for (var width = WG / 2u; width > 0u; width /= 2u) {
        if (lane < width) {
            lanes[lane] += lanes[lane + width];
        }
        workgroupBarrier();
    }
    let sum = lanes[0];
    // Every invocation must have read before the next call writes.
    workgroupBarrier();
    return sum;
}

// Returns the maximum to every invocation. All invocations of the workgroup must call it.
fn workgroup_max(value: f32, lane: u32) -> f32 {
    lanes[lane] = value;
    workgroupBarrier();
    for (var width = WG / 2u; width > 0u; width /= 2u) {
        if (lane < width) {
            lanes[lane] = max(lanes[lane], lanes[lane + width]);
        }
        workgroupBarrier();
    }
    let largest = lanes[0];
    workgroupBarrier();
    return largest;
}
