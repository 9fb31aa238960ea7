"""Compiles kernels for GPUs that are not here, checks the result, and writes a table of it.

    tables.py KERNELS COMPILE NVK RADV TABLE [--write] [--ptx FOLDER --cuda BIN] [GPU...]

KERNELS is the folder that the test spirv_of_gpus_is_written has filled, COMPILE the program of
compile.c, NVK and RADV are drivers. FOLDER has CUDA's kernels as CAPABILITY/DTYPE/*.ptx, BIN has ptxas and
nvdisasm. Writes the rows of each GPU to TABLE, a file of tab-separated values, or prints them and checks
that TABLE lists the same kernels. GPU names one of the GPUs below; without any, all are compiled for.
"""

import argparse
import concurrent.futures
import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import assembly
import cuda

COLUMNS = (
    "gpu", "kernel", "variants", "registers", "spilled", "resident", "resident at most",
    "workgroup memory in KiB", "instructions per multiplication", "16-bit loads",
)

# Kernels that may keep registers in memory, as `GPU: row`, with the reason.
SPILLS = {
    "RX 7900 XTX: attention_cooperative_backward_* up to 128*":
        "the rows of a wide head do not fit; GPT-2's heads have 64",
    "CUDA, *: matmul* *": "small tiles, 8 bytes",
    "CUDA, *: backward_*": "gradients of attention without tensor cores",
}

# Products that may load 16-bit elements one by one in their inner loops, with the reason.
GATHERS = {
    "RX 7900 XTX: attention_cooperative_backward_keys *": "columns of both parts do not fit",
    "RX 7900 XTX: attention_cooperative_* up to 128*": "nor do columns of one part, in heads of 128",
}

# The least invocations of a subgroup on these GPUs, which exchange values by shuffles.
LANES = 32

# Kernels that are made to fail, so that a check which finds nothing is noticed, and on which GPUs.
MUST_FAIL = {"spills": "*", "gathers": "RX 7900 XTX"}


class Gpu(NamedTuple):
    name: str
    driver: str  # nvk or radv
    environment: dict
    lanes: int  # of the subgroups that its kernels on matrices are made for
    matrices: bool
    most_resident: int  # warps of a multiprocessor, or waves of a SIMD
    shared_memory: int = 0  # KiB of a multiprocessor


def of_nvidia(name, stub, capability):
    multiprocessor = cuda.MULTIPROCESSORS[capability]
    return Gpu(name, "nvk", {"NVIDIA_STUB": stub}, 32, True, *multiprocessor)


GPUS = [
    of_nvidia("RTX 2060", "2060", "75"),
    of_nvidia("RTX 3060", "3060", "86"),
    of_nvidia("RTX 4070", "4070", "89"),
    Gpu("RX 6800", "radv", {"RADV_FORCE_FAMILY": "navi21"}, 64, False, 16),
    Gpu("RX 7900 XTX", "radv", {"RADV_FORCE_FAMILY": "navi31"}, 64, True, 16),
]


class Driver(NamedTuple):
    """The names of a driver's statistics."""

    syntax: assembly.Syntax
    registers: str
    spilled: tuple
    resident: str


DRIVERS = {
    "nvk": Driver(
        assembly.NAK, "Number of GPRs", ("Spills to memory", "SLM size"), "Max warps/SM"
    ),
    "radv": Driver(
        assembly.ACO, "VGPRs", ("Spilled VGPRs", "Scratch size"), "Subgroups per SIMD"
    ),
}


class Result(NamedTuple):
    """A kernel on a GPU, or the worst of several. None is unknown."""

    registers: int = 0
    spilled: int = 0
    resident: int = 1 << 30
    memory: int = 0
    per_multiply: float = 0
    gathers: int = 0
    variants: int = 0

    def worst(self, other):
        most = [max(pair) for pair in zip(self, other)]
        result = Result(*most)
        return result._replace(
            resident=min(self.resident, other.resident), variants=self.variants + other.variants
        )


