"""Values of special registers for a batch of blocks (PTX ISA, "Special Registers")."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tuner.simulator.scalar_types import Lanes

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

WARP_SLOTS = 64
"""%nwarpid: the most warps that a multiprocessor of sm_80 or sm_90 holds."""


def special_value(name: str, batch: Batch) -> Lanes:
    """Return a special register with the smallest shape that holds it."""
    context = batch.context
    base, _, axis = name.lstrip("%").partition(".")
    number = "xyz".find(axis) if axis else 0
    threads = np.arange(batch.threads, dtype=np.uint32)[None, :]
    if base == "tid":
        return _axis(threads, context.block, number)
    if base == "ctaid" or base == "clusterid":
        return _axis(batch.block_ids.astype(np.uint32)[:, None], context.grid, number)
    if base in ("ntid", "nctaid", "nclusterid"):
        return _one((context.block if base == "ntid" else context.grid)[number])
    lane = threads & np.uint32(31)
    one = np.uint32(1)
    values: dict[str, Callable[[], Lanes]] = {
        "laneid": lambda: lane,
        "warpid": lambda: _warp_slots(batch, threads >> np.uint32(5)),
        "nwarpid": lambda: _one(WARP_SLOTS),
        "smid": lambda: (batch.block_ids % 128).astype(np.uint32)[:, None],
        "nsmid": lambda: _one(128),
        "gridid": lambda: np.array([[context.step + 1]], np.uint64),
        "WARP_SZ": lambda: _one(32),
        "dynamic_smem_size": lambda: _one(context.shared_bytes),
        "total_smem_size": lambda: _one(batch.shared.nbytes),
        "lanemask_eq": lambda: one << lane,
        "lanemask_lt": lambda: (one << lane) - one,
        "lanemask_le": lambda: ((one << lane) - one) | (one << lane),
        "lanemask_gt": lambda: ~(((one << lane) - one) | (one << lane)),
        "lanemask_ge": lambda: ~((one << lane) - one),
        "is_explicit_cluster": lambda: _one(0),
        "cluster_ctarank": lambda: _one(0),
        "cluster_nctarank": lambda: _one(1),
        "cluster_ctaid": lambda: _one(0),
        "cluster_nctaid": lambda: _one(1),
    }
    if base in ("clock64", "globaltimer"):
        return np.array([[0]], np.uint64)
    if base in ("clock", "clock_hi", "globaltimer_lo"):
        return _one(0)
    return values[base]()


def _warp_slots(batch: Batch, warps: Lanes) -> Lanes:
    """Return %warpid: different for the warps of a block, and otherwise not to be counted on."""
    places = 37 * warps.astype(np.int64) + 11 + batch.block_ids[:, None]
    return (places % WARP_SLOTS).astype(np.uint32)


def _one(value: int) -> Lanes:
    return np.array([[value]], np.uint32)


def _axis(linear: Lanes, sizes: tuple[int, int, int], number: int) -> Lanes:
    below = np.uint32(sizes[0] * sizes[1] if number == 2 else sizes[0] if number == 1 else 1)
    value = (linear // below) % np.uint32(sizes[number])
    return value[:1, :1].copy() if sizes[number] == 1 else value.astype(np.uint32)
