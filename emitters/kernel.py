"""What an entry of `KERNELS` is: the contract of a kernel, and the functions that make, feed and judge it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from emitters.target import Target
from results.expression import evaluate
from results.plan import LaunchPlan

ParameterValue = int | str | bool
Array = NDArray[Any]


class EmitError(ValueError):
    """A schedule that the emitter refuses. The message gives the rule, the value and the way out."""


class ProblemError(ValueError):
    """A problem that the kernel, or a schedule, cannot serve."""


class DataError(ValueError):
    """Real data that cannot be had, or do not fit. The message gives the rule, the value and the way out."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One operand.

    Attributes:
        name: Its name in plans and references.
        role: ``in`` or ``out``.
        dtype: NumPy name: ``int8``, ``uint32``, ``float32``.
        shape: Formulas over the sizes; C-contiguous.
        layout: For a person: what an element is.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[str, ...]
    layout: str = ""

    def shape_for(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(evaluate(axis, sizes) for axis in self.shape)


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule that every problem of a kernel keeps, e.g. `n must be a multiple of 16`.

    Attributes:
        size: The size it speaks of.
        formula: Non-zero where it holds.
        rule: In words, to follow the name of the size.
    """

    size: str
    formula: str
    rule: str


@dataclass(frozen=True)
class KernelSpec:
    """What is computed. Two kernels with one `semantic_hash` are interchangeable.

    Attributes:
        id: ``ternary_gemm_s8``; the entry point has the same name.
        version: Raised when the meaning of the same call changes.
        computes: The formula, for people.
        buffers: Operands in the order of the entry's pointers (a workspace follows them).
        sizes: Names of the sizes in the order of the entry's ``.u32`` parameters and of ``--shape``.
        scalars: Names of the f32 parameters that follow.
        limits: Rules that every problem keeps.
    """

    id: str
    version: int
    computes: str
    buffers: tuple[BufferSpec, ...]
    sizes: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    @cached_property
    def semantic_hash(self) -> str:
        """blake3 of the canonical JSON of everything above, hex."""
        return blake3(canonical_json(asdict(self)).encode()).hexdigest()

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(buffer.name for buffer in self.buffers if buffer.role == "out")

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names in the order in which the entry takes them, without a workspace."""
        return (*(buffer.name for buffer in self.buffers), *self.sizes, *self.scalars)

    def problem(self, *sizes: int) -> "Problem":
        """A checked problem from sizes in the kernel's order.

        Raises:
            ProblemError: Wrong number of sizes, or a limit is broken.
        """
        if len(sizes) != len(self.sizes):
            raise ProblemError(
                f"a problem of {self.id} is {'x'.join(self.sizes)} ({len(self.sizes)} sizes), "
                f"got {'x'.join(map(str, sizes))}"
            )
        named = dict(zip(self.sizes, sizes, strict=True))
        for limit in self.limits:
            if not evaluate(limit.formula, named):
                raise ProblemError(f"{limit.size} {limit.rule}, got {named[limit.size]}")
        return Problem(tuple(named.items()))

    def parse_problem(self, text: str) -> "Problem":
        """The problem that ``--shape`` writes as ``4096x3456x1280``.

        Raises:
            ProblemError: As `problem`, or a part is no whole number.
        """
        parts = text.lower().split("x")
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise ProblemError(
                f"a problem of {self.id} is whole numbers joined by x, as {'x'.join(self.sizes)}, "
                f"got {text!r}"
            )
        return self.problem(*map(int, parts))


class RealData(Protocol):
    """Operands from outside for one problem. Hashable and picklable: each process fetches them itself."""

    @property
    def description(self) -> Mapping[str, str]:
        """What a row records: ``hash`` of the bytes, and where they are from."""
        ...

    def operands(self, kernel: "Kernel[Any]") -> Mapping[str, Array]:
        """Buffers by name; those of the kernel that are not among them are made up.

        Raises:
            DataError: They cannot be had any more.
        """
        ...

    def beginning(self, kernel: "Kernel[Any]", problem: "Problem", rows: int) -> "Problem":
        """The problem that the first rows of these data are, so many at most."""
        ...


@dataclass(frozen=True)
class Problem:
    """The sizes of one instance, in the kernel's order. Made by `KernelSpec.problem`, which checks them.

    Attributes:
        items: Name and size of each.
        data: What its operands are; None where any will do.
    """

    items: tuple[tuple[str, int], ...]
    data: RealData | None = None

    @cached_property
    def sizes(self) -> dict[str, int]:
        return dict(self.items)

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]

    def __str__(self) -> str:
        return "x".join(str(size) for _, size in self.items)


