"""A builder of PTX text: typed virtual registers, labels, shared memory, phases.

It knows syntax only. An instruction is written as in the PTX ISA (`ptx.op("bar.sync", 0)`); one that makes a
value names the class of its result (`lane = ptx.r("and.b32", tid, 31)`). The text depends on nothing but the
calls.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType, TypeVar

from emitters.target import Arch

R16 = NewType("R16", str)
"""A 16-bit register, `%h`."""
R32 = NewType("R32", str)
"""A 32-bit integer register, `%r`."""
R64 = NewType("R64", str)
"""A 64-bit integer register, `%rd`."""
F32 = NewType("F32", str)
"""An f32 register, `%f`."""
F64 = NewType("F64", str)
"""An f64 register, `%fd`."""
Pred = NewType("Pred", str)
"""A predicate, `%p`, as it is or negated."""
Label = NewType("Label", str)
"""A branch target."""

Operand = str | int

SHARED = "shared_memory"
"""Symbol of the dynamic shared memory of every kernel."""

SHARED_ALIGNMENT = 128
"""Of the dynamic shared memory: a swizzle flips address bits below this."""

_CLASSES = (("p", "pred"), ("h", "b16"), ("r", "b32"), ("rd", "b64"), ("f", "f32"), ("fd", "f64"))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an entry: its name and PTX type (``u64`` for a pointer)."""

    name: str
    type: str


def vector(registers: Iterable[str]) -> str:
    """`{%r1, %r2}`."""
    return "{" + ", ".join(registers) + "}"


def at(base: str, offset: int = 0) -> str:
    """The address `[base+offset]`, offset in bytes."""
    return f"[{base}{offset:+d}]" if offset else f"[{base}]"


def negated(predicate: Pred) -> Pred:
    """The guard that holds where `predicate` does not."""
    return Pred(predicate[1:] if predicate.startswith("!") else "!" + predicate)


def hexadecimal(value: int) -> str:
    """A 32-bit constant as `0xC0C0C0C0`."""
    return f"0x{value & 0xFFFFFFFF:08X}"


R = TypeVar("R", bound=str)


