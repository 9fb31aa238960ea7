// Sums and maxima over a workgroup of WG invocations, WG a power of two. Halving, so that the order
// of the additions, and with it every bit, is the same in each run.

var<workgroup> lanes: array<f32, WG>;

// Every invocation of the workgroup must call this, and gets the sum.
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
    // Before the next call writes.
    workgroupBarrier();
    return sum;
}

// Every invocation of the workgroup must call this, and gets the maximum.
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
