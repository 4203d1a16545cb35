"""Slots: where the registers, constants, special registers and symbols of one entry live in the register
list.

Slot 0 is scratch. Every operand is a slot, so closures index one list and never ask what an operand is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.scalar_types import SCALARS, U32, U64, Lanes, Scalar, poison
from tuner.simulator.syntax import Function, Module, Variable

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site

SHARED_BASE = 1024
"""Shared memory does not start at 0, so an address that forgot its base is out of bounds."""

SPECIAL_REGISTERS: dict[str, Scalar] = {
    **{f"%{name}.{axis}": U32 for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    **{f"%{name}": U32 for name in ("laneid", "warpid", "nwarpid", "smid", "nsmid", "dynamic_smem_size")},
    **{
        f"%{name}": U32
        for name in ("total_smem_size", "is_explicit_cluster", "cluster_ctarank", "cluster_nctarank")
    },
    **{
        f"%{name}.{axis}": U32
        for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
        for axis in "xyz"
    },
    **{f"%lanemask_{name}": U32 for name in ("eq", "lt", "le", "gt", "ge")},
    **{"%clock": U32, "%clock_hi": U32, "%clock64": U64, "%globaltimer": U64, "%globaltimer_lo": U32},
    **{"%gridid": U64, "WARP_SZ": U32},
}


class Layout:
    """Slots of one entry function and the addresses of its shared and local variables."""

    def __init__(self, module: Module, function: Function) -> None:
        self.module, self.function = module, function
        self.dtypes: list[np.dtype[Any]] = [np.dtype(np.uint32)]
        self.initial: list[Lanes] = [poison(np.dtype(np.uint32))]
        self.names: dict[int, str] = {}
        self.registers: dict[str, int] = {}
        self.constants: dict[tuple[int, np.dtype[Any]], int] = {}
        self.specials: dict[str, int] = {}
        self.symbols: dict[tuple[str, int, np.dtype[Any]], int] = {}
        self.addresses: dict[str, tuple[str, int]] = {}
        self.static_shared = self.dynamic_start = SHARED_BASE
        self.local_bytes = 0
        self.place(module, function)

    def place(self, module: Module, function: Function) -> None:
        """Give shared and local variables their addresses: static shared ones first, then dynamic."""
        variables = [*module.variables.values(), *function.variables.values()]
        end = SHARED_BASE
        dynamic: list[Variable] = []
        for variable in variables:
            if variable.space == "shared" and variable.nbytes == 0:
                dynamic.append(variable)
            elif variable.space == "shared":
                start = -(-end // variable.align) * variable.align
                if start % (2 * variable.align) == 0:
                    start += variable.align  # aligned as it says, and no better
                self.addresses[variable.name] = ("shared", start)
                end = start + variable.nbytes
            elif variable.space in ("local", "param"):
                start = -(-self.local_bytes // variable.align) * variable.align
                self.addresses[variable.name] = (variable.space, start)
                self.local_bytes = start + variable.nbytes
        self.static_shared = end
        alignment = max([16, *(variable.align for variable in dynamic)])
        self.dynamic_start = -(-end // alignment) * alignment if dynamic else end
        for variable in dynamic:
            self.addresses[variable.name] = ("shared", self.dynamic_start)
        position = 0
        for variable in function.parameters:
            position = -(-position // variable.align) * variable.align
            self.addresses[variable.name] = ("kernel_param", position)
            position += variable.nbytes
        self.parameter_bytes = position

    def new_slot(self, dtype: np.dtype[Any], initial: Lanes | None = None) -> int:
        self.dtypes.append(dtype)
        self.initial.append(poison(dtype) if initial is None else initial)
        return len(self.dtypes) - 1

    def register(self, name: str) -> int | None:
        """Return the slot of a declared register, None if `name` is none."""
        slot = self.registers.get(name)
        if slot is None:
            declared = self.function.registers.get(name)
            if declared is None:
                return None
            slot = self.registers[name] = self.new_slot(SCALARS[declared].storage)
            self.names[slot] = name
        return slot

    def constant(self, bits: int, scalar: Scalar) -> int:
        key = (bits, scalar.storage)
        slot = self.constants.get(key)
        if slot is None:
            value = np.array([[bool(bits) if scalar.kind == "p" else bits]], scalar.storage)
            slot = self.constants[key] = self.new_slot(scalar.storage, value)
        return slot

    def symbol(self, name: str, scalar: Scalar, site: Site, offset: int = 0) -> int:
        """Return the slot of a special register or of a variable's address."""
        if name in SPECIAL_REGISTERS:
            special = SPECIAL_REGISTERS[name]
            if special.bits != scalar.bits:
                raise site.error(f"{name} is {special.bits} bits wide, .{scalar.name} was expected")
            if name not in self.specials:
                self.specials[name] = self.new_slot(special.storage)
            return self.specials[name]
        if name in self.addresses:
            space, start = self.addresses[name]
            if space == "kernel_param":
                start += PARAMETER_BASE
            return self.constant((start + offset) & ((1 << scalar.bits) - 1), scalar)
        if name in self.module.variables:
            key = (name, offset, scalar.storage)
            if key not in self.symbols:
                self.symbols[key] = self.new_slot(scalar.storage)
            return self.symbols[key]
        if name.startswith("%"):
            raise site.error(
                f"register {name} is not declared, and no special register of this name is simulated"
            )
        raise site.error(f"{name} is not declared")


PARAMETER_BASE = 3 << 60
"""Generic address of the parameter space; a load names its parameter, a tensor map is found by address."""
