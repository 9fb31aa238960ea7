#!/usr/bin/env bash
# Starts a Slurm of one node, without systemd and only for this script, and trains on two ranks under
# srun: from the start, to the end of a job's time, and again after a requeue. Needs root and, on
# Debian, slurmctld, slurmd, slurm-client, munge, openmpi-bin and libpmix-dev, which has the libpmix.so
# that Slurm's plugin opens.
#
#   scripts/ranks-slurm.sh WGPT [FLAGS]
#       WGPT      the program
#       FLAGS     flags of `wgpt train`, which override the flags of a small model on the CPU
#
# Its daemons listen on the loopback address and keep everything in a temporary folder.
set -euo pipefail

fail() {
    echo "error: $*" >&2
    exit 2
}

if (($# == 0)) || [[ $1 == -* ]]; then
    fail 'usage: scripts/ranks-slurm.sh WGPT [FLAGS]'
fi
((EUID == 0)) || fail 'the daemons of Slurm need root'
for tool in slurmctld slurmd srun munged mpirun; do
    command -v "$tool" >/dev/null || fail "$tool is not installed"
done
wgpt=$(realpath "$1")
[[ -x $wgpt ]] || fail "$wgpt is not a program"
shift
model=(--device=cpu --data=builtin:stories --n_layer=2 --n_head=2 --n_embd=32 --block_size=32 --batch_size=4
    --gradient_accumulation_steps=2 --eval_interval=100 --eval_iters=1 --sample_tokens=0 "$@")

scratch=$(mktemp -d)
finish() {
    local daemon
    if [[ -e $scratch/slurmctld.pid ]]; then
        # Otherwise the last step would outlive its daemon.
        scancel --user=root 2>/dev/null || true
        wait_for 40 '! squeue -h | grep -q .' || true
    fi
    for daemon in slurmd slurmctld munged; do
        # shellcheck disable=SC2015 # Either may fail: it has not started, or has ended.
        [[ -e $scratch/$daemon.pid ]] && kill "$(<"$scratch/$daemon.pid")" 2>/dev/null || true
    done
    # They write until they end.
    for _ in {1..20}; do
        rm -rf "$scratch" 2>/dev/null && return
        sleep 0.5
    done
}
trap finish EXIT
# Without these traps, `finish` would not run.
trap 'exit 130' INT
trap 'exit 143' TERM

start_slurm() {
    local host
    host=$(hostname -s)
    mkdir "$scratch"/{state,spool,log}
    chmod 700 "$scratch"
    cat >"$scratch/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/log/slurmctld
SlurmdLogFile=$scratch/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=30
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
    export SLURM_CONF=$scratch/slurm.conf
    head -c 128 /dev/urandom >"$scratch/munge.key"
    chmod 400 "$scratch/munge.key"
    munged --force --key-file="$scratch/munge.key" --socket="$scratch/munge.socket" \
        --pid-file="$scratch/munged.pid" --log-file="$scratch/log/munge" \
        --seed-file="$scratch/munge.seed"
    slurmctld -f "$SLURM_CONF" -c
    slurmd -f "$SLURM_CONF"
    wait_for 30 'sinfo -h -o %t | grep -q idle' || fail "no node: $(tail -n 5 "$scratch"/log/*)"
}

# wait_for SECONDS COMMAND: waits until the command succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    until eval "$2" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.5
    done
}

# Prints a line for each check that passed.
passed() {
    echo "passed: $*"
}

run=$scratch/run
steps() {
    grep -c '"event":"step"' "$run/events.jsonl"
}

start_slurm
echo "MPI of this Slurm: $(srun --mpi=list 2>&1 | tr '\n' ' ')"
# Open MPI 4 connects over the loopback here.
export OMPI_MCA_btl_tcp_if_include=lo

srun --mpi=pmix --oversubscribe -n 2 "$wgpt" train --run="$run" --max_iters=20 "${model[@]}" \
    >"$scratch/first.log" 2>&1 || fail "srun failed: $(<"$scratch/first.log")"
(($(steps) == 20)) || fail "$(steps) updates instead of 20"
passed 'srun trains on two ranks'

cat >"$scratch/job.sh" <<JOB
#!/bin/bash
#SBATCH -n 2 --oversubscribe --requeue --open-mode=append -o $scratch/job.log
[[ -e $run/config.toml ]] && resume=--resume
srun --mpi=pmix --oversubscribe --kill-on-bad-exit=1 \\
    $wgpt train --run=$run --max_iters=1000000 --keep_checkpoints=1000 ${model[*]@Q} \$resume
JOB
rm -rf "$run"
job=$(sbatch --parsable "$scratch/job.sh")
checkpoint() {
    compgen -G "$run/checkpoints/0*/state.json"
}
wait_for 60 checkpoint || fail "no checkpoint: $(<"$scratch/job.log")"
# The signal that Slurm sends before the end of a job's time.
scancel --signal=TERM "$job"
wait_for 60 "tail -n 1 $run/events.jsonl | grep -q '\"reason\":\"stopped\"'" ||
    fail "SIGTERM did not stop the run: $(<"$scratch/job.log")"
passed 'SIGTERM stops with a checkpoint'

wait_for 60 '! squeue -h | grep -q .' || fail 'the job did not end'
before=$(steps)
job=$(sbatch --parsable "$scratch/job.sh")
wait_for 60 "((\$(steps) > $before + 10))" || fail "the job did not continue: $(<"$scratch/job.log")"
scontrol requeue "$job"
wait_for 30 "[[ \$(squeue -h -o %t -j $job) == PD ]]" || fail 'the job was not requeued'
before=$(steps)
# Slurm waits two minutes before it starts a requeued job.
scontrol update jobid="$job" StartTime=now
wait_for 180 "((\$(steps) > $before + 10))" || fail "the job did not continue: $(<"$scratch/job.log")"
passed 'a requeued job continues'
