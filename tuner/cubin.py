"""What ptxas made of a kernel, read from the cubin itself: resources, code hash and SASS statistics."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Binary:
    """A kernel as assembled.

    Attributes:
        cubin: The ELF file.
        registers: Registers a thread, of the plan's main entry.
        shared_bytes: Static shared memory a block.
        spill_bytes: Spill stores and loads a thread, bytes.
        ptxas_version: ``13.0.88``.
        code_hash: blake3 over the code, constant and info sections, hex.
    """

    cubin: bytes
    registers: int
    shared_bytes: int
    spill_bytes: int
    ptxas_version: str
    code_hash: str
