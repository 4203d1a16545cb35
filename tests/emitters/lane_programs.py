"""Runs a few instructions in every thread of one block: words in, words out."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from emitters.ptx import R32, Entry, Module, Parameter, at
from emitters.target import arch_named
from tuner.simulator import Launch, simulate

Words = NDArray[np.uint32]


def run_in_lanes(
    program: Callable[[Entry, R32, list[R32]], Sequence[R32]], inputs: Sequence[Words], outputs: int
) -> list[Words]:
    """What `program(ptx, tid, words)` makes of word `tid` of every input, an array a returned register."""
    threads = len(inputs[0]) if inputs else 32
    names = [f"in{i}" for i in range(len(inputs))], [f"out{i}" for i in range(outputs)]
    module = Module(arch_named("sm_80"), ["a test"])
    ptx = module.entry("program", [Parameter(name, "u64") for name in names[0] + names[1]], threads)
    tid = ptx.r("mov.u32", "%tid.x")

    def address(name: str) -> str:
        return at(ptx.rd("mad.wide.u32", tid, 4, ptx.pointer(name)))

    words = [ptx.r("ld.global.b32", address(name)) for name in names[0]]
    results = program(ptx, tid, words)
    for name, result in zip(names[1], results, strict=True):
        ptx.op("st.global.b32", address(name), result)
    ptx.op("ret")
    buffers = dict(zip(names[0], inputs, strict=True))
    buffers |= {name: np.zeros(threads, np.uint32) for name in names[1]}
    launch = Launch("program", (1, 1, 1), (threads, 1, 1), 0, (*names[0], *names[1]))
    report = simulate(module.text(), [launch], buffers, outputs=tuple(names[1]))
    assert report.clean, [str(fault) for fault in report.faults]
    return [report.buffers[name] for name in names[1]]
