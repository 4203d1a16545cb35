"""What ptxas made of a kernel, read from the cubin itself: resources, code hash and SASS statistics.

A cubin is a 64-bit little-endian ELF file. Section names and the register record of ``.nv.info`` are as
``readelf -S`` and ``cuobjdump -elf`` show them; `tests/test_cubin.py` holds both to what ``ptxas -v`` says.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from blake3 import blake3

from tuner.sass import Code, scan

_HASHED = (".text.", ".nv.constant", ".nv.info")
# From sm_90 on the driver keeps the first KiB of shared memory, and ptxas counts it in .nv.shared.ENTRY.
_RESERVED = ".nv.shared.reserved."
_RESERVED_BYTES = 1024
_NOBITS = 8
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REGISTER_COUNT = 0x2F  # attribute of .nv.info: symbol index, registers
_SIZED = 4  # an attribute of this format carries its own length


class CubinError(ValueError):
    """A file that is no cubin, or one cut short."""


@dataclass(frozen=True)
class Function:
    """One entry point as assembled.

    Attributes:
        name: As in the PTX.
        registers: Registers a thread.
        shared_bytes: Static shared memory a block.
        spill_bytes: Spill stores and loads a thread, bytes.
        code: Its instructions as counts, and its main loop.
    """

    name: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    code: Code


@dataclass(frozen=True)
class Binary:
    """A kernel as assembled.

    Attributes:
        cubin: The ELF file.
        registers: Registers a thread, of the plan's main entry (the first one of the PTX).
        shared_bytes: Static shared memory a block.
        spill_bytes: Spill stores and loads a thread, bytes.
        ptxas_version: ``13.0.88``.
        code_hash: blake3 over the code, constant and info sections, hex.
        functions: Every entry point, the main one first.
    """

    cubin: bytes
    registers: int
    shared_bytes: int
    spill_bytes: int
    ptxas_version: str
    code_hash: str
    functions: tuple[Function, ...] = ()

    def function(self, entry: str) -> Function:
        """The entry point of that name.

        Raises:
            KeyError: There is none; the message names those there are.
        """
        for function in self.functions:
            if function.name == entry:
                return function
        raise KeyError(f"no entry {entry!r} in the cubin; it has {', '.join(f.name for f in self.functions)}")


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size: int
    content: bytes


def read_binary(
    cubin: bytes, arch_number: int, entries: tuple[str, ...], spills: Mapping[str, int], ptxas_version: str
) -> Binary:
    """Everything that is known about a cubin.

    Args:
        cubin: The ELF file.
        arch_number: 89 for ``sm_89``.
        entries: Entry points in the order of the PTX; the first is the main one.
        spills: Spill bytes by entry, from ``ptxas -v``: the file itself does not tell spills from other
            local memory.
        ptxas_version: Of the assembler that wrote it.

    Raises:
        CubinError: The file is no cubin, is cut short, or lacks an entry.
    """
    sections = {section.name: section for section in _sections(cubin)}
    registers = _registers(sections)
    functions = []
    for entry in entries:
        text = sections.get(f".text.{entry}")
        if text is None or entry not in registers:
            raise CubinError(f"the cubin has no code for entry {entry!r}")
        functions.append(
            Function(
                name=entry,
                registers=registers[entry],
                shared_bytes=_static_shared(sections, entry),
                spill_bytes=spills.get(entry, 0),
                code=scan(text.content, arch_number),
            )
        )
    if not functions:
        raise CubinError("the PTX has no .entry")
    main = functions[0]
    return Binary(
        cubin=cubin,
        registers=main.registers,
        shared_bytes=main.shared_bytes,
        spill_bytes=main.spill_bytes,
        ptxas_version=ptxas_version,
        code_hash=code_hash(cubin),
        functions=tuple(functions),
    )


def code_hash(cubin: bytes) -> str:
    """blake3 over the code, constant and info sections, hex.

    The rest is left out on purpose: ptxas writes its own option string into ``.note.nv.tkinfo``, so equal
    code from different command lines would differ.

    Raises:
        CubinError: The file is no cubin, or is cut short.
    """
    digest = blake3()
    for section in sorted(_sections(cubin), key=lambda section: section.name):
        if section.name.startswith(_HASHED):
            digest.update(f"{section.name}\0{section.size}\0".encode())
            digest.update(section.content)
        elif section.name.startswith(".nv.shared."):
            digest.update(f"{section.name}\0{section.size}\0".encode())
    return digest.hexdigest()


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CubinError("not a cubin: it does not start as a 64-bit little-endian ELF file")
    try:
        (table,) = struct.unpack_from("<Q", cubin, 0x28)
        entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
        headers = [_SECTION_HEADER.unpack_from(cubin, table + i * entry_size) for i in range(count)]
        names_at, names_size = headers[names_index][4:6]
    except (struct.error, IndexError):
        raise CubinError("not a whole cubin: its section table is cut short") from None
    names = cubin[names_at : names_at + names_size]
    sections = []
    for name_at, kind, _, _, at, size, *_ in headers:
        name = names[name_at : names.find(b"\0", name_at)].decode("ascii", "replace")
        content = b"" if kind == _NOBITS else cubin[at : at + size]
        if kind != _NOBITS and len(content) != size:
            raise CubinError(f"not a whole cubin: section {name} is cut short")
        sections.append(_Section(name, kind, size, content))
    return sections


def _static_shared(sections: Mapping[str, _Section], entry: str) -> int:
    own = sections.get(f".nv.shared.{entry}")
    if own is None:
        return 0
    reserved = any(name.startswith(_RESERVED) for name in sections)
    return own.size - (_RESERVED_BYTES if reserved else 0)


def _registers(sections: Mapping[str, _Section]) -> dict[str, int]:
    """Registers a thread by function name, from the attributes of ``.nv.info``."""
    info, symbols, strings = (sections.get(name) for name in (".nv.info", ".symtab", ".strtab"))
    if info is None or symbols is None or strings is None:
        raise CubinError("not a cubin: it has no .nv.info, .symtab or .strtab")
    found = {}
    at = 0
    while at + 4 <= info.size:
        form, attribute, length = struct.unpack_from("<BBH", info.content, at)
        at += 4
        if form != _SIZED:
            continue  # such an attribute keeps its value where others keep their length
        if attribute == _REGISTER_COUNT:
            index, registers = struct.unpack_from("<II", info.content, at)
            name_at = _SYMBOL.unpack_from(symbols.content, index * _SYMBOL.size)[0]
            end = strings.content.find(b"\0", name_at)
            found[strings.content[name_at:end].decode("ascii", "replace")] = registers
        at += length
    return found