class Entry:
    """The body of one `.entry` while it is being written.

    Made by `Module.entry`. The short methods `r rd p f fd h` emit an instruction and return its new
    destination register; `new_*` allocate a register without writing to it.
    """

    def __init__(
        self, name: str, parameters: Sequence[Parameter], threads: int, min_blocks: int | None = None
    ) -> None:
        self.name = name
        self.threads = threads
        self._parameters = tuple(parameters)
        self._min_blocks = min_blocks
        self._lines: list[str] = []
        self._counts = {prefix: 0 for prefix, _ in _CLASSES}
        self._labels: dict[str, int] = {}
        self._static: list[str] = []

    # --- registers ---

    def _new(self, prefix: str) -> str:
        number = self._counts[prefix]
        self._counts[prefix] = number + 1
        return f"%{prefix}{number}"

    def new_r(self) -> R32:
        return R32(self._new("r"))

    def new_rs(self, count: int) -> list[R32]:
        return [self.new_r() for _ in range(count)]

    def new_rd(self) -> R64:
        return R64(self._new("rd"))

    def new_p(self) -> Pred:
        return Pred(self._new("p"))

    def new_f(self) -> F32:
        return F32(self._new("f"))

    def new_fs(self, count: int) -> list[F32]:
        return [self.new_f() for _ in range(count)]

    def new_fd(self) -> F64:
        return F64(self._new("fd"))

    def new_h(self) -> R16:
        return R16(self._new("h"))

    # --- instructions ---

    def op(self, opcode: str, *operands: Operand, guard: Pred | None = None) -> None:
        """One instruction, destination first, `guard` as its predicate."""
        prefix = "    " if guard is None else f"    @{guard} "
        if operands:
            self._lines.append(f"{prefix}{opcode} {', '.join(map(str, operands))};")
        else:
            self._lines.append(f"{prefix}{opcode};")

    def _value(self, destination: R, opcode: str, operands: tuple[Operand, ...], guard: Pred | None) -> R:
        self.op(opcode, destination, *operands, guard=guard)
        return destination

    def r(self, opcode: str, *operands: Operand, guard: Pred | None = None) -> R32:
        return self._value(self.new_r(), opcode, operands, guard)

    def rd(self, opcode: str, *operands: Operand, guard: Pred | None = None) -> R64:
        return self._value(self.new_rd(), opcode, operands, guard)

    def p(self, opcode: str, *operands: Operand, guard: Pred | None = None) -> Pred:
        return self._value(self.new_p(), opcode, operands, guard)

    def f(self, opcode: str, *operands: Operand, guard: Pred | None = None) -> F32:
        return self._value(self.new_f(), opcode, operands, guard)

    def fd(self, opcode: str, *operands: Operand, guard: Pred | None = None) -> F64:
        return self._value(self.new_fd(), opcode, operands, guard)

    def h(self, opcode: str, *operands: Operand, guard: Pred | None = None) -> R16:
        return self._value(self.new_h(), opcode, operands, guard)

    def lop3(self, table: int, a: Operand, b: Operand, c: Operand) -> R32:
        """Any bitwise function of three words; `table` is the function of 0xF0, 0xCC and 0xAA."""
        return self.r("lop3.b32", a, b, c, f"0x{table:02X}")

    # --- parameters, shared memory ---

    def pointer(self, parameter: str) -> R64:
        """A pointer parameter as a global address."""
        generic = self.rd("ld.param.u64", at(self._declared(parameter, "u64")))
        return self.rd("cvta.to.global.u64", generic)

    def size(self, parameter: str) -> R32:
        """A `.u32` parameter."""
        return self.r("ld.param.u32", at(self._declared(parameter, "u32")))

    def scalar(self, parameter: str) -> F32:
        """An `.f32` parameter."""
        return self.f("ld.param.f32", at(self._declared(parameter, "f32")))

    def _declared(self, name: str, kind: str) -> str:
        if Parameter(name, kind) not in self._parameters:
            known = ", ".join(f"{p.name} ({p.type})" for p in self._parameters)
            raise ValueError(f"a parameter must be one of {known}, got {name} ({kind})")
        return f"param_{name}"

    def shared_base(self) -> R32:
        """Address of the dynamic shared memory in the shared window."""
        return self.r("mov.u32", SHARED)

    def static_shared(self, name: str, nbytes: int, alignment: int = 16) -> R32:
        """Address of `nbytes` of static shared memory of this entry's own."""
        self._static.append(f"    .shared .align {alignment} .b8 {name}[{nbytes}];")
        return self.r("mov.u32", name)

    # --- layout of the text ---

    def phase(self, title: str, *details: str) -> None:
        """A blank line and a comment that says what comes next."""
        self._lines += ["", f"    // --- {title} ---", *(f"    // {line}" for line in details)]

    def comment(self, text: str) -> None:
        self._lines.append(f"    // {text}")

    def new_label(self, name: str) -> Label:
        """A label that is not placed yet; names that repeat are numbered."""
        number = self._labels.get(name, 0)
        self._labels[name] = number + 1
        return Label(f"{name}_{number}" if number else name)

    def place(self, label: Label) -> None:
        self._lines.append(f"{label}:")

    def branch(self, label: Label, guard: Pred | None = None) -> None:
        """A jump. Where all threads of the block agree, `op("bra.uni", ...)` says more."""
        self.op("bra", label, guard=guard)

    def text(self) -> str:
        """The whole `.entry`."""
        declared = ",\n".join(f"    .param .{p.type} param_{p.name}" for p in self._parameters)
        lines = [f".visible .entry {self.name}(", declared, ")", f".maxntid {self.threads}, 1, 1"]
        if self._min_blocks is not None:
            lines.append(f".minnctapersm {self._min_blocks}")
        lines.append("{")
        for prefix, kind in _CLASSES:
            if self._counts[prefix]:
                lines.append(f"    .reg .{kind} %{prefix}<{self._counts[prefix]}>;")
        return "\n".join([*lines, *self._static, *self._lines, "}", ""])


class Module:
    """One PTX file: version and target from the arch, a header for people, one entry or several."""

    def __init__(self, arch: Arch, header: Sequence[str]) -> None:
        self._arch = arch
        self._header = tuple(header)
        self._entries: list[Entry] = []

    def entry(
        self, name: str, parameters: Sequence[Parameter], threads: int, min_blocks: int | None = None
    ) -> Entry:
        """A new entry; its text is part of the module's from now on.

        Args:
            name: Of the `.entry`.
            parameters: In the order of the call.
            threads: Of a block. Becomes `.maxntid`, without which ptxas ignores `.minnctapersm`.
            min_blocks: Blocks that ptxas must leave registers for on one SM; None leaves it free.
        """
        entry = Entry(name, parameters, threads, min_blocks)
        self._entries.append(entry)
        return entry

    def text(self) -> str:
        head = [
            *(f"// {line}" for line in self._header),
            f".version {self._arch.ptx_version}",
            f".target {self._arch.name}",
            ".address_size 64",
            "",
            f".extern .shared .align {SHARED_ALIGNMENT} .b8 {SHARED}[];",
            "",
        ]
        return "\n".join([*head, *(entry.text() for entry in self._entries)])


class SharedLayout:
    """Hands out regions of dynamic shared memory, one after the other."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int, alignment: int = 16) -> int:
        """Offset of a new region, in bytes."""
        start = -(-self.nbytes // alignment) * alignment
        self.nbytes = start + nbytes
        return start
