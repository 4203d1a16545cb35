"""Imports every module that enters instructions in the table."""

from __future__ import annotations

import tuner.simulator.approximations
import tuner.simulator.arithmetic
import tuner.simulator.async_copies
import tuner.simulator.atomics
import tuner.simulator.bits
import tuner.simulator.clusters
import tuner.simulator.comparisons
import tuner.simulator.control
import tuner.simulator.conversions
import tuner.simulator.floats
import tuner.simulator.loads_stores
import tuner.simulator.matrix
import tuner.simulator.matrix_moves
import tuner.simulator.mbarriers
import tuner.simulator.moves
import tuner.simulator.permutations
import tuner.simulator.warps
import tuner.simulator.wgmma
import tuner.simulator.wmma  # noqa: F401
from tuner.simulator.instructions import covered_instructions

__all__ = ["covered_instructions"]