# --- a kernel's name ---------------------------------------------------------------------------


def constants(name):
    """Returns the shader, and what its header sets: `pack_4` is 4, `bias` is True."""
    shader, *parts = name.split(".")
    found = {}
    for part in parts:
        key, _, value = part.rpartition("_")
        if value.isdigit():
            found[key] = int(value)
        elif value in ("f16", "f32"):
            found[key] = value
        else:
            found[part] = True
    return shader, found


def lanes(shader, found):
    """Returns the subgroup that a kernel on cooperative matrices is made for, None for the others."""
    if shader.startswith("gemm_cooperative"):
        return found["wg"] // (found["row_parts"] * found["column_parts"])
    if shader.startswith("attention_cooperative"):
        return found["wg"] * found["strip"] // 64
    return None


def row(name):
    """Returns the row of a kernel: variants that differ in what is fused share one."""
    shader, found = constants(name)
    words = [shader]
    if shader == "gemm_staged":
        words.append(f"{64 * found['row_blocks']} x {64 * found['column_blocks']}")
    if shader.startswith("gemm_cooperative"):
        rows = found["row_parts"] * found["row_matrices"]
        columns = found["column_parts"] * found["column_matrices"]
        words.append(f"{16 * rows} x {16 * columns}")
    if shader.startswith(("gemm_staged", "gemm_cooperative")):
        transposed = (found.get("a_transposed"), found.get("b_transposed"))
        words.append({(None, None): "nn", (None, True): "nt", (True, None): "tn"}[transposed])
    # Nothing is checked; and the load of a matrix transposes.
    words += [word for word in ("whole", "as stored") if word.replace(" ", "_") in found]
    if "size" in found and shader.startswith("attention"):
        words.append("up to 64" if found["size"] * found.get("pack", 1) <= 64 else "up to 128")
    stored = {value for value in found.values() if value in ("f16", "f32")}
    if stored and "matrices" not in found:
        words.append("f16" if "f16" in stored else "f32")
    if "dropout" in found:
        words.append("with dropout")
    if "gated" in found:
        words.append("of SwiGLU")
    if "normed" in found:
        words.append("with norms")
    return " ".join(words)


# --- what the drivers say ----------------------------------------------------------------------


def compile_all(gpu, files, programs):
    """Compiles kernels, a part of them on each CPU. Returns the driver's output, by kernel."""
    parts = os.cpu_count() or 1
    environment = {
        **os.environ, **gpu.environment, "MESA_SHADER_CACHE_DISABLE": "true",
    }

    def run(part):
        command = [programs["compile"], programs[gpu.driver], *part]
        done = subprocess.run(command, capture_output=True, env=environment, text=True)
        return done.returncode, done.stdout, done.stderr

    with concurrent.futures.ThreadPoolExecutor(parts) as pool:
        outputs = list(pool.map(run, [files[i::parts] for i in range(parts)]))
    found = {}
    for code, out, error in outputs:
        texts = re.split(r"^kernel (.*)\n", out, flags=re.M)
        found.update(zip(texts[1::2], texts[2::2]))
        # A driver that crashes has said nothing of its last kernel.
        if code:
            last = texts[-2] if len(texts) > 1 else "its device"
            found[last] = f"error exit code {code}: {error.strip()}"
    return found


