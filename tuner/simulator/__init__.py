"""Runs PTX on a CPU, exactly, and finds races, stray accesses and undefined reads. It imports nothing else of
ours.

module = parse(ptx_text) report = simulate(module, [Launch("kernel", (4, 1, 1), (128, 1, 1), 0, ("a", "c",
512))], {"a": a, "c": c})
"""

from tuner.simulator.counters import Counters, Traffic
from tuner.simulator.parser import parse
from tuner.simulator.report import FAULT_KINDS, Fault, Report, Unwritten
from tuner.simulator.simulation import Launch, Memset, simulate
from tuner.simulator.syntax import Module, PtxError
from tuner.simulator.tensor_maps import TensorMap

__all__ = [
    "FAULT_KINDS",
    "Counters",
    "Fault",
    "Launch",
    "Memset",
    "Module",
    "PtxError",
    "Report",
    "TensorMap",
    "Traffic",
    "Unwritten",
    "parse",
    "simulate",
]
