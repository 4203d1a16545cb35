"""How every float kernel's text begins: the header for people, the parameters of an entry, f32 constants."""

import struct
from collections.abc import Iterable
from typing import Any

from emitters.kernel import KernelSpec, schedule_values
from emitters.ptx import Module, Parameter
from emitters.target import Target


def open_module(spec: KernelSpec, schedule: Any, target: Target) -> Module:
    """A module whose header says what the text is: kernel, formula, semantic hash, schedule, target."""
    values = " ".join(f"{name}={value}" for name, value in schedule_values(schedule).items())
    return Module(
        target.arch,
        (
            f"kernel: {spec.id} v{spec.version}: {spec.computes}",
            f"semantic hash: {spec.semantic_hash}",
            f"schedule: {values}",
            f"target: {target.arch.name}",
        ),
    )


def parameters(spec: KernelSpec, names: Iterable[str]) -> tuple[Parameter, ...]:
    """Parameters of an entry by name: pointers, sizes and scalars have the type that the calling rule gives
    them."""
    return tuple(Parameter(name, _kind(spec, name)) for name in names)


def _kind(spec: KernelSpec, name: str) -> str:
    if name in spec.sizes:
        return "u32"
    return "f32" if name in spec.scalars else "u64"


def f32(value: float) -> str:
    """An f32 immediate, bit for bit: `0f3F800000` for 1."""
    return f"0f{struct.pack('>f', value).hex().upper()}"
