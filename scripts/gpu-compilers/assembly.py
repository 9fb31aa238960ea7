"""Reads the machine code of NVK, RADV and nvdisasm: its loops, and what they multiply and load."""

import re
from typing import NamedTuple


class Syntax(NamedTuple):
    """How a disassembler writes labels and instructions."""

    label: re.Pattern  # group 1 is the name
    branch: re.Pattern  # group 1 is the target; searched in an instruction
    always: re.Pattern  # branches and exits without a condition
    comment: str
    multiply_add: re.Pattern  # each match in an instruction is a multiply-add of each lane
    matrix: re.Pattern  # a matrix multiplication of a subgroup
    gather: re.Pattern  # a load of one 16-bit element from workgroup memory


NAK = Syntax(
    label=re.compile(r"^block\S* \d+ (L\d+) "),
    branch=re.compile(r"\bbra \S+ (L\d+)"),
    always=re.compile(r"^(bra pT|exit)\b"),
    comment="//",
    multiply_add=re.compile(r"\bffma\b|\bhfma2\b"),
    matrix=re.compile(r"\b[hi]mma"),
    gather=re.compile(r"\bld\.shared\S*\.[us]16"),
)
ACO = Syntax(
    label=re.compile(r"^(BB\d+):"),
    branch=re.compile(r"^s_c?branch\w* (BB\d+)"),
    always=re.compile(r"^s_(branch|endpgm)\b"),
    comment=";",
    # v_fma_mix also converts.
    multiply_add=re.compile(r"\bv_(?:dual_)?(?:fma|fmac|fmamk|fmaak)_f32|\bv_pk_fma_f16"),
    matrix=re.compile(r"\bv_wmma_"),
    gather=re.compile(r"\bds_(load|read)_[ui]16"),
)
SASS = Syntax(
    label=re.compile(r"^(\.L_x_\d+):"),
    branch=re.compile(r"\bBRA.*`\((\.L_x_\d+)\)"),
    always=re.compile(r"^(BRA|EXIT|RET\S*)\b(?!.*\bP\d)"),
    comment=";",
    multiply_add=re.compile(r"\bFFMA\b|\bHFMA2\b"),
    matrix=re.compile(r"\b[HI]MMA\b"),
    gather=re.compile(r"\bLDS\.[US]16"),
)


class Loop(NamedTuple):
    instructions: int
    multiply_adds: int
    matrices: int
    gathers: int

    def multiplies(self):
        return self.matrices or self.multiply_adds


def inner_loops(text, syntax):
    """Returns the innermost loops that multiply, in a kernel's assembly."""
    code, labels = instructions(text, syntax)
    successors = [targets(code, labels, syntax, at) for at in range(len(code))]
    predecessors = [[] for _ in code]
    for at, after in enumerate(successors):
        for to in after:
            predecessors[to].append(at)
    # All backward branches to one instruction are one loop.
    loops = {}
    for at, after in enumerate(successors):
        for head in after:
            if head <= at:
                loops.setdefault(head, {head}).update(body(predecessors, head, at))
    patterns = (syntax.multiply_add, syntax.matrix, syntax.gather)
    found = [[len(pattern.findall(line)) for pattern in patterns] for line in code]
    counted = [
        (members, Loop(len(members), *map(sum, zip(*(found[at] for at in members)))))
        for members in loops.values()
    ]
    # A matrix kernel's scalar multiply-adds are addresses and scales.
    uses_matrices = any(loop.matrices for _, loop in counted)
    multiply = [
        (members, loop) for members, loop in counted
        if loop.matrices or (loop.multiply_adds and not uses_matrices)
    ]
    return [loop for members, loop in multiply if not any(other < members for other, _ in multiply)]


def instructions(text, syntax):
    """Returns the instructions, and the index of the one after each label."""
    code, labels = [], {}
    for line in text:
        line = re.sub(r"/\*.*?\*/", "", line).split(syntax.comment)[0].strip()
        found = syntax.label.match(line)
        if found:
            labels[found.group(1)] = len(code)
        elif re.match(r"[@\w]", line):
            code.append(line)
    return code, labels


def targets(code, labels, syntax, at):
    """Returns the instructions that may follow one."""
    found = syntax.branch.search(code[at])
    after = [labels[found.group(1)]] if found and found.group(1) in labels else []
    if not syntax.always.match(code[at]):
        after.append(at + 1)
    return [to for to in after if to < len(code)]


def body(predecessors, head, end):
    """Returns the instructions between a loop's head and a branch back to it."""
    members, pending = {head}, [end]
    while pending:
        at = pending.pop()
        if at not in members:
            members.add(at)
            pending += predecessors[at]
    return members
