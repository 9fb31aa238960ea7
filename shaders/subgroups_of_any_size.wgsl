// The subgroups of a workgroup where the driver chooses their size.

// Unknown.
const SUBGROUPS = 0u;

struct Invocation {
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

fn subgroup_of(invocation: Invocation) -> u32 {
    return invocation.subgroup;
}

fn subgroups_of(invocation: Invocation) -> u32 {
    return invocation.subgroups;
}

// Waits for the workgroup: the invocations that exchange values may belong to several subgroups.
fn subgroup_barrier() {
    workgroupBarrier();
}
