// Sums and maxima over a workgroup of WG invocations, WG a power of two. The order of the additions is
// fixed, and so is every bit of the sum.
//
// A few invocations combine the values of all, then each combines theirs: three barriers, where a tree
// has one for each of its levels. They are most of the time of a layer norm.

const PARTS = min(WG, 16u);

var<workgroup> lanes: array<vec2<f32>, WG>;

// Returns both sums to every invocation. All invocations of the workgroup must call it.
fn workgroup_sum2(value: vec2<f32>, lane: u32) -> vec2<f32> {
    lanes[lane] = value;
    workgroupBarrier();
    if (WG > PARTS) {
        if (lane < PARTS) {
            var part = lanes[lane];
            for (var i = 1u; i < WG / PARTS; i++) {
                part += lanes[lane + i * PARTS];
            }
            lanes[lane] = part;
        }
        workgroupBarrier();
    }
    var sum = lanes[0];
    for (var i = 1u; i < PARTS; i++) {
        sum += lanes[i];
    }
    // Every invocation must have read before the next call writes.
    workgroupBarrier();
    return sum;
}

// Returns the sum to every invocation. All invocations of the workgroup must call it.
fn workgroup_sum(value: f32, lane: u32) -> f32 {
    return workgroup_sum2(vec2(value), lane).x;
}

// Returns the maximum to every invocation. All invocations of the workgroup must call it.
fn workgroup_max(value: f32, lane: u32) -> f32 {
    lanes[lane].x = value;
    workgroupBarrier();
    if (WG > PARTS) {
        if (lane < PARTS) {
            var part = lanes[lane].x;
            for (var i = 1u; i < WG / PARTS; i++) {
                part = max(part, lanes[lane + i * PARTS].x);
            }
            lanes[lane].x = part;
        }
        workgroupBarrier();
    }
    var largest = lanes[0].x;
    for (var i = 1u; i < PARTS; i++) {
        largest = max(largest, lanes[i].x);
    }
    workgroupBarrier();
    return largest;
}
