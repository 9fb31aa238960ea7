#!/usr/bin/env bash
# Trains on two ranks with a slow network between them, and prints the measured time of an update next
# to the prediction of `wgpt plan --network`. Needs Linux, root, Open MPI 4, iproute2 and Python 3.
#
#   scripts/ranks-network.sh WGPT [RATE...] [-- FLAGS]
#       WGPT      the program
#       RATE      the rates of the network, as tc and wgpt read them (1gbit 100mbit)
#       FLAGS     flags of `wgpt train`, which override the flags of a small model on the CPU
#
# Each rank has its own network namespace and host name, as if on a separate machine. A pair of virtual
# Ethernet devices joins them, and tc limits the rate of both. The ranks share the cores of the machine,
# so only the network times are meaningful, not the computing times.
set -euo pipefail

fail() {
    echo "error: $*" >&2
    exit 2
}

if (($# == 0)) || [[ $1 == -* ]]; then
    fail 'usage: scripts/ranks-network.sh WGPT [RATE...] [-- FLAGS]'
fi
((EUID == 0)) || fail 'network namespaces need root'
for tool in mpirun ip tc unshare python3; do
    command -v "$tool" >/dev/null || fail "$tool is not installed"
done
wgpt=$(realpath "$1")
[[ -x $wgpt ]] || fail "$wgpt is not a program"
shift
rates=()
while (($# > 0)) && [[ $1 != -- ]]; do
    rates+=("$1")
    shift
done
((${#rates[@]} > 0)) || rates=(1gbit 100mbit)
flags=("${@:2}")

# 3.2 million weights have 13 MB of gradients, and take the CPU little time.
model=(--data=builtin:stories --n_layer=4 --n_head=4 --n_embd=256 --block_size=64 --batch_size=2
    --gradient_accumulation_steps=2 --max_iters=12 --eval_interval=1000 --eval_iters=1 --sample_tokens=0
    --dtype=float32 "${flags[@]}")

scratch=$(mktemp -d)
names=("wgpt-$$-0" "wgpt-$$-1")
network=10.98.0
finish() {
    for name in "${names[@]}"; do
        ip netns del "$name" 2>/dev/null || true
    done
    rm -rf "$scratch"
}
trap finish EXIT
# Without these traps, `finish` would not run.
trap 'exit 130' INT
trap 'exit 143' TERM

# in_namespace NUMBER COMMAND...: runs a command on the machine of a rank.
in_namespace() {
    local name=${names[$1]}
    shift
    # shellcheck disable=SC2016 # The inner shell expands its arguments.
    ip netns exec "$name" unshare --uts -- sh -c 'hostname "$0" && exec "$@"' "$name" "$@"
}

# join RATE: connects the namespaces, each direction at this rate.
join() {
    local number device
    for name in "${names[@]}"; do
        ip netns del "$name" 2>/dev/null || true
        ip netns add "$name"
    done
    ip link add wgpt0 netns "${names[0]}" type veth peer name wgpt1 netns "${names[1]}"
    for number in 0 1; do
        device=wgpt$number
        ip -n "${names[number]}" addr add "$network.$((number + 1))/24" dev "$device"
        ip -n "${names[number]}" link set lo up
        ip -n "${names[number]}" link set "$device" up
        # The burst may pass at once: a few packets of the largest size.
        tc -n "${names[number]}" qdisc add dev "$device" root tbf rate "$1" burst 512kb latency 100ms
    done
}

# Stands in for ssh: `AGENT [OPTIONS] HOST COMMAND...` runs the command in the second namespace.
cat >"$scratch/agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
shift
exec ip netns exec ${names[1]} unshare --uts -- sh -c "hostname ${names[1]}; \$*"
AGENT
chmod +x "$scratch/agent"
printf '%s slots=1\n' "$network.1" "$network.2" >"$scratch/hosts"

# `wgpt launch` sets this too: see docs/several.md.
export OMPI_MCA_btl_tcp_eager_limit=${OMPI_MCA_btl_tcp_eager_limit:-1114112}
# shellcheck disable=SC2054 # A comma within an argument.
run_mpi=(mpirun --allow-run-as-root -np 2 --hostfile "$scratch/hosts" --map-by node
    --mca plm_rsh_agent "$scratch/agent" --mca btl tcp,self
    --mca btl_tcp_if_include "$network.0/24" --mca oob_tcp_if_include "$network.0/24")

# summary EVENTS PLAN: prints a row of the table.
summary() {
    python3 - "$@" <<'PYTHON'
import json, sys
rate, events, plan = sys.argv[1:]
steps = [json.loads(line) for line in open(events) if '"event":"step"' in line]
# The first updates start threads and connections.
steps = steps[3:] or sys.exit("error: too few updates; raise --max_iters")
update = sum(step["ms"] for step in steps) / len(steps)
network = sum(step["network_ms"] for step in steps) / len(steps)
predicted = 1e3 * json.load(open(plan))["ranks"]["network_seconds"]
compute = update - network
efficiency = lambda network: 100 * compute / (compute + network)
print(f"{rate:>8} {update:11.0f} {network:12.0f} {predicted:13.0f} "
      f"{efficiency(network):11.0f}% {efficiency(predicted):11.0f}%")
PYTHON
}

echo "    rate  update (ms)  network (ms)  predicted (ms)  efficiency  predicted"
for rate in "${rates[@]}"; do
    join "$rate"
    run=$scratch/$rate
    in_namespace 0 "${run_mpi[@]}" "$wgpt" train --json --device=cpu --run="$run" "${model[@]}" \
        >"$run.events" 2>"$run.log" || fail "the run failed: $(<"$run.log")"
    "$wgpt" plan --json --ranks=2 --network="$rate" "${model[@]}" >"$run.plan"
    summary "$rate" "$run.events" "$run.plan"
done
