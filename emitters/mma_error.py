"""The error bound of a matrix-vector product on tensor cores: chains of mma's, then sums of the chains."""

from collections.abc import Sequence

import numpy as np

from emitters.rounding import MMA_K, Float64, chain_error, mma_chain_error


def mma_walk_error(
    products: Float64, walks: Sequence[Sequence[int]], accumulators: int, late_additions: int
) -> Float64:
    """Bound on each row's sum.

    Args:
        products: Exact products, shape (rows, units, mma's a unit, `MMA_K`), in the order of the mma's.
        walks: For each warp that shares a row, the units it sums, in order.
        accumulators: Sums that the mma's of a unit take in turn.
        late_additions: Additions of a warp's sum after the warp has added its accumulators.

    Returns:
        The bound, shape (rows,).
    """
    rows, _, slices, _ = products.shape
    chained = np.zeros(rows)
    magnitude = np.zeros(rows)
    for units in walks:
        if not units:
            continue
        taken = products[:, list(units)].reshape(rows, -1, slices // accumulators, accumulators, MMA_K)
        chains = taken.transpose(0, 3, 1, 2, 4).reshape(rows, accumulators, -1, MMA_K)
        errors = mma_chain_error(chains)
        chained += errors.sum(axis=1)
        magnitude += (np.abs(chains.sum(axis=(2, 3))) + errors).sum(axis=1)
    return chained + chain_error(accumulators - 1 + late_additions, magnitude)
