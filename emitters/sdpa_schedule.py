"""`sdpa_decode`: what it computes, how a schedule shares the cache, and the error bound that earns."""

import math
from dataclasses import dataclass

import numpy as np

from emitters.kernel import BufferSpec, Demand, Expected, Inputs, KernelSpec, Limit, Problem
from emitters.rounding import EX2_ERROR, RCP_ERROR, TINY, UNIT, Float64, gamma, tree_depth
from emitters.target import WARP
from results.expression import ceil_div

HEAD_DIMS = (64, 80, 96, 128)
MOST_D = max(HEAD_DIMS)

SPEC = KernelSpec(
    id="sdpa_decode",
    version=1,
    computes=(
        "out[h] = softmax(scale * q[h] . K[t,g(h)], t < pos) @ V[t,g(h)], g(h) = h // (n_head / n_kv_head)"
    ),
    buffers=(
        BufferSpec("q", "in", "float32", ("n_head", "d")),
        BufferSpec("K", "in", "float32", ("n_ctx", "n_kv_head", "d")),
        BufferSpec("V", "in", "float32", ("n_ctx", "n_kv_head", "d")),
        BufferSpec("out", "out", "float32", ("n_head", "d")),
    ),
    sizes=("n_head", "n_kv_head", "d", "n_ctx", "pos"),
    scalars=("scale",),
    limits=(
        Limit("n_kv_head", "n_kv_head >= 1", "must be at least 1"),
        Limit(
            "n_head",
            "n_head >= 1 and n_head % max(n_kv_head, 1) == 0",
            "must be a positive multiple of n_kv_head",
        ),
        Limit(
            "d",
            " or ".join(f"d == {d}" for d in HEAD_DIMS),
            f"must be one of {', '.join(map(str, HEAD_DIMS))}",
        ),
        Limit("pos", "1 <= pos", "must be at least 1"),
        Limit("n_ctx", "n_ctx >= pos", "must be at least pos"),
    ),
)

_FEW_SPLITS = 4
VECTOR = 4  # elements that a lane loads at once


