#!/usr/bin/env python3
"""Compiles the kernels of shaders/cuda, and tests them without a GPU.

    scripts/cuda-kernels.py build [FOLDER]    writes shaders/cuda/kernels.ptx.zst, which the program contains, and
                                              docs/tables/cuda-kernels.tsv
    scripts/cuda-kernels.py check [FOLDER]    does everything below, and compares both files with the sources
    scripts/cuda-kernels.py check --emulator  runs every variant on the CPU and compares it with an oracle, then makes
                                              mistakes in the kernels, each of which must be noticed. Needs g++
    scripts/cuda-kernels.py check --ptxas [FOLDER]  assembles every variant for several GPUs; none may spill registers

    scripts/cuda-kernels.py libraries FOLDER  makes libraries in FOLDER, with which scripts/cuda-driver.c computes

With names of variants behind `--only`, `check` is about those, and compares no file.

FOLDER, by default target/cuda-kernels, is for NVIDIA's compilers, which are downloaded from PyPI once. They need
neither a GPU nor a driver, but x86-64.

kernels.ptx.zst is one text. Each variant has a line `//// NAME threads=N shared=BYTES` before its PTX. The first line
has the hash of the sources.
"""

import argparse
import concurrent.futures
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SHADERS = ROOT / "shaders" / "cuda"
TESTS = ROOT / "tests" / "cuda"
PTX = SHADERS / "kernels.ptx.zst"
TABLE = ROOT / "docs" / "tables" / "cuda-kernels.tsv"

NVRTC = "nvidia-cuda-nvrtc-cu12==12.8.93"
ZSTANDARD = "zstandard==0.25.0"
TRITON = "triton==3.5.1"  # has ptxas and nvdisasm

# The oldest PTX that has the kernels' instructions, for drivers from 470 on. NVRTC writes its own version, which
# drivers before 570 refuse.
PTX_VERSION = "7.4"

# KiB of shared memory and threads of a multiprocessor.
GPUS = {
    "sm_80": (164, 2048), "sm_86": (100, 1536), "sm_89": (100, 1536), "sm_90": (228, 2048), "sm_120": (100, 1536),
}


class Variant(NamedTuple):
    name: str
    source: str  # of shaders/cuda; tests/cuda has a test of that name
    entry: str
    threads: int
    shared: int  # bytes
    defines: tuple  # of pairs
    bits: str = ""  # variants alike in this give the same bits
    alone: tuple = ()  # defines that leave out the other kernels of the source; the test tests them all
    capability: str = "80"  # the oldest that runs it


# The table of variants. From here to its end it is a part of the hash.

