"""Machine code of one function as counts: what NumPy reads from 128-bit instruction words, no disassembler.

Encoding facts, each held to nvdisasm on sm_80, 86, 89, 90, 100 and 120 by `tests/test_cubin.py`: the low 9
bits name the instruction, bits 12-15 the guard predicate (15 is ``@!PT``: never executed), bits 16-23 an
mma's accumulator, bits 105-108 the stall count. A branch holds its distance from the next instruction: in
bits 32-81 up to sm_89, in bits 34-81 and, of the lowest 10 bits, 16-23 from sm_90 on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

INSTRUCTION_BYTES = 16

MNEMONICS: dict[int, str] = {
    0x002: "MOV",
    0x010: "IADD3",
    0x012: "LOP3",
    0x016: "PRMT",
    0x019: "SHF",
    0x020: "FMUL",
    0x021: "FADD",
    0x023: "FFMA",
    0x024: "IMAD",
    0x025: "IMAD",
    0x026: "IDP",
    0x037: "IMMA",
    0x03B: "LDSM",
    0x03C: "HMMA",
    0x03F: "DMMA",
    0x0B9: "ULDC",
    0x108: "MUFU",
    0x118: "NOP",
    0x119: "S2R",
    0x11A: "DEPBAR",
    0x11D: "BAR",
    0x147: "BRA",
    0x14D: "EXIT",
    0x181: "LDG",
    0x182: "LDC",
    0x183: "LDL",
    0x184: "LDS",
    0x186: "STG",
    0x187: "STL",
    0x188: "STS",
    0x189: "SHFL",
    0x18E: "RED",
    0x192: "MEMBAR",
    0x1A6: "RED",
    0x1A8: "ATOMG",
    0x1AE: "LDGSTS",
    0x1AF: "LDGDEPBAR",
}
MMA = ("IMMA", "HMMA", "DMMA")
NEVER = "never"  # instructions guarded by @!PT: ptxas places them as spacers; they take an issue slot
OTHER = "other"

_NAMES = np.array([MNEMONICS.get(code, OTHER) for code in range(512)])
_BRANCH = 0x147
_FIRST_SPLIT_BRANCH_ARCH = 90


@dataclass(frozen=True)
class Loop:
    """The main loop of a function: the innermost backward branch around the most mma's, or global loads.

    Attributes:
        start, end: Offsets of its first instruction and of the end of its branch, bytes.
        mix: Instructions by mnemonic; those without a name here are ``other``.
        stall_cycles: Sum of the stall counts: the issue time of one warp alone, were nothing to wait for. On
            Ada it is not the tensor time: ptxas spaces mma's by 8 cycles where the hardware takes 16.
        chains: Different accumulators of its mma's: as many of a warp's mma's can be under way at once.
    """

    start: int
    end: int
    mix: Mapping[str, int]
    stall_cycles: int
    chains: int = 0

    @property
    def instructions(self) -> int:
        return (self.end - self.start) // INSTRUCTION_BYTES

    @property
    def mma(self) -> int:
        return _mma(self.mix)

    @property
    def ldmatrix(self) -> int:
        return self.mix.get("LDSM", 0)

    @property
    def instructions_per_mma(self) -> float | None:
        """Instructions of the loop for each mma in it; None where it has none."""
        return self.instructions / self.mma if self.mma else None


@dataclass(frozen=True)
class Code:
    """The instructions of one function.

    Attributes:
        instructions: Number of them, padding after the last EXIT included.
        mix: Number by mnemonic.
        loop: The main loop; None where nothing branches back.
        stall_cycles: Sum of the stall counts, as `Loop.stall_cycles`, each instruction taken once.
    """

    instructions: int
    mix: Mapping[str, int] = field(default_factory=dict)
    loop: Loop | None = None
    stall_cycles: int = 0

    @property
    def mma(self) -> int:
        return _mma(self.mix)


def scan(text: bytes, arch_number: int) -> Code:
    """Counts and main loop of a ``.text`` section.

    Args:
        text: Section content, a multiple of 16 bytes.
        arch_number: 89 for ``sm_89``; decides how branches are encoded.

    Raises:
        ValueError: The section is no whole number of instructions.
    """
    if len(text) % INSTRUCTION_BYTES:
        raise ValueError(f"a .text section must be a multiple of {INSTRUCTION_BYTES} bytes, got {len(text)}")
    words = np.frombuffer(text, dtype="<u8").reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    opcode = (low & np.uint64(0x1FF)).astype(np.int64)
    names = _NAMES[opcode]
    never = (low >> np.uint64(12)) & np.uint64(0xF) == 0xF
    names = np.where(never, NEVER, names)
    stalls = ((high >> np.uint64(41)) & np.uint64(0xF)).astype(np.int64)
    targets = ((low >> np.uint64(16)) & np.uint64(0xFF)).astype(np.int64)
    loop = _main_loop(names, stalls, targets, *_backward_branches(low, high, opcode, arch_number))
    return Code(len(words), _mix(names), loop, int(stalls.sum()))


def _backward_branches(
    low: NDArray[np.uint64], high: NDArray[np.uint64], opcode: NDArray[np.int64], arch_number: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Instruction numbers of the targets of backward branches, and of the branches."""
    at = np.flatnonzero(opcode == _BRANCH)
    # Bits 64-81 continue the distance as its sign; 18 of them are enough to find it.
    top = ((high[at] & np.uint64(0x3FFFF)) << np.uint64(46)).view(np.int64) >> 14
    upper = (low[at] >> np.uint64(32)).astype(np.int64)
    if arch_number < _FIRST_SPLIT_BRANCH_ARCH:
        distance = top | upper
    else:
        eight = ((low[at] >> np.uint64(16)) & np.uint64(0xFF)).astype(np.int64)
        distance = (((top | upper) >> 2) << 10) + eight * 4
    target = at + 1 + distance // INSTRUCTION_BYTES
    backward = (target < at) & (target >= 0)
    return target[backward], at[backward]


def _main_loop(
    names: NDArray[np.str_],
    stalls: NDArray[np.int64],
    targets: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> Loop | None:
    if not len(starts):
        return None
    is_mma = np.concatenate([[0], np.cumsum(np.isin(names, MMA))])
    is_global = np.concatenate([[0], np.cumsum(np.isin(names, ("LDG", "LDGSTS")))])
    is_shared = np.concatenate([[0], np.cumsum(np.isin(names, ("LDS", "LDSM")))])
    ends = ends + 1
    kinds = (is_mma, is_global, is_shared) if is_mma[-1] else (is_global, is_shared)
    work = list(zip(*(kind[ends] - kind[starts] for kind in kinds), strict=True))
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))

    def is_innermost(number: int) -> bool:
        start, end = spans[number]
        return not any(
            other != number and start <= s and e <= end and (e - s) < (end - start) and work[other][0] > 0
            for other, (s, e) in enumerate(spans)
        )

    inner = [number for number in range(len(spans)) if is_innermost(number)]
    # With equal work the shorter loop is the inner one.
    best = max(inner, key=lambda number: (*work[number], spans[number][0] - spans[number][1]))
    start, end = spans[best]
    return Loop(
        start=start * INSTRUCTION_BYTES,
        end=end * INSTRUCTION_BYTES,
        mix=_mix(names[start:end]),
        stall_cycles=int(stalls[start:end].sum()),
        chains=len(np.unique(targets[start:end][np.isin(names[start:end], MMA)])),
    )


def _mix(names: NDArray[np.str_]) -> dict[str, int]:
    found, counts = np.unique(names, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _mma(mix: Mapping[str, int]) -> int:
    return sum(mix.get(name, 0) for name in MMA)
