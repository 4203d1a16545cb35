"""PTX text to a `Module`: functions, declarations, and instructions with their line and operands.

One pass of one regular expression over the text. What an opcode means is not known here; only syntax is.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from tuner.simulator.operands import read_integer, read_operand, renamed_operand
from tuner.simulator.syntax import (
    TYPE_BYTES,
    Float,
    Function,
    Instruction,
    Integer,
    Module,
    Operand,
    PtxError,
    Variable,
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STATEMENT = re.compile(
    r"""\s*(?:
      (?P<open>\{) | (?P<close>\})
    | (?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)
    | (?:@(?P<negated>!?)\s*(?P<guard>[\w$%]+)\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>[^;]*);
    | \.(?P<directive>\w+)
    )""",
    re.VERBOSE,
)
_SPLIT = re.compile(r"\{[^}]*\}|\[(?:[^\[\]{}]|\{[^}]*\})*\]|\((?:[^()]*)\)|[^,\s{}\[\]()][^,{}\[\]()]*")
_REGISTERS = re.compile(r"(?:\.v\d\s+|\.align\s+\d+\s+)*\.(\w+)\s+([^;]*);")
_REGISTER_RANGE = re.compile(r"([\w$%]+)\s*(?:<\s*(\d+)\s*>)?")
_VARIABLE = re.compile(
    r"(?P<attributes>(?:\s*\.(?:align\s+\d+|v[248]|attribute\([^)]*\)|ptr|const|global|shared|local))*)"
    r"\s*\.(?P<type>\w+)(?P<more>(?:\s*\.(?:ptr|const|global|shared|local|align\s+\d+))*)\s+(?P<name>[\w$%]+)"
    r"\s*(?P<dims>(?:\[[^\]]*\]\s*)*)"
)
_COUNT = re.compile(r"0[xX][0-9a-fA-F]+|\d+")
MOST_REGISTERS = 1 << 20
"""In one declaration: far beyond any compiler's, and before a slip of the pen takes the memory."""
_TO_LINE_END = {"version", "target", "address_size", "loc", "file"}
_STATE_SPACES = {"shared", "global", "const", "local", "param"}
_PASSED_OVER = {"pragma", "branchtargets", "calltargets", "callprototype", "alias"}
_LINKAGE = {"visible", "extern", "weak", "common"}


