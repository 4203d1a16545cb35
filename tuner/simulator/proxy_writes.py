"""Ordinary writes to shared memory that the async proxy has not been told of (PTX ISA 8.6, "Proxies").

wgmma and bulk copies read shared memory through the async proxy. What ordinary stores (and `cp.async`) have
written is only there for them behind a `fence.proxy.async`, by the writer or by somebody ordered after it. A
fence counts for all reads from then on, whoever issues them: a missing one can be overlooked, no false alarm
is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.clock_races import ClockRaces, flat_cells
from tuner.simulator.faults import shared_race
from tuner.simulator.races import SharedRaces

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site
    from tuner.simulator.machine import Batch

Index = NDArray[np.int64]


class ProxyWrites:
    """For each granule of shared memory of a batch: who wrote it last without a fence since, and when."""

    def __init__(self, races: SharedRaces | ClockRaces) -> None:
        self.races = races
        self.shift = races.shift
        shape = (races.blocks, races.cells)
        self.writer = np.full(shape, -1, np.int16)
        self.time = np.zeros(shape, np.int32)
        self.site = np.zeros(shape, np.int32)

    def wrote(self, offsets: Index, nbytes: int, lanes: Any, site: Site) -> None:
        """Lanes (R, T) have written `nbytes` at their offsets."""
        block, thread, cell = flat_cells(self.races, offsets, nbytes, lanes, None)
        self.writer[block, cell] = thread
        self.site[block, cell] = site.number
        if isinstance(self.races, ClockRaces):
            self.time[block, cell] = self.races.own(block, thread)
        else:
            self.time[block, cell] = np.broadcast_to(self.races.epochs, (self.races.blocks, 1))[block, 0]

    def overwritten(self, offsets: Index, nbytes: int, lanes: Any, threads: Index) -> None:
        """The async proxy itself begins to write (B, N)."""
        block, _, cell = flat_cells(self.races, offsets, nbytes, lanes, threads)
        self.writer[block, cell] = -1

    def fence(self, lanes: NDArray[np.bool_]) -> None:
        """A proxy fence by lanes (B, T): of what they wrote, and of what is ordered before them."""
        writer = np.maximum(self.writer, 0)
        if isinstance(self.races, ClockRaces):
            clocks = self.races.clocks
            known = np.where(lanes[:, :, None], clocks, 0).max(axis=1)
            told = self.time <= np.take_along_axis(known, writer.astype(np.int64), 1)
        else:
            before = (self.time < self.races.epochs) & lanes.any(axis=1, keepdims=True)
            told = before | np.take_along_axis(lanes, writer.astype(np.int64), 1)
        self.writer[told] = -1

    def read(self, batch: Batch, offsets: Index, nbytes: int, lanes: Any, site: Site, threads: Index) -> None:
        """Check a read by the async proxy that `threads` (1, N) have issued."""
        block, thread, cell = flat_cells(self.races, offsets, nbytes, lanes, threads)
        writers = self.writer[block, cell]
        untold = writers >= 0
        if not untold.any():
            return
        first = int(untold.argmax())
        where = int(block[first]), int(cell[first])
        message = "read by the async proxy, and written by ordinary stores with no fence.proxy.async between"
        other = int(self.site[where]), int(writers[first])
        count = int(np.count_nonzero(untold))
        shared_race(
            batch, "race", message, site, where[0], int(thread[first]), where[1] << self.shift, count, *other
        )
