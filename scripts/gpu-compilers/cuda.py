"""Assembles the PTX of kernels with NVIDIA's ptxas, for the tables of tables.py."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import assembly


class Multiprocessor(NamedTuple):
    most_warps: int
    shared_memory: int  # KiB


# By compute capability.
MULTIPROCESSORS = {
    "75": Multiprocessor(32, 64),
    "80": Multiprocessor(64, 164),
    "86": Multiprocessor(48, 100),
    "89": Multiprocessor(48, 100),
    "90": Multiprocessor(64, 228),
    "120": Multiprocessor(48, 100),
}


class Kernel(NamedTuple):
    name: str
    registers: int
    spilled: int  # bytes
    resident: int
    memory: int
    loops: list


def assemble(path, capability, tools):
    """Returns a kernel of a PTX file; raises ValueError with what ptxas says."""
    ptx = path.read_text()
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "cubin"
        # Some name the features of one GPU, as sm_120a.
        target = re.search(r"^\.target (\w+)", ptx, flags=re.M).group(1)
        command = [tools / "ptxas", "-v", f"-arch={target}", "-o", cubin, path]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr.strip())
        code = subprocess.run([tools / "nvdisasm", "-c", cubin], capture_output=True, text=True)
    said = done.stderr
    registers, memory = first(r"Used (\d+) registers", said), first(r"(\d+) bytes smem", said)
    shape = re.search(r"\.(?:reqntid|maxntid) ([\d, ]+)", ptx)
    threads = 1
    for side in shape.group(1).split(",") if shape else ["256"]:
        threads *= int(side)
    return Kernel(
        # What follows the last `_` is a hash.
        name=re.search(r"\.entry (\w+?)_?[0-9a-f]*\(", ptx).group(1),
        registers=registers,
        spilled=first(r"(\d+) bytes spill stores", said),
        resident=resident(MULTIPROCESSORS[capability], registers, memory, threads),
        memory=memory,
        loops=assembly.inner_loops(code.stdout.splitlines(), assembly.SASS),
    )


def first(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def resident(multiprocessor, registers, memory, threads):
    """Returns the warps of a multiprocessor with 65,536 registers, which it gives out 256 at a time."""
    warps = -(-threads // 32)
    of_warp = -(-max(registers, 1) * 32 // 256) * 256
    workgroups = min(65536 // of_warp, multiprocessor.most_warps) // warps
    if memory:
        # A workgroup reserves another KiB.
        workgroups = min(workgroups, (multiprocessor.shared_memory << 10) // (memory + 1024))
    return workgroups * warps
