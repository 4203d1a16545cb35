"""Records faults: which thread did what, where, and who the other party is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.report import Fault

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site
    from tuner.simulator.machine import Batch

Mask = NDArray[np.bool_]


def place(batch: Batch, block: int, thread: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return ((x, y, z) of the block, (x, y, z) of the thread)."""
    return unravel(int(batch.block_ids[block]), batch.context.grid), unravel(thread, batch.context.block)


def lane_fault(
    batch: Batch,
    kind: str,
    message: str,
    site: Site,
    lanes: Mask,
    address: Any = None,
    space: str = "",
    buffer: str = "",
) -> None:
    """Record a fault of some lanes; the first of them is named."""
    lanes = np.broadcast_to(lanes, (batch.blocks, batch.threads))
    first = int(lanes.argmax())
    block, thread = divmod(first, batch.threads)
    count = int(np.count_nonzero(lanes))
    findings, step = batch.context.findings, batch.context.step
    if findings.seen(kind, step, site.line, count):
        return
    where, who = place(batch, block, thread)
    findings.add(
        Fault(kind, message, site.line, site.text, step, where, who, address, space, buffer, count=count)
    )


def shared_race(
    batch: Batch,
    kind: str,
    message: str,
    site: Site,
    block: int,
    thread: int,
    offset: int,
    count: int,
    other_site: int | None,
    other_thread: int | None,
) -> None:
    """Record a fault at a shared address, with the number of the instruction and the thread it collides
    with.
    """
    findings, step = batch.context.findings, batch.context.step
    if findings.seen(kind, step, site.line, count):
        return
    where, who = place(batch, block, thread)
    other = batch.program.sites[other_site] if other_site is not None else None
    them = unravel(other_thread, batch.context.block) if other_thread is not None else None
    findings.add(
        Fault(
            kind,
            message,
            site.line,
            site.text,
            step,
            where,
            who,
            offset + 1024,
            "shared",
            "",
            other.line if other else None,
            other.text if other else "",
            them,
            where if other else None,
            count,
        )
    )


def global_race(
    batch: Batch,
    message: str,
    site: Site,
    row: int,
    thread: int,
    offset: int,
    buffer: str,
    count: int,
    other_site: int,
    other_block: int | None,
    other_thread: int | None,
) -> None:
    findings, step = batch.context.findings, batch.context.step
    if findings.seen("race", step, site.line, count):
        return
    where, who = place(batch, row, thread)
    other = batch.program.sites[other_site]
    them = unravel(other_thread, batch.context.block) if other_thread is not None else None
    there = unravel(other_block, batch.context.grid) if other_block is not None else None
    findings.add(
        Fault(
            "race",
            message,
            site.line,
            site.text,
            step,
            where,
            who,
            offset,
            "global",
            buffer,
            other.line,
            other.text,
            them,
            there,
            count,
        )
    )


def unravel(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the (x, y, z) of a linear index, x fastest."""
    return number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1])