def read(gpu, output, memory, invocations):
    """Returns the result of a kernel from a driver's output."""
    driver = DRIVERS[gpu.driver]
    statistics = dict(re.findall(r"^(\S.*) = (\S+)$", output, flags=re.M))
    loops = assembly.inner_loops(re.findall(r"^\t(.*)$", output, flags=re.M), driver.syntax)
    subgroup = int(re.search(r"^subgroup (\d+)", output, flags=re.M).group(1))
    resident = int(statistics[driver.resident])
    waves = -(-invocations // subgroup)
    if gpu.driver == "radv":
        # RADV says 32 where a SIMD has room for 16 waves of 64, and twice what its registers hold. Four
        # SIMDs share a workgroup.
        workgroups = 4 * (resident // 2) // waves
        resident = workgroups * waves / 4
    else:
        # NAK counts registers alone. A workgroup reserves another KiB.
        workgroups = min(resident // waves, (gpu.shared_memory << 10) // (memory + 1024))
        resident = workgroups * waves
    # An array that is no register has no spills, but memory.
    spilled = next((int(statistics[key]) for key in driver.spilled if int(statistics[key])), 0)
    return result(int(statistics[driver.registers]), spilled, resident, memory, loops)


def result(registers, spilled, resident, memory, loops):
    # Loops with few multiplications prepare or finish the product.
    most = max((loop.multiplies() for loop in loops), default=0)
    main = [loop for loop in loops if 2 * loop.multiplies() > most]
    multiplies = sum(loop.multiplies() for loop in main)
    per_multiply = sum(loop.instructions for loop in main) / multiplies if multiplies else 0
    gathers = sum(loop.gathers for loop in loops if loop.matrices)
    return Result(registers, spilled, resident, memory, per_multiply, gathers, variants=1)


def results_of(gpu, programs, folder):
    """Returns the worst result of each row on a GPU, and what went wrong."""
    lines = (folder / "kernels.tsv").read_text().splitlines()
    kernels = {name: int(memory) for name, memory in (line.split("\t") for line in lines)}
    chosen = []
    for name in kernels:
        shader, found = constants(name)
        needs_matrices = "matrices" in found or shader == "gathers"
        shuffles = found.get("part", LANES) == LANES
        fits = shuffles and lanes(shader, found) in (None, gpu.lanes)
        if fits and (gpu.matrices or not needs_matrices):
            chosen.append(name)
    outputs = compile_all(gpu, [str(folder / f"{name}.spv") for name in chosen], programs)
    rows, problems = {}, []
    for name in chosen:
        # What comes after a crash was not compiled.
        output = outputs.get(name)
        error = output and re.search(r"^error .*", output, flags=re.M)
        if error:
            problems.append(f"{gpu.name}: {name}: {error.group()}")
        if error or not output:
            continue
        found = read(gpu, output, kernels[name], constants(name)[1].get("wg", 64))
        rows[row(name)] = rows.get(row(name), Result()).worst(found)
    problems += [f"{gpu.name}: {key}: {outputs[key]}" for key in outputs if key not in chosen]
    return rows, problems


def cuda_results(folder, tools):
    """Returns the worst result of each row of a compute capability, and what went wrong."""
    rows, problems = {}, []
    for path in sorted(folder.glob("*/*.ptx")):
        try:
            kernel = cuda.assemble(path, folder.name, tools)
        except ValueError as error:
            problems.append(f"compute capability {folder.name}: {path.name}: {error}")
            continue
        name = f"{kernel.name} {path.parent.name}"
        rows[name] = rows.get(name, Result()).worst(result(*kernel[1:]))
    return rows, problems


# --- what is allowed ---------------------------------------------------------------------------


def refused(gpu_name, rows):
    """Returns the rows that spill or gather without being allowed to."""
    found = {}
    for name, result in rows.items():
        place = f"{gpu_name}: {name}"
        if result.spilled and not any(fnmatch.fnmatch(place, allowed) for allowed in SPILLS):
            found[name] = f"{place}: spills {result.spilled}"
        if result.gathers and not any(fnmatch.fnmatch(place, allowed) for allowed in GATHERS):
            found[name] = f"{place}: loads {result.gathers} elements of 16 bits one by one"
    return found


def check(gpu, rows):
    """Returns what is wrong with a GPU's kernels, and takes those that must fail out of its rows."""
    wrong = refused(gpu.name, rows)
    for name, where in MUST_FAIL.items():
        made = rows.pop(name, None)
        if not wrong.pop(name, None) and made and fnmatch.fnmatch(gpu.name, where):
            wrong[name] = f"{gpu.name}: the kernel `{name}` passes, but must fail"
    return list(wrong.values())


# --- the tables --------------------------------------------------------------------------------


# The kernels whose inner loops multiply. In others, a loop with a multiply-add says nothing.
PRODUCTS = (
    "gemm_staged", "gemm_cooperative", "attention", "probe_multiply_add",
    "matmul", "attend", "backward_queries", "backward_keys",
)


def table(gpu_name, most_resident, rows):
    """Returns the rows of a GPU, as the cells of COLUMNS."""
    cells = []
    for name, result in sorted(rows.items()):
        is_product = name.startswith(PRODUCTS)
        cells.append([
            gpu_name, name, str(result.variants), str(result.registers), str(result.spilled or ""),
            f"{result.resident:g}", most_resident,
            f"{result.memory / 1024:.1f}" if result.memory else "",
            f"{result.per_multiply:.2f}" if is_product and result.per_multiply else "",
            str(result.gathers or ""),
        ])
    return cells


def lines_of(rows):
    return ["\t".join(cells) for cells in rows]


class Table:
    """A file of tab-separated values with the rows of several GPUs."""

    def __init__(self, path):
        self.path = path
        self.gpus = {}
        for line in path.read_text().splitlines()[1:]:
            cells = line.split("\t")
            self.gpus.setdefault(cells[0], []).append(cells)

    def write(self, gpus):
        """Replaces the rows of these GPUs, and adds new GPUs at the end."""
        rows = [cells for of_gpu in {**self.gpus, **gpus}.values() for cells in of_gpu]
        self.path.write_text("\n".join(lines_of([COLUMNS, *rows])) + "\n")

    def outdated(self, gpus):
        """Returns the GPUs that the file lists with other kernels than these."""
        def kernels(rows):
            return [cells[1] for cells in rows]

        return [
            name for name, rows in gpus.items()
            if name in self.gpus and kernels(self.gpus[name]) != kernels(rows)
        ]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", type=Path)
    for program in ("compile", "nvk", "radv"):
        parser.add_argument(program)
    parser.add_argument("table", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--ptx", type=Path)
    parser.add_argument("--cuda", type=Path)
    parser.add_argument("gpus", nargs="*")
    return parser.parse_intermixed_args()


def main():
    given = arguments()
    programs = {name: getattr(given, name) for name in ("compile", "nvk", "radv")}
    problems, gpus = [], {}

    def add(name, resident, rows, failures):
        problems.extend(failures)
        gpus[name] = table(name, resident, rows)
        count = sum(found.variants for found in rows.values())
        print(f"{name}: {count} kernels", flush=True)

    for gpu in (gpu for gpu in GPUS if not given.gpus or gpu.name in given.gpus):
        rows, failures = results_of(gpu, programs, given.kernels)
        kind = "warps" if gpu.driver == "nvk" else "waves"
        add(gpu.name, f"{gpu.most_resident} {kind}", rows, failures + check(gpu, rows))
    for folder in sorted(given.ptx.iterdir(), key=lambda it: int(it.name)) if given.ptx else []:
        rows, failures = cuda_results(folder, given.cuda)
        name = f"CUDA, compute capability {folder.name[:-1]}.{folder.name[-1]}"
        warps = cuda.MULTIPROCESSORS[folder.name].most_warps
        failures += refused(name, rows).values()
        # The others only move numbers, and there are many.
        products = {name: found for name, found in rows.items() if name.startswith(PRODUCTS)}
        add(name, f"{warps} warps", products, failures)
    known = Table(given.table)
    if given.write:
        known.write(gpus)
    else:
        print(*lines_of([COLUMNS, *(cells for rows in gpus.values() for cells in rows)]), sep="\n")
        problems += [
            f"{given.table}: {name} has other kernels; scripts/gpu-compilers.sh DRIVERS --write"
            for name in known.outdated(gpus)
        ]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
