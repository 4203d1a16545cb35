"""Cycles of a launch whose warps run freely: no barrier in the main loop, so blocks drift apart and overlap.

Streaming kernels (matrix-vector products, norms, attention of one token) are of this kind. What decides is
how many bytes they keep in flight against latency times bandwidth (Little's law). Between too few and more
than enough that is the machine-repairman model of queueing theory: n batches of loads are each served by
memory, at its bandwidth, and then away for a latency and what their warp does with them. The chance that all
are away, so that memory idles, is Erlang's loss formula of n and of the ratio of both times (Kleinrock,
Queueing Systems, volume 1, 1975, sections 3.6 and 3.8). Nothing in it is fitted. It supposes that each SM has
its share of L2 and DRAM to itself, and that service times scatter as those of random arrivals do.
"""

from dataclasses import dataclass

import numpy as np

from tuner.occupancy import FloatArray, Number

MOST_BATCHES = 256
"""With more batches in flight memory never idles, for any ratio of times that occurs."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One launch as memory sees it. All fields are numbers or arrays over schedules.

    Attributes:
        warps: Of a block.
        steps: Loads that a warp waits for, one after the other.
        lookahead: Of them, how many are in flight at once.
        own: Cycles of a warp's own instructions a step.
        outside: The same once a block, before and after its loop.
        latency: Of a load, cycles.
        drain: From the last store of a block to its end, cycles.
    """

    warps: Number
    steps: Number
    lookahead: Number
    own: Number
    outside: Number
    latency: Number
    drain: Number

    def cycles(self, blocks: FloatArray, resident: FloatArray, service: FloatArray) -> FloatArray:
        """Cycles until memory has served all blocks of an SM.

        Args:
            blocks: Of the SM; may be a fraction.
            resident: Of them at once.
            service: Memory's cycles for the traffic of one block.
        """
        # The first batches of the first blocks are asked for all at once; later blocks begin one by one.
        at_once = np.clip(resident, 1, np.maximum(blocks, 1))
        full, left = np.divmod(blocks, at_once)
        first = np.where(full > 0, at_once, left)
        share = np.minimum(self.lookahead / np.maximum(self.steps, 1), 1.0)
        inside = full * self._inside(at_once, service) + self._inside(left, service)
        anew = np.maximum(full - 1, 0) * self._anew(at_once, service)
        anew = anew + np.where(full > 0, self._anew(left, service), 0.0)
        cycles: FloatArray = self.latency + first * service * share + (1 - share) * inside + share * anew
        return cycles

    def _inside(self, blocks: FloatArray, service: FloatArray) -> FloatArray:
        """A round of so many blocks, where every warp goes on for itself."""
        steps = np.maximum(self.steps, 1)
        depth = np.minimum(self.lookahead, steps)
        away = np.maximum(self.latency + self.own, depth * self.own)
        cycles: FloatArray = (
            blocks * service / utilisation(blocks * self.warps * depth, away, service / steps / self.warps)
        )
        return cycles

    def _anew(self, blocks: FloatArray, service: FloatArray) -> FloatArray:
        """The same where blocks begin: all of their warps at once, when the last of an old block ended."""
        at_once = service * np.minimum(self.lookahead / np.maximum(self.steps, 1), 1.0)
        between = self.latency + self.outside + self.drain
        cycles: FloatArray = blocks * service / utilisation(blocks, between, at_once)
        return cycles


def utilisation(batches: Number, away: Number, service: Number) -> FloatArray:
    """Share of the time in which memory serves some of `batches` that take turns: 1 - Erlang B.

    Args:
        batches: That are served or away; at least one.
        away: Cycles from the end of a batch's service to the next of it.
        service: Cycles of memory for a batch.
    """
    count, offered = np.broadcast_arrays(
        np.asarray(batches, np.float64), np.asarray(away, np.float64) / np.maximum(service, 1e-9)
    )
    lost = np.ones_like(offered)
    result: FloatArray = np.full_like(offered, np.nan)
    whole = np.clip(np.rint(count), 1, MOST_BATCHES)
    for n in range(1, int(whole.max(initial=1)) + 1):
        lost = offered * lost / (n + offered * lost)
        result = np.where(whole == n, 1 - lost, result)
    return result
