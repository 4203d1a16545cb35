"""Arguments of a kernel, a line of text each: what becomes of it for the parameter that it is for.

A buffer is one of
    in:FILE.npy                    the array of the file, C-contiguous
    out:TYPE:SHAPE                 undefined until the kernel writes it
    zeros:TYPE:SHAPE
    random:TYPE:SHAPE[:SEED]       standard normal, or integers over the whole range
    same:NAME                      the buffer of an earlier argument once more
    map:BUFFER,box=SHAPE[,...]     a tensor map of the whole of one of these; its options are swizzle=BYTES,
                                   steps=SHAPE, fill=nan and type=TYPE
with TYPE of u8, s8, ... s64, f16, bf16, f32, f64 and SHAPE as 64x32. NAME= before it names the buffer, which
else has the name of its parameter. A scalar is a number (5, 0x10, 0.5), typed by its parameter, or
TYPE:NUMBER. A struct passed by value is bytes:FILE.npy.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.simulator import PtxError, TensorMap
from tuner.simulator.syntax import Function, Variable

MOST_BYTES = 1 << 34
"""Of one generated buffer: a slip of the pen is refused before it takes the memory."""
SEED = 0

Given: TypeAlias = str | int | float | NDArray[Any] | TensorMap
_TYPES: dict[str, np.dtype[Any]] = {
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(np.uint16),  # NumPy has no bfloat16: its bits
}
_BUFFERS = ("in", "out", "zeros", "random", "same")
_MAP_OPTIONS = ("box", "swizzle", "steps", "fill", "type")
_FLOATS = ("f16", "bf16", "f32", "f64")


class ArgumentError(ValueError):
    """What was given does not fit the entry, or cannot be had. One line: the rule, the value, the way out."""


class Prepared:
    """The buffers, the names of undefined ones, and the arguments of a launch."""

    def __init__(self, function: Function, given: Sequence[Given]) -> None:
        self.buffers: dict[str, NDArray[Any]] = {}
        self.undefined: list[str] = []
        self.arguments: list[str | int | float | bytes | TensorMap] = []
        if len(given) != len(function.parameters):
            names = ", ".join(f".{one.type} {one.name}" for one in function.parameters) or "none"
            raise ArgumentError(
                f"entry {function.name} has {len(function.parameters)} parameters ({names}), "
                f"got {len(given)} arguments; give one for each, in order"
            )
        for variable, one in zip(function.parameters, given, strict=True):
            self.arguments.append(self.argument(variable, one))

    def argument(self, variable: Variable, given: Given) -> str | int | float | bytes | TensorMap:
        if isinstance(given, np.ndarray):
            return self.buffer(variable.name, _checked(given, variable.name))
        if not isinstance(given, str):
            return given
        name, equals, text = given.partition("=") if "=" in given.split(":")[0] else ("", "", given)
        if equals and not name.isidentifier():
            raise ArgumentError(f"a buffer's name is letters, digits and _, got {name!r} in {given!r}")
        kind, colon, rest = text.partition(":")
        if not colon:
            return _number(variable, text)
        name = name or variable.name
        if kind in _BUFFERS:
            return self.named(given, name, kind, rest)
        if kind == "map":
            return self.tensor_map(given, name, rest)
        if kind == "bytes":
            return read_array(Path(rest)).tobytes()
        if kind in _TYPES:
            return _typed(variable, kind, rest)
        raise ArgumentError(
            f"an argument is in:, out:, zeros:, random:, same:, map:, bytes:, a type and a number, or a "
            f"number, got {given!r}"
        )

    def named(self, given: str, name: str, kind: str, rest: str) -> str:
        """The name of the buffer that a text asks for."""
        if kind == "in":
            return self.buffer(name, read_array(Path(rest)))
        if kind == "same":
            if rest not in self.buffers:
                known = ", ".join(self.buffers) or "none"
                raise ArgumentError(f"{given!r} names no earlier buffer; known are {known}")
            return rest
        if kind == "out":
            self.undefined.append(name)
        return self.buffer(name, _generated(given, kind, rest))

    def tensor_map(self, given: str, name: str, text: str) -> TensorMap:
        """A tensor map of a whole buffer; shapes in the order of the buffer's."""
        source, *options = text.split(",")
        kind, _, rest = source.partition(":")
        chosen = dict(option.partition("=")[::2] for option in options)
        twice = len(chosen) < len(options)
        if kind not in _BUFFERS or "box" not in chosen or twice or not set(chosen) <= set(_MAP_OPTIONS):
            raise ArgumentError(
                f"a tensor map is map:BUFFER,box=SHAPE, with {', '.join(_MAP_OPTIONS[1:])} as options, "
                f"each once, got {given!r}"
            )
        buffer = self.named(given, name, kind, rest)
        declared = rest.split(":")[0] if kind in ("out", "zeros", "random") else ""
        try:
            return TensorMap.of(
                buffer,
                self.buffers[buffer],
                _shape(given, chosen["box"])[::-1],
                chosen.get("type", declared),
                element_strides=_shape(given, chosen["steps"])[::-1] if "steps" in chosen else (),
                swizzle=_whole(given, chosen.get("swizzle", "0")),
                fill=chosen.get("fill", "zero"),
            )
        except PtxError as error:
            raise ArgumentError(f"{error} in {given!r}") from None

    def buffer(self, name: str, array: NDArray[Any]) -> str:
        if name in self.buffers:
            raise ArgumentError(f"two buffers are named {name!r}; same:{name} passes one of them twice")
        self.buffers[name] = array
        return name