def parse(text: str) -> Module:
    """Parse PTX text.

    Raises:
        PtxError: with the line, its text and the reason.
    """
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self.original = text
        clean = text
        if "//" in text or "/*" in text:
            clean = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        self.text = clean
        self.starts = [0]
        find, position = clean.find, clean.find("\n")
        while position >= 0:
            self.starts.append(position + 1)
            position = find("\n", position + 1)
        self.position = 0
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.target = self.version = ""
        self.scopes = 0

    def line(self, offset: int) -> int:
        return bisect_right(self.starts, offset)

    def error(self, reason: str, offset: int) -> PtxError:
        line = self.line(offset)
        end = self.text.find("\n", offset)
        return PtxError(reason, line, self.text[offset : end if end >= 0 else None])

    def module(self) -> Module:
        text, end = self.text.rstrip(), len(self.text.rstrip())
        while self.position < end:
            match = _STATEMENT.match(text, self.position)
            if match is None or match["directive"] is None:
                start = len(text) - len(text[self.position :].lstrip())
                raise self.error("a module-level directive was expected", start)
            start = match.start("directive") - 1
            self.position = match.end()
            name = match["directive"]
            if name in _LINKAGE:
                continue
            if name in ("entry", "func"):
                self.function(name == "entry", start)
            elif name in _STATE_SPACES:
                for variable in self.declarations(name, start):
                    self.variables[variable.name] = variable
            else:
                self.directive(name, start)
        if not self.version or not self.target:
            raise PtxError("a PTX module begins with .version and .target; they are missing")
        return Module(self.original, self.target, self.version, self.functions, self.variables)

    def directive(self, name: str, start: int) -> None:
        """Pass over a directive that holds no instructions; note version and target."""
        text = self.text
        if name in _TO_LINE_END:
            end = text.find("\n", self.position)
            end = len(text) if end < 0 else end
            value = text[self.position : end].strip()
            if name == "version":
                self.version = value
            elif name == "target":
                self.target = value.split(",")[0].strip()
            elif name == "address_size" and value != "64":
                raise self.error("only 64-bit addresses are simulated", start)
            self.position = end
        elif name == "section":
            end = text.find("}", self.position)
            if end < 0:
                raise self.error("this section has no closing brace", start)
            self.position = end + 1
        elif name in _PASSED_OVER:
            end = text.find(";", self.position)
            if end < 0:
                raise self.error(f".{name} has no closing semicolon", start)
            self.position = end + 1
        else:
            raise self.error(f"directive .{name} is not known", start)

    def declarations(self, space: str, start: int) -> list[Variable]:
        end = self.text.find(";", self.position)
        if end < 0:
            raise self.error(f".{space} has no closing semicolon", start)
        statement = self.text[self.position : end]
        self.position = end + 1
        head, _, value = statement.partition("=")
        try:
            return [self.variable(part, space, start, value.strip()) for part in _declared(head)]
        except PtxError:
            raise
        except ValueError as error:
            raise self.error(str(error), start) from None

    def variable(self, statement: str, space: str, start: int, value: str = "") -> Variable:
        match = _VARIABLE.fullmatch(statement.strip())
        if match is None or match["type"] not in TYPE_BYTES:
            raise self.error(f".{space} declaration {statement.strip()!r} is not understood", start)
        size = TYPE_BYTES[match["type"]]
        attributes = match["attributes"] + match["more"]
        vector = re.search(r"\.v([248])", attributes)
        if vector:
            size *= int(vector[1])
        # `.ptr ... .align N` speaks of the memory pointed to, not of the parameter
        aligned = re.search(r"\.align\s+(\d+)", attributes.split(".ptr")[0])
        if aligned and int(aligned[1]).bit_count() != 1:
            raise self.error(f"an alignment must be a power of two, got {aligned[1]}", start)
        count = 1
        for dimension in re.findall(r"\[([^\]]*)\]", match["dims"]):
            digits = dimension.strip()
            if digits and not _COUNT.fullmatch(digits):
                raise self.error(f"array size {digits!r} is no whole number", start)
            count *= read_integer(digits) if digits else 0
        initial = self.initial(value, match["type"], size * count, start) if value else None
        return Variable(
            match["name"],
            space,
            match["type"],
            int(aligned[1]) if aligned else size,
            size * count,
            self.line(start),
            initial,
        )

    def initial(self, value: str, type_: str, nbytes: int, start: int) -> bytes:
        data = bytearray()
        for item in value.replace("{", " ").replace("}", " ").split(","):
            operand = read_operand(item) if item.strip() else Integer(0)
            if isinstance(operand, Float):
                form = {"f32": "<f", "f64": "<d", "f16": "<e"}.get(type_)
                if form is None:
                    raise self.error(f"a .{type_} cannot be initialised with a float", start)
                data += struct.pack(form, operand.value)
            elif isinstance(operand, Integer):
                size = TYPE_BYTES[type_]
                data += (operand.value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            else:
                raise self.error("an initialiser that holds an address is not simulated", start)
        return bytes(data.ljust(nbytes, b"\0"))

    def parenthesised(self, start: int) -> list[Variable]:
        """Read a parameter list if one follows."""
        text, position = self.text, self.position
        while text[position : position + 1].isspace():
            position += 1
        if text[position : position + 1] != "(":
            return []
        end = text.find(")", position)
        if end < 0:
            raise self.error("this parameter list has no closing parenthesis", start)
        self.position = end + 1
        inner = text[position + 1 : end].strip()
        result = []
        for part in inner.split(",") if inner else []:
            declared = part.strip()
            kind, _, rest = declared[1:].partition(" ")
            if kind not in ("param", "reg"):
                raise self.error(f"parameter {declared!r} is not understood", start)
            result.append(self.variable(rest, kind, start))
        return result

    def function(self, is_entry: bool, start: int) -> None:
        text = self.text
        results = [] if is_entry else self.parenthesised(start)
        match = re.compile(r"\s*([\w$%]+)").match(text, self.position)
        if match is None:
            raise self.error("this function has no name", start)
        self.position = match.end()
        function = Function(match[1], is_entry, self.line(start), results=results)
        function.parameters = self.parenthesised(start)
        open_brace, semicolon = text.find("{", self.position), text.find(";", self.position)
        if open_brace < 0 or 0 <= semicolon < open_brace:  # a prototype only
            if semicolon < 0:
                raise self.error("this function has neither body nor semicolon", start)
            self.position = semicolon + 1
            return
        head = text[self.position : open_brace]
        places = {
            "reqntid": "required_threads",
            "maxntid": "maximum_threads",
            "reqnctapercluster": "required_cluster",
        }
        for name, numbers in re.findall(rf"\.({'|'.join(places)})\s+([\d\s,]+)", head):
            setattr(function, places[name], tuple(int(number) for number in numbers.split(",")))
        self.position = open_brace + 1
        self.functions[function.name] = function
        for variable in (*function.parameters, *function.results):
            if variable.space == "reg":
                function.registers[variable.name] = variable.type
        self.body(function, start)

    def body(self, function: Function, start: int) -> None:
        """Read statements up to the function's closing brace; nested braces are scopes of names."""
        text, match_at, split = self.text, _STATEMENT.match, _SPLIT.findall
        starts, append = self.starts, function.body.append
        renamed: dict[str, str] = {}
        scopes: list[tuple[dict[str, str], dict[str, Operand]]] = []
        cache: dict[str, Operand] = {}
        scope_path: tuple[int, ...] = (0,)
        line, next_line = self.line(self.position), 0
        next_line = starts[line] if line < len(starts) else len(text) + 1
        position = self.position
        while True:
            match = match_at(text, position)
            if match is None:
                rest = text[position:]
                if not rest.strip():
                    raise self.error(f"the body of {function.name} has no closing brace", start)
                raise self.error(
                    "this statement is not understood", position + len(rest) - len(rest.lstrip())
                )
            position = match.end()
            kind = match.lastgroup
            if kind == "operands":
                negated, guard, opcode, rest = match.group("negated", "guard", "opcode", "operands")
                offset = match.start("opcode")
                while offset >= next_line:
                    line += 1
                    next_line = starts[line] if line < len(starts) else len(text) + 1
                operands = []
                for item in split(rest):
                    operand = cache.get(item)
                    if operand is None:
                        try:
                            operand = read_operand(item)
                        except ValueError as error:
                            raise self.error(str(error), offset) from None
                        if renamed:
                            operand = renamed_operand(operand, renamed)
                        cache[item] = operand
                    operands.append(operand)
                if guard is not None and guard in renamed:
                    guard = renamed[guard]
                append(
                    Instruction(opcode, tuple(operands), guard, negated == "!", line, match[0], scope_path)
                )
            elif kind == "label":
                key = (scope_path[0], match["label"])
                if key in function.labels:
                    raise self.error(f"label {key[1]} is defined twice", match.start("label"))
                function.labels[key] = len(function.body)
            elif kind == "open":
                scopes.append((renamed, cache))
                renamed, cache = dict(renamed), {}
                self.scopes += 1
                scope_path = (self.scopes, *scope_path)
            elif kind == "close":
                if not scopes:
                    self.position = position
                    return
                renamed, cache = scopes.pop()
                scope_path = scope_path[1:]
            else:
                self.position = position
                self.local_directive(
                    function, match["directive"], match.start("directive") - 1, renamed, cache, scope_path[0]
                )
                position = self.position

    def local_directive(
        self,
        function: Function,
        name: str,
        start: int,
        renamed: dict[str, str],
        cache: dict[str, Operand],
        scope: int,
    ) -> None:
        if name == "reg":
            match = _REGISTERS.match(self.text, self.position) or _REGISTERS.search(self.text, self.position)
            if match is None or match[1] not in TYPE_BYTES:
                raise self.error("this register declaration is not understood", start)
            self.position = match.end()
            for base, count in _REGISTER_RANGE.findall(match[2]):
                if count and int(count) > MOST_REGISTERS:
                    raise self.error(
                        f"a declaration has at most {MOST_REGISTERS} registers, got {count}", start
                    )
                names = [f"{base}{number}" for number in range(int(count))] if count else [base]
                for declared in names:
                    unique = f"{declared}@{scope}" if scope else declared
                    if scope:
                        renamed[declared] = unique
                        cache.clear()
                    function.registers[unique] = match[1]
        elif name in _STATE_SPACES:
            for variable in self.declarations(name, start):
                if scope:
                    unique = f"{variable.name}@{scope}"
                    renamed[variable.name] = unique
                    cache.clear()
                    variable = Variable(
                        unique,
                        variable.space,
                        variable.type,
                        variable.align,
                        variable.nbytes,
                        variable.line,
                        variable.initial,
                    )
                function.variables[variable.name] = variable
        else:
            self.directive(name, start)


def _declared(statement: str) -> list[str]:
    """Split `.b8 a[4], b[4]` into declarations that each carry the type; leave a single one alone."""
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", statement)]
    first = parts[0]
    name = re.search(r"[\w$%]+\s*(?:\[[^\]]*\]\s*)*$", first)
    if name is None:
        raise ValueError(f"declaration {first!r} is not understood")
    prefix = first[: name.start()]
    return [first, *(prefix + part for part in parts[1:])]