@dataclass(frozen=True, slots=True)
class SdpaSchedule:
    """How `sdpa_decode` shares its work.

    Attributes:
        lanes: Lanes that share a key and its value.
        heads: Query heads of one KV head that a block serves, sharing what it loads.
        warps: Warps of a block.
        keys: Keys that a group of lanes takes at once, between two corrections of its running maximum.
        stages: Turns in flight: 1 loads straight into registers, 2..4 copy ahead with cp.async.
        splits: Blocks that share the cache of a head; more than 1 adds a combine launch.
    """

    lanes: int
    heads: int
    warps: int
    keys: int
    stages: int
    splits: int

    @property
    def vectors(self) -> int:
        """Vectors of the longest key that a lane holds; it skips those past a shorter one's end."""
        return MOST_D // (VECTOR * self.lanes)

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def groups(self) -> int:
        """Groups of lanes in a block, each with a running softmax of its own."""
        return self.threads // self.lanes

    @property
    def slot_bytes(self) -> int:
        """Shared memory of one stage: each thread's vectors of `keys` keys and values."""
        return self.threads * self.keys * 2 * self.vectors * 4 * VECTOR

    @property
    def merge_bytes(self) -> int:
        """Shared memory in which warps leave their results: for each head d values, maximum and sum."""
        return 4 * self.warps * self.heads * (MOST_D + 2)

    @property
    def shared_bytes(self) -> int:
        ring = self.stages * self.slot_bytes if self.stages > 1 else 0
        return ring + self.merge_bytes

    @property
    def registers(self) -> int:
        """Registers a thread is likely to need: queries and results, keys and values in flight, scores."""
        row = self.vectors * VECTOR
        return 2 * self.heads * row + 2 * self.keys * row + self.heads * (self.keys + 3) + 40

    def turns(self, pos: int) -> int:
        """Turns of the busiest group of lanes."""
        units = ceil_div(ceil_div(pos, self.splits), self.keys)
        return ceil_div(units, self.groups)

    def chain(self, pos: int, corrections: int) -> int:
        """Longest chain of roundings of a weighted value: its additions and corrections, and the merges."""
        merged = 1 + tree_depth(WARP // self.lanes) + self.warps
        return self.turns(pos) * self.keys + corrections + merged + (self.splits if self.splits > 1 else 0)

    def corrections(self, scores: Float64, errors: Float64) -> int:
        """How often, at most, some group of lanes finds a larger maximum and corrects what it summed.

        A turn that finds none multiplies by 2^0, which is exact. A turn counts here wherever errors of the
        scores could make one of its keys the largest so far.

        Args:
            scores, errors: Of the keys t < pos; errors are absolute.
        """
        length = ceil_div(len(scores), self.splits)
        turns = self.turns(len(scores))
        shape = (self.splits, turns, self.groups, self.keys)
        high, low = np.full((2, self.splits, turns * self.groups * self.keys), -np.inf)
        for split in range(self.splits):
            here = slice(split * length, (split + 1) * length)
            taken = scores[here]
            high[split, : len(taken)] = taken + errors[here]
            low[split, : len(taken)] = taken - errors[here]
        reached = np.maximum.accumulate(low.reshape(shape).max(axis=3), axis=1)
        before = np.concatenate([np.full_like(reached[:, :1], -np.inf), reached[:, :-1]], axis=1)
        return int((high.reshape(shape).max(axis=3) > before).sum(axis=1).max())


def reference(problem: Problem, inputs: Inputs, schedule: SdpaSchedule) -> Expected:
    """float64 softmax and sum, and the rounding error of this schedule.

    With p_t the true weight and a_t = p_t (1 + e_t) what the kernel holds for it after all corrections, the
    output is (sum a_t V_t (1 + f_t)) / (sum a_t (1 + g_t)) with f and g roundings of the two sums. So it is
    off by

    * at most sum p_t |e_t| |V_t - out|, from weights: the same a_t stand above and below;
    * gamma_chain * (sum p_t |V_t| + |out|), from the sums;
    * the reciprocal and the last product.

    e_t holds the score's rounding, an absolute error of the exponent; the roundings of the differences of
    maxima, whose magnitudes telescope to (largest score - score); and one ex2 for the weight and each
    correction.
    """
    pos, d, per_kv = problem["pos"], problem["d"], problem["n_head"] // problem["n_kv_head"]
    q, k, v = (inputs.buffers[name].astype(np.float64) for name in ("q", "K", "V"))
    scale = abs(float(np.float32(inputs.scalars["scale"])))
    sign = math.copysign(1.0, inputs.scalars["scale"])
    score_roundings = 3 + VECTOR * schedule.vectors + tree_depth(schedule.lanes)
    values, bounds = np.empty((2, problem["n_head"], d))
    for head in range(problem["n_head"]):
        keys, vectors = k[:pos, head // per_kv], v[:pos, head // per_kv]
        scores = sign * scale * (keys @ q[head])
        magnitudes = scale * (np.abs(keys) @ np.abs(q[head]))
        below = scores.max() - scores
        weights = np.exp(-below)
        weights /= weights.sum()
        out = weights @ vectors
        # Errors of the exponent in natural units: log2(e) times that in the units of ex2.
        score_error = gamma(score_roundings) * magnitudes + score_roundings * TINY
        corrections = schedule.corrections(scores, score_error)
        exponentials = corrections + 4
        exponent_error = score_error + UNIT * (below + score_error + score_error.max())
        relative = np.exp(exponent_error + exponentials * EX2_ERROR) - 1.0
        values[head] = out
        chain = gamma(schedule.chain(pos, corrections))
        bounds[head] = _output_error(weights, relative, vectors, out, chain)
    lost = pos * (schedule.turns(pos) + 8) * 3.0 * TINY * (1.0 + np.abs(v[:pos]).max())
    return Expected({"out": values}, {"out": bounds + lost})


def _output_error(
    weights: Float64, relative: Float64, vectors: Float64, out: Float64, chain: float
) -> Float64:
    off = weights * relative
    kept = 1.0 - off.sum()
    from_weights = off @ np.abs(vectors - out) / kept
    magnitude = (weights * (1.0 + relative)) @ np.abs(vectors) / kept
    from_sums = chain * (magnitude + np.abs(out) + from_weights) / (1.0 - chain)
    before_last = from_weights + from_sums
    last = (1.0 + RCP_ERROR) * (1.0 + UNIT) - 1.0
    bound: Float64 = before_last + last * (np.abs(out) + before_last)
    return bound


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Gaussian q, K, V with scale 1/sqrt(d).

    Scores of the first half of the heads reach several hundred, where 2^score without the largest score
    taken off is infinite; those of the others are as usual, but that each has its largest score elsewhere, so
    that all who share the keys of a head have it in turn.
    """
    n_head, n_kv_head, d, pos = (problem[size] for size in ("n_head", "n_kv_head", "d", "pos"))
    cache = (problem["n_ctx"], n_kv_head, d)
    q = rng.standard_normal((n_head, d), dtype=np.float32)
    q[: n_head // 2] *= np.float32(150.0)
    k, v = (rng.standard_normal(cache, dtype=np.float32) for _ in range(2))
    for number, head in enumerate(range(n_head // 2, n_head)):
        # Multiples of the golden ratio, modulo 1, lie evenly, however many there are.
        largest = k[int(number * 0.6180339887 % 1.0 * pos), head * n_kv_head // n_head]
        q[head] += np.float32(4.0) * largest / np.linalg.norm(largest)
    return Inputs({"q": q, "K": k, "V": v}, {"scale": float(np.float32(1.0 / math.sqrt(d)))})


def edge_problems(schedule: SdpaSchedule) -> tuple[Problem, ...]:
    """One key; query heads that a block cannot fill, and that end at each of its heads; two each on four KV
    heads; as many on one as warps can have the largest score of. A full cache that ends at each key of a
    group in the first turn, and in each further turn; at each key there, too, where few splits share it.
    """
    keys, splits = schedule.keys, schedule.splits
    per_round = schedule.groups * keys
    first = keys if schedule.groups > 1 else 0
    lengths = [first + key for key in range(keys) if first + key]
    for turn in range(1, schedule.stages):
        ends_there = range(keys) if splits <= _FEW_SPLITS else (turn % keys,)
        lengths += [turn * per_round + first + key for key in ends_there]
    ends = [splits * length for length in lengths]
    deep = splits * (schedule.stages * per_round + schedule.stages % keys) + keys + 1
    shapes = (
        (1, 1, 64, 1, 1),
        (6, 2, 80, 2 * schedule.keys + 3, 2 * schedule.keys + 2),
        (8, 4, 80, keys + 1, keys + 1),
        (max(8, 2 * schedule.warps), 1, 96, per_round + 1, per_round + 1),
        *((1, 1, 64, end, end) for end in ends),
        (2 * schedule.heads, 2, 128, deep + 2, deep),
        *((heads, 1, 64, keys + 1, keys + 1) for heads in range(2, schedule.heads)),
    )
    return tuple(SPEC.problem(*shape) for shape in shapes)


def demand(problem: Problem) -> Demand:
    """Two products of length d a head and key; the filled cache, q and out once."""
    n_head, d, pos = problem["n_head"], problem["d"], problem["pos"]
    return Demand(
        operations=4 * n_head * d * pos,
        unit="fp32",
        read_bytes=4 * d * (2 * problem["n_kv_head"] * pos + n_head),
        write_bytes=4 * d * n_head,
    )