@dataclass(frozen=True)
class Inputs:
    """Data for one problem: every ``in`` buffer by name, and the value of every scalar."""

    buffers: Mapping[str, Array]
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What the outputs must be.

    Attributes:
        values: Every output by name, shaped as the buffer. For float outputs float64.
        bounds: Absolute error allowed, element by element, for the way the schedule sums; an output that is
            not named here must be equal bit for bit.
    """

    values: Mapping[str, Array]
    bounds: Mapping[str, Array] = field(default_factory=dict)

    def mismatched(self, name: str, actual: Array) -> NDArray[np.bool_]:
        """True where an element is wrong. NaN and infinity are wrong wherever a bound applies."""
        expected = self.values[name]
        if name not in self.bounds:
            return np.not_equal(_bits(actual), _bits(expected.astype(actual.dtype, copy=False)))
        with np.errstate(invalid="ignore"):
            return ~np.less_equal(np.abs(actual.astype(np.float64) - expected), self.bounds[name])


def _bits(values: Array) -> Array:
    """The same bytes as unsigned integers, so that -0.0 differs from 0.0 and a NaN equals itself."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


@dataclass(frozen=True, slots=True)
class Demand:
    """What any implementation has to do for a problem; the physical bound follows from it.

    Attributes:
        operations: Additions and multiplications, counted apart.
        unit: The unit that does them: ``mma_s8``, ``mma_f16`` or ``fp32``.
        read_bytes: Bytes that must be read once.
        write_bytes: Bytes that must be written once.
    """

    operations: int
    unit: str
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True)
class EmittedKernel:
    """One schedule's kernel: text and plan.

    Attributes:
        kernel: Kernel id.
        arch: Name of the architecture.
        schedule: Every parameter by name.
        ptx: The text.
        plan: What one call does.
    """

    kernel: str
    arch: str
    schedule: Mapping[str, ParameterValue]
    ptx: str
    plan: LaunchPlan

    @cached_property
    def source_hash(self) -> str:
        """blake3 of the text and the plan, hex."""
        return blake3(f"{canonical_json(self.plan.to_json())}\n{self.ptx}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TensorOperand:
    """How a kernel takes a matrix of a model file.

    Attributes:
        tensor_type: Name of the GGML type: ``Q4_K``.
        operand: The buffer that it becomes; its first axis is the matrix's rows, the kernel's first size.
        convert: From what the file holds, (rows, bytes or elements of a row), to the buffer.
    """

    tensor_type: str
    operand: str
    convert: Callable[[Array], Array]


S = TypeVar("S")


def _as_given(_schedule: Any, _problem: Problem, inputs: Inputs) -> Inputs:
    return inputs


@dataclass(frozen=True)
class Kernel(Generic[S]):
    """An entry of `KERNELS`: everything the tuner needs to know about a kernel.

    Attributes:
        spec: What is computed.
        aliases: Other names that the command line takes.
        schedule_type: Frozen dataclass of int, str and bool fields; `search_spaces` names the same ones.
        emit: Text and plan of a schedule. Deterministic. Raises EmitError.
        inputs: Fresh data for a problem: negatives, extremes and every code occur.
        reference: Exact results, or float64 ones with the bound that the schedule's way of summing earns.
        edge_problems: Small problems that together reach every guard of that schedule.
        demand: What any implementation has to do for a problem.
        default_problem: What ``tune run`` tunes unless told otherwise.
        usual_problems: Problems it is usually tuned for, the default one first.
        baseline: The schedule that the search has to beat first.
        prepare: The inputs as this schedule wants them (weights prepacked once on the host); not timed.
        tensor: Which matrix of a model file can be its weights; None for none.
    """

    spec: KernelSpec
    schedule_type: type[S]
    emit: Callable[[S, Target], EmittedKernel]
    inputs: Callable[[Problem, np.random.Generator], Inputs]
    reference: Callable[[Problem, Inputs, S], Expected]
    edge_problems: Callable[[S], tuple[Problem, ...]]
    demand: Callable[[Problem], Demand]
    usual_problems: tuple[Problem, ...]
    baseline: S
    aliases: tuple[str, ...] = ()
    prepare: Callable[[S, Problem, Inputs], Inputs] = _as_given
    tensor: TensorOperand | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def default_problem(self) -> Problem:
        return self.usual_problems[0]

    def data(self, problem: Problem, rng: np.random.Generator) -> Inputs:
        """Inputs of a problem: its real data where it has any, made up otherwise.

        Raises:
            DataError: The real data cannot be had.
        """
        made = self.inputs(problem, rng)
        if problem.data is None:
            return made
        return Inputs({**made.buffers, **problem.data.operands(self)}, made.scalars)

    def schedule(self, values: Mapping[str, ParameterValue]) -> S:
        """The typed schedule of named values.

        Raises:
            EmitError: A parameter is missing or unknown.
        """
        names = [parameter.name for parameter in fields(self.schedule_type)]  # type: ignore[arg-type]
        for name in values:
            if name not in names:
                raise EmitError(f"{self.id} has no parameter {name!r}; it has {', '.join(names)}")
        for name in names:
            if name not in values:
                raise EmitError(f"{self.id} needs a value for {name!r}")
        return self.schedule_type(**values)


def schedule_values(schedule: Any) -> dict[str, ParameterValue]:
    """Every parameter of a typed schedule by name."""
    return {parameter.name: getattr(schedule, parameter.name) for parameter in fields(schedule)}


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
