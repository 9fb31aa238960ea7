// The subgroups of a workgroup where each has SUBGROUP invocations.
//
// A driver of NVIDIA (595.58) crashes on cooperative matrices in a SPIR-V module with the capability
// GroupNonUniform, which the built-in values of subgroups need, so these are computed. That relies on
// subgroups that are full, which Vulkan guarantees if SUBGROUP divides WG, and on subgroups that take
// the invocations of a line in their order. Vulkan does not guarantee the order, but NVIDIA's GPUs and
// Mesa's software renderer keep it.

const SUBGROUPS = WG / SUBGROUP;

struct Invocation {
    @builtin(local_invocation_index) lane: u32,
}

fn subgroup_of(invocation: Invocation) -> u32 {
    return invocation.lane / SUBGROUP;
}

fn subgroups_of(invocation: Invocation) -> u32 {
    return SUBGROUPS;
}

// Waits for the invocations of a subgroup.
fn subgroup_barrier() {
    subgroupBarrier();
}