def products():
    """Products are named by dtype, layout and tile: of `tn`, the left factor is transposed in memory."""
    # The tile of a workgroup and of a warp, stages, and the workgroups that a multiprocessor shall hold.
    tiles = [
        (128, 128, 64, 32, 3, 2),
        (64, 64, 32, 32, 3, 4),
        (128, 256, 64, 64, 4, 1),
        (256, 128, 64, 64, 4, 1),
    ]
    for dtype in ("bf16", "f16", "tf32"):
        for layout in ("nn", "nt", "tn"):
            for m, n, warp_m, warp_n, stages, resident in tiles:
                yield Variant(
                    f"product.{dtype}.{layout}.{m}x{n}", "product.cu", "product",
                    threads=32 * (m // warp_m) * (n // warp_n), shared=stages * (m + n) * 64,
                    defines=(
                        ("F16", int(dtype == "f16")), ("TF32", int(dtype == "tf32")),
                        ("A_TRANSPOSED", int(layout == "tn")), ("B_TRANSPOSED", int(layout == "nt")),
                        ("TILE_M", m), ("TILE_N", n), ("WARP_M", warp_m), ("WARP_N", warp_n),
                        ("STAGES", stages), ("RESIDENT", resident),
                    ),
                    bits=f"product.{dtype}.{layout}",
                )


def attention():
    """Attention is named by kernel, dtype, size of a head, and dropout of the probabilities."""
    for dtype in ("bf16", "f16"):
        for size in (32, 64, 80, 96, 128):
            # The rows that a workgroup has in shared memory.
            rows = {"attend": 128 if size > 96 else 256, "backward_queries": 192, "backward_keys": 192}
            for dropout in (0, 1):
                for bit, (kernel, count) in enumerate(rows.items()):
                    shared = count * size * 2 + (512 if kernel == "backward_keys" else 0)
                    yield Variant(
                        f"{kernel}.{dtype}.{size}{'.dropout' * dropout}", "attention.cu", kernel, threads=128, shared=shared,
                        defines=(("F16", int(dtype == "f16")), ("SIZE", size), ("DROPOUT", dropout)),
                        alone=(("KERNELS", 1 << bit), ("SHARED", shared)),
                    )


def weights():
    for bit, kernel in enumerate(("squares", "update_weights", "sum_groups")):
        shared = 32 if kernel == "squares" else 0
        yield Variant(kernel, "weights.cu", kernel, threads=256, shared=shared, defines=(), alone=(("KERNELS", 1 << bit),), capability="61")


VARIANTS = [*products(), *attention(), *weights()]

# The end of the table of variants.


class Mutant(NamedTuple):
    variant: str
    source: str
    old: str
    new: str
    nth: int = 0  # which of the places with the old text


MUTANTS = [
    Mutant("product.bf16.nn.64x64", "product.cu", "wait<STAGES - 2>();", "wait<STAGES - 1>();"),
    Mutant("product.bf16.nn.64x64", "product.cu", "commit();\n        free", "free"),
    Mutant("product.bf16.nt.64x64", "product.cu", "wait<STAGES - 2>();\n        __syncthreads();", "wait<STAGES - 2>();"),
    Mutant("product.bf16.nn.64x64", "product.cu", "wait<0>();\n    __syncthreads();", "wait<0>();"),
    Mutant("product.bf16.nn.64x64", "product.cu", "__syncwarp();", "", 0),
    Mutant("product.bf16.nn.128x128", "product.cu", "__syncwarp();", "", 1),
    Mutant("product.bf16.nn.64x64", "product.cu", "a.copy(free);", "a.copy(filled);"),
    Mutant("product.bf16.nn.64x64", "product.cu", "if (filled == end)", "if (filled == end - STAGE_BYTES)"),
    Mutant("product.bf16.nn.64x64", "product.cu", "if (s + STAGES - 1 < stages)", "if (s + STAGES < stages)"),
    Mutant("product.bf16.nt.64x64", "product.cu", "row >> 1 & 3", "row & 3"),
    Mutant("product.tf32.nn.64x64", "product.cu", "(row & 3) * 2", "(row & 3)"),
    Mutant("product.f16.tn.64x64", "product.cu", "lane / 8 % 2 : lane / 16, other", "lane / 16 : lane / 8 % 2, other"),
    Mutant("product.bf16.nn.64x64", "product.cu", "min(first + row + i * ROWS, side - 1)", "first + row + i * ROWS"),
    Mutant("product.bf16.nn.64x64", "product.cu", "min(first + chunk * CHUNK, (side - 1) / CHUNK * CHUNK)", "first + chunk * CHUNK"),
    Mutant("product.bf16.nn.64x64", "product.cu", "y_row < p.m && y_column < p.n", "y_column < p.n"),
    Mutant("product.bf16.nn.64x64", "product.cu", "y_row < p.m && y_column < p.n", "y_row < p.m"),
    Mutant("product.tf32.nt.64x64", "product.cu", "r[e] = to_tf32(r[e])", ""),
    Mutant("product.bf16.tn.64x64", "product.cu", "part < 4", "part < 3"),
    Mutant("product.bf16.tn.64x64", "product.cu", "column_sums.store(total);\n        __syncthreads();", "column_sums.store(total);"),
    Mutant("product.bf16.tn.64x64", "product.cu", "        }\n        __syncthreads();\n    }", "        }\n    }"),
    Mutant("product.bf16.tn.64x64", "product.cu", "blockIdx.y * p.n + column", "column"),
    Mutant("product.bf16.nn.64x64", "product.cu", "if (whole && p.bias)", "if (p.bias)"),
    Mutant("product.bf16.nn.64x64", "product.cu", "min(8, rows - first)", "8"),
    Mutant("product.bf16.nn.64x64", "mma.cuh", "LOG2_E 1.44", "LOG2_E 1.45"),
]

# Mistakes in the kernels of attention: the kernel, the text, what it becomes, and which of the places it is.
ATTENTION_MUTANTS = [
    *(
        (kernel, old, new, nth)
        for nth, kernel in enumerate(("attend", "backward_queries", "backward_keys"))
        for old, new in [
            ("wait<0>();\n        __syncthreads();", "wait<0>();"),
            ("wait<0>();\n        __syncthreads();", "__syncthreads();"),
            ("wait<1>();\n    __syncthreads();", "wait<1>();"),
            ("wait<1>();\n    __syncthreads();", "wait<2>();\n    __syncthreads();"),
            ("        commit();\n        ", "        "),
        ]
    ),
    ("attend", "    commit();\n    wait<1>();", "    wait<1>();"),
    ("backward_keys", "    commit();\n    wait<1>();", "    wait<1>();", 1),
    ("attend", "    __syncthreads();\n    u16* to", "    u16* to"),
    ("backward_queries", "    __syncthreads();\n    u16* to", "    u16* to", 1),
    ("backward_keys", "    __syncthreads();\n    char* own", "    char* own"),
    ("attend", "memory + stage % 2 * 2 * TILE;\n        float s", "memory + (stage + 1) % 2 * 2 * TILE;\n        float s"),
    ("attend", "row + e / 2 * 8) s", "row + 1 + e / 2 * 8) s"),
    ("attend", "key + ATTEND_STAGE - 1 > first", "key + ATTEND_STAGE - 17 > first"),
    ("attend", "head / (shape.heads / shape.kv_heads)", "head % shape.kv_heads"),
    ("attend", "keys + shape.kv_heads * SIZE", "keys"),
    ("attend", "out[j][e] *= factor;", "out[j][e] *= 1.0f;"),
    ("attend", "sum[h] *= factor;", ""),
    ("attend", "most = max(most, xor_lane(most, 2));", ""),
    ("attend", "sum[e / 2] += s[j][e];", "if (!DROPOUT || keeps(shape, key_of_mask, ((u32)head * shape.time + row + e / 2 * 8) * shape.time + column + j * 8 + e % 2)) sum[e / 2] += s[j][e];"),
    ("attend", "((u32)head * shape.time + row + 8 * h)", "((u32)(head + 1) * shape.time + row + 8 * h)"),
    ("attend", "sequence_key(shape, sequence)", "sequence_key(shape, 0)"),
    ("attend", "shape.first_pair + blockIdx.y", "blockIdx.y"),
    ("backward_queries", "row + e / 2 * 8) s", "row + 1 + e / 2 * 8) s", 1),
    ("backward_queries", "delta[h] += xor_lane(delta[h], 2);", ""),
    ("backward_queries", "min(row, last);", "row;"),
    ("backward_keys", "row + e / 2 * 8 > at ||", "row - 1 + e / 2 * 8 > at ||"),
    ("backward_keys", " || at > last", ""),
    ("backward_keys", " || query + KEYS_STAGE > shape.time", ""),
    ("backward_keys", "STATISTICS + buffer * STATISTICS_BYTES) +", "STATISTICS) +"),
    ("backward_keys", "nth++;", "nth = sharing;"),
    ("backward_keys", "kv_head * sharing + nth, query", "kv_head + nth * shape.kv_heads, query"),
    ("backward_keys", "if (!kept) probability = 0.0f;", ""),
    ("attend", "min(row + i, last) * (stride", "(row + i) * (stride"),
    ("attend", "if (first + row < time)", ""),
    ("attend", "    __syncwarp();\n#pragma unroll\n    for (int j = 0; j < CHUNKS; j++) {", "#pragma unroll\n    for (int j = 0; j < CHUNKS; j++) {"),
    ("attend", "    __syncwarp();\n#pragma unroll\n    for (int i = 0", "#pragma unroll\n    for (int i = 0"),
    ("attend", "(chunk ^ (row", "(chunk ^ 0 * (row"),
    ("attend", "(at ^ (d * 32 & MIXED))", "(at + (d * 32 & MIXED))"),
]
# The same in the kernels on many weights.
WEIGHTS_MUTANTS = [
    ("squares", "first[middle] <= blockIdx.x", "first[middle] < blockIdx.x"),
    ("squares", "min(begin + SQUARES_SPAN, p.elements[k])", "begin + SQUARES_SPAN"),
    ("squares", "if (is_aligned(grad, 16))", "if (true)"),
    ("squares", "e < 4 && i + e < end", "e < 4"),
    ("squares", "total += xor_lane(total, by);", ""),
    ("squares", "total += xor_lane(total, by);", "", 1),
    ("squares", "    __syncthreads();\n", ""),
    ("squares", "p.first_sum + blockIdx.x", "blockIdx.x"),
    ("squares", "p.loss_scale[0] * p.divisor", "p.divisor"),
    ("update_weights", "if (p.control[1] == 0.0f) return;", ""),
    ("update_weights", "p.decay[k]", "p.decay[0]"),
    ("update_weights", "aligned && end", "end"),
    ("update_weights", "end - begin == UPDATE_SPAN", "true"),
    ("update_weights", "(1.0f - f.beta2) * g * g", "(1.0f - f.beta2) * g"),
    ("update_weights", "* f.root + f.eps", "* f.root"),
    ("update_weights", "(bits >> 16 & 1)", "1"),
    ("update_weights", "value != value ? 0x7fff :", ""),
    ("update_weights", "dtype == FLOAT16", "dtype != FLOAT16"),
    ("update_weights", "if (half) {", "{"),
    ("update_weights", "if (half) half[i]", "half[i]"),
    ("sum_groups", "column >= columns", "column > columns"),
    ("sum_groups", "column < p.width", "column <= p.width"),
    ("sum_groups", "p.partial[blockIdx.y]", "p.partial[0]"),
    ("sum_groups", "(size_t)group * columns", "(size_t)group * p.width"),
]
MUTANTS += [
    Mutant(kernel, "weights.cu", old, new, *nth) for kernel, old, new, *nth in WEIGHTS_MUTANTS
]
MUTANTS += [
    Mutant(f"{kernel}.bf16.64.dropout", "attention.cu", old, new, *nth) for kernel, old, new, *nth in ATTENTION_MUTANTS
]


def sources_hash():
    """Returns the hash of what decides the PTX: shaders/cuda, by name, and the table of variants in this file."""
    digest = hashlib.sha256()
    for path in sorted([*SHADERS.glob("*.cu"), *SHADERS.glob("*.cuh")]):
        digest.update(path.read_bytes())
    table = re.search("^# The table of variants.*^# The end of the table", Path(__file__).read_text(), re.S | re.M)
    digest.update(table.group().encode())
    return digest.hexdigest()


class Tools:
    """NVIDIA's compilers, in a folder."""

    def __init__(self, folder):
        folder = Path(folder) / "cuda"
        self.ptxas, self.nvdisasm = folder / "ptxas", folder / "nvdisasm"
        python = folder / "python"
        with tempfile.TemporaryDirectory() as work:
            pip = Path(work) / "python" / "bin" / "pip"

            def run_pip(*arguments):
                if not pip.exists():
                    subprocess.check_call([sys.executable, "-m", "venv", pip.parent.parent])
                subprocess.check_call([pip, *arguments, "--quiet", "--no-deps", "--only-binary=:all:"])

            if not (self.ptxas.exists() and self.nvdisasm.exists()):
                run_pip("download", "--dest", work, TRITON)
                folder.mkdir(parents=True, exist_ok=True)
                with zipfile.ZipFile(next(Path(work).glob("triton-*.whl"))) as wheel:
                    for tool in (self.ptxas, self.nvdisasm):
                        tool.write_bytes(wheel.read(f"triton/backends/nvidia/bin/{tool.name}"))
                        tool.chmod(0o755)
            # The packages are complete once they have this name.
            if not python.exists():
                run_pip("install", "--target", folder / "python.new", NVRTC, ZSTANDARD)
                (folder / "python.new").rename(python)
        sys.path.insert(0, str(python))
        import zstandard

        self.zstandard = zstandard
        self.nvrtc = ctypes.CDLL(str(next(python.glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.*"))))

    def compile(self, variant):
        """Returns the PTX of a variant, without the compiler's comments."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        options = [f"--gpu-architecture=compute_{variant.capability}", "--std=c++17"]
        options += ["-default-device", f"--include-path={SHADERS}"]
        options += [f"-D{name}={value}" for name, value in variant.defines + variant.alone]
        arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        source = (SHADERS / variant.source).read_bytes()
        call = self.nvrtc
        if call.nvrtcCreateProgram(ctypes.byref(program), source, variant.source.encode(), 0, None, None):
            sys.exit("NVRTC does not start")
        failed = call.nvrtcCompileProgram(program, len(options), arguments)
        call.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        call.nvrtcGetProgramLog(program, log)
        lines = [line for line in log.value.decode().splitlines() if line.strip() and "are deprecated" not in line]
        if lines:
            print(f"{variant.name}:", *lines, sep="\n")
        if failed:
            sys.exit(f"{variant.name} does not compile")
        call.nvrtcGetPTXSize(program, ctypes.byref(size))
        ptx = ctypes.create_string_buffer(size.value)
        call.nvrtcGetPTX(program, ptx)
        call.nvrtcDestroyProgram(ctypes.byref(program))
        lines = [re.sub(r"\s*//.*", "", line) for line in ptx.value.decode().splitlines()]
        text = "\n".join(line.strip() for line in lines if line.strip())
        return re.sub(r"^\.version .*$", f".version {PTX_VERSION}", text, flags=re.M) + "\n"

    def compile_all(self, variants):
        return {variant: self.compile(variant) for variant in variants}

    def assemble(self, variant, ptx, gpu, work):
        """Returns registers, bytes spilled, workgroups of a multiprocessor, and instructions per HMMA."""
        path = Path(work) / f"{variant.name}.{gpu}"
        source = Path(f"{path}.ptx")
        source.write_text(ptx)
        command = [self.ptxas, "-v", "-arch", gpu, source, "-o", path]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{variant.name} for {gpu}: {done.stderr}")
        registers = int(re.search(r"Used (\d+) registers", done.stderr).group(1))
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))
        shared, threads = GPUS[gpu]
        resident = min(
            65536 // (variant.threads * (registers + 7 & ~7)), shared * 1024 // (variant.shared + 1024), threads // variant.threads
        )
        code = subprocess.run([self.nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
        return registers, spilled, resident, per_multiplication(code)


def per_multiplication(code):
    """Returns the instructions per HMMA of the loop with the most of them."""
    instructions, labels, most = [], {}, (0, 0)
    for line in code.splitlines():
        if label := re.match(r"(\.L_\S+):", line.strip()):
            labels[label.group(1)] = len(instructions)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(instruction.group(1))
    for end, instruction in enumerate(instructions):
        target = re.search(r"BRA.*`\((\.L_\S+)\)", instruction)
        if target and labels.get(target.group(1), end + 1) <= end:
            body = instructions[labels[target.group(1)] : end + 1]
            most = max(most, (sum("HMMA" in each for each in body), -len(body)))
    return -most[1] / most[0] if most[0] else 0.0


def whole_text(ptx):
    parts = [f"//// sources {sources_hash()}\n"]
    for variant, text in ptx.items():
        parts += [f"//// {variant.name} threads={variant.threads} shared={variant.shared}\n", text]
    return "".join(parts)


def in_parallel(work, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


def measure(tools, ptx):
    """Returns the lines of the table, and whether nothing spills."""
    lines, fine = ["\t".join(["kernel", "threads", "shared memory in KiB", "PTX in KiB", *(f"{gpu}: registers, workgroups, instructions per HMMA" for gpu in GPUS)])], True
    pairs = [(variant, gpu) for variant in ptx for gpu in GPUS]
    with tempfile.TemporaryDirectory() as work:
        results = dict(zip(pairs, in_parallel(lambda pair: tools.assemble(pair[0], ptx[pair[0]], pair[1], work), pairs)))
    for variant, text in ptx.items():
        cells = [variant.name, str(variant.threads), f"{variant.shared / 1024:g}", f"{len(text) / 1024:.0f}"]
        for gpu in GPUS:
            registers, spilled, resident, instructions = results[variant, gpu]
            cells.append(f"{registers}, {resident}, {instructions:.1f}")
            if spilled or not resident:
                print(f"error: {variant.name} on {gpu}: {spilled} bytes spilled, {resident} workgroups", file=sys.stderr)
                fine = False
        lines.append("\t".join(cells))
    return lines, fine


def run_emulated(variant, folder, shaders, name):
    """Compiles and runs the test of a variant. Returns its output, and whether it found no mistake."""
    program = Path(folder) / name
    test = shaders.parent.parent / "tests" / "cuda" / Path(variant.source).with_suffix(".cpp").name
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-w", test, "-o", program]
    command += [f"-D{name}={value}" for name, value in variant.defines]
    subprocess.check_call(command)
    try:
        done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "it does not end", False
    conflicts = re.search(r"^conflicts (\d+) of [1-9]", done.stdout, re.M)
    return done.stdout + done.stderr, done.returncode == 0 and conflicts is not None and conflicts.group(1) == "0"


def make_libraries(variants, folder):
    folder.mkdir(parents=True, exist_ok=True)

    def make(variant):
        command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{SHADERS}"]
        command += [TESTS / "library.cpp", "-o", folder / f"{variant.name}.so"]
        command += [f'-DSOURCE="{variant.source}"', f"-DENTRY={variant.entry}"]
        subprocess.check_call(command + [f"-D{name}={value}" for name, value in variant.defines])

    in_parallel(make, variants)


def emulate(variants, mutants):
    """Tests the kernels and the test itself on the CPU. Returns whether all is as it should be."""
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        # One of the kernels that a test tests together.
        tests = list({(variant.source, variant.defines): variant for variant in variants}.values())
        results = in_parallel(lambda variant: run_emulated(variant, folder, SHADERS, variant.name), tests)
        bits = defaultdict(dict)
        for variant, (output, right) in zip(tests, results):
            if not right:
                print(f"error: {variant.name}:\n{output}", file=sys.stderr)
                fine = False
            if variant.bits:
                cases = [line for line in output.splitlines() if line.startswith("case ")]
                bits[variant.bits].setdefault(tuple(cases), []).append(variant.name)
        for different in bits.values():
            if len(different) > 1:
                print(f"error: these differ in their bits: {list(different.values())}", file=sys.stderr)
                fine = False
        print(f"{len(variants)} variants ran on the CPU")

        def run_mutant(at):
            index, mutant = at
            root = Path(folder) / f"mutant-{index}"
            shutil.copytree(SHADERS, root / "shaders" / "cuda")
            shutil.copytree(TESTS, root / "tests" / "cuda")
            path = root / "shaders" / "cuda" / mutant.source
            parts = path.read_text().split(mutant.old)
            if len(parts) < mutant.nth + 2:
                return "its text is not in the source", True
            mutated = mutant.old.join(parts[: mutant.nth + 1]) + mutant.new + mutant.old.join(parts[mutant.nth + 1 :])
            path.write_text(mutated)
            variant = next(variant for variant in VARIANTS if variant.name == mutant.variant)
            return run_emulated(variant, folder, root / "shaders" / "cuda", f"{index}")

        for mutant, (output, right) in zip(mutants, in_parallel(run_mutant, enumerate(mutants))):
            what = f"{mutant.variant}, {mutant.old!r} -> {mutant.new!r}"
            if right:
                print(f"error: a mutant is not noticed: {what}\n{output}", file=sys.stderr)
                fine = False
            else:
                lines = [line for line in output.splitlines() if not line.startswith("case ")]
                print(f"noticed: {what}: {lines[0] if lines else 'it crashes'}")
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "check", "libraries"])
    parser.add_argument("folder", nargs="?", default=ROOT / "target" / "cuda-kernels")
    parser.add_argument("--emulator", action="store_true")
    parser.add_argument("--ptxas", action="store_true")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME")
    arguments = parser.parse_args()
    everything = not (arguments.emulator or arguments.ptxas)
    variants = [variant for variant in VARIANTS if variant.name.startswith(tuple(arguments.only))]
    if not variants:
        sys.exit("no variant has such a name")
    if arguments.command == "libraries":
        make_libraries(variants, Path(arguments.folder))
        return
    fine = True
    if arguments.command == "check" and (everything or arguments.emulator):
        mutants = [mutant for mutant in MUTANTS if mutant.variant.startswith(tuple(arguments.only))]
        fine = emulate(variants, mutants)
    if arguments.command == "check" and arguments.emulator and not arguments.ptxas:
        sys.exit(not fine)
    tools = Tools(arguments.folder)
    ptx = tools.compile_all(variants)
    table, without_spills = measure(tools, ptx)
    fine &= without_spills
    print("\n".join(table))
    text = whole_text(ptx).encode()
    if arguments.command == "build":
        compressor = tools.zstandard.ZstdCompressor(
            compression_params=tools.zstandard.ZstdCompressionParameters.from_level(19, window_log=27, enable_ldm=True)
        )
        compressed = compressor.compress(text)
        PTX.write_bytes(compressed)
        TABLE.write_text("\n".join(table) + "\n")
        print(f"{len(variants)} variants, {len(text):,} bytes of PTX, compressed {len(compressed):,}")
    elif arguments.only == [""]:
        if not PTX.exists() or tools.zstandard.ZstdDecompressor().decompress(PTX.read_bytes()) != text:
            print(f"error: {PTX.relative_to(ROOT)} is not from these sources; run {sys.argv[0]} build", file=sys.stderr)
            fine = False
        if not TABLE.exists() or TABLE.read_text() != "\n".join(table) + "\n":
            print(f"error: {TABLE.relative_to(ROOT)} is not from these sources; run {sys.argv[0]} build", file=sys.stderr)
            fine = False
    sys.exit(not fine)


if __name__ == "__main__":
    main()