def read_array(path: Path) -> NDArray[Any]:
    """The array of a .npy file: numbers or booleans in this machine's byte order, C-contiguous.

    Raises:
        ArgumentError: There is no such file, or it is none of that.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise ArgumentError(f"{path} must be a .npy file of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{path} must be a .npy file, got an archive; save each array on its own")
    return _checked(array, str(path))


def _checked(array: NDArray[Any], where: str) -> NDArray[Any]:
    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        raise ArgumentError(f"{where} must hold numbers in this machine's byte order, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{where} must be C-contiguous; save numpy.ascontiguousarray(x) instead")
    return array


def _generated(given: str, kind: str, text: str) -> NDArray[Any]:
    parts = text.split(":")
    if len(parts) not in ((2, 3) if kind == "random" else (2,)):
        form = "random:TYPE:SHAPE[:SEED]" if kind == "random" else f"{kind}:TYPE:SHAPE"
        raise ArgumentError(f"the form is {form}, got {given!r}")
    dtype = _TYPES.get(parts[0])
    if dtype is None:
        raise ArgumentError(f"a type is one of {', '.join(_TYPES)}, got {parts[0]!r} in {given!r}")
    shape = _shape(given, parts[1])
    seed = _whole(given, parts[2]) if len(parts) == 3 else SEED
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
    if nbytes > MOST_BYTES:
        raise ArgumentError(f"a buffer has at most {MOST_BYTES} bytes, got {nbytes} in {given!r}")
    if kind != "random":
        return np.zeros(shape, dtype)
    return _random(parts[0], shape, np.random.default_rng(seed))


def _shape(given: str, text: str) -> tuple[int, ...]:
    return tuple(_whole(given, size) for size in text.split("x"))


def _whole(given: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ArgumentError(
            f"a shape is whole numbers joined by x, a seed or a swizzle is one, got {text!r} in {given!r}"
        )
    return int(text)


def _random(type_name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Standard normal floats, integers over the whole range of their type."""
    dtype = _TYPES[type_name]
    if type_name in _FLOATS:
        values = rng.standard_normal(shape)
        return _bf16_bits(values) if type_name == "bf16" else values.astype(dtype)
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)


def _bf16_bits(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Finite values cut to bfloat16, as its bits."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _number(variable: Variable, text: str) -> int | bytes:
    """A plain number as the parameter types it; what has a point or an exponent is a float of its size."""
    if variable.type in _FLOATS:
        return _typed(variable, variable.type, text)
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        float(text)
    except ValueError:
        raise ArgumentError(
            f"argument {variable.name} (.{variable.type}) must be a number, or a buffer as in:FILE.npy or "
            f"out:f32:1024, got {text!r}"
        ) from None
    return _typed(variable, f"f{8 * variable.nbytes}", text)


def _typed(variable: Variable, type_name: str, text: str) -> bytes:
    """A number of a named type, which has to be the parameter's size and no float for an integer."""
    where = f"argument {variable.name} is a .{variable.type}"
    dtype = _TYPES.get(type_name, np.dtype(np.float64))
    is_float, wants_float = type_name in _FLOATS, variable.type.lstrip("b").startswith("f")
    if dtype.itemsize != variable.nbytes or (variable.type[0] != "b" and is_float != wants_float):
        raise ArgumentError(f"{where} of {variable.nbytes} bytes, which cannot be {type_name}:{text}")
    try:
        if type_name == "bf16":
            return _bf16_bits(np.array(float(text))).tobytes()
        if is_float:
            return struct.pack({2: "<e", 4: "<f", 8: "<d"}[dtype.itemsize], float(text))
        return int(text, 0).to_bytes(dtype.itemsize, "little", signed=dtype.kind == "i")
    except (ValueError, OverflowError):
        raise ArgumentError(f"{where}; a {type_name} does not hold {text!r}") from None
