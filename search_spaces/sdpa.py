"""Schedules of `sdpa_decode`."""

from emitters.sdpa_schedule import SdpaSchedule
from emitters.target import Target
from search_spaces.gemv import registers_fit
from search_spaces.space import Constraint, Parameter, Space

LONG_CACHE = 14336
LONGEST_CHAIN = 288
USUAL_CORRECTIONS = 16
MOST_KEYS_A_ROUND = 2048

PARAMETERS = (
    Parameter("lanes", (4, 8, 16, 32), "power", "lanes that share a key"),
    Parameter("heads", (1, 2, 4, 8), "power", "query heads of a KV head that a block serves"),
    Parameter("keys", (1, 2, 4, 8), "power", "keys between two corrections of a running maximum"),
    Parameter("warps", (1, 2, 4, 8, 16), "power", "warps of a block"),
    Parameter("stages", (1, 2, 3, 4), "ordinal", "turns in flight; from 2 on cp.async copies ahead"),
    Parameter("splits", (1, 2, 4, 8, 16, 32), "power", "blocks that share the cache of a head"),
)


def sdpa_decode_space(target: Target) -> Space:
    """Every valid schedule of `sdpa_decode` on a target."""
    return Space("sdpa_decode", PARAMETERS, _CONSTRAINTS, target)


def _of(lanes: int, heads: int, keys: int, warps: int, stages: int, splits: int) -> SdpaSchedule:
    return SdpaSchedule(lanes, heads, warps, keys, stages, splits)


def _fits_registers(lanes: int, heads: int, keys: int, warps: int, _target: Target) -> bool:
    return registers_fit(_of(lanes, heads, keys, 1, 1, 1).registers, warps)


def _fits_shared(lanes: int, heads: int, keys: int, warps: int, stages: int, target: Target) -> bool:
    return _of(lanes, heads, keys, warps, stages, 1).shared_bytes <= target.arch.shared_per_block


_CONSTRAINTS = (
    Constraint(
        "registers",
        ("lanes", "heads", "keys", "warps"),
        _fits_registers,
        "queries, results and what is in flight must fit the registers of an SM",
    ),
    Constraint(
        "shared-memory",
        ("lanes", "heads", "keys", "warps", "stages"),
        _fits_shared,
        "the ring and the merge must fit the shared memory of a block",
    ),
    Constraint(
        "round",
        ("lanes", "keys", "warps", "splits"),
        lambda lanes, keys, warps, splits, _target: (
            splits * warps * (32 // lanes) * keys <= MOST_KEYS_A_ROUND
        ),
        f"a round of more than {MOST_KEYS_A_ROUND} keys leaves groups without any at the usual lengths",
    ),
    Constraint(
        "chain",
        ("lanes", "heads", "keys", "warps", "stages", "splits"),
        lambda *values: _of(*values[:-1]).chain(LONG_CACHE, USUAL_CORRECTIONS) <= LONGEST_CHAIN,
        f"above {LONGEST_CHAIN} roundings in a row at {LONG_CACHE} keys the error bound hides a lost key",
    ),
)
