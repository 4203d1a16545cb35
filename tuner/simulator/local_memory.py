"""Local memory and the parameter space of device functions: bytes that every lane has for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import poison_like
from tuner.simulator.memory import Index
from tuner.simulator.scalar_types import POISON

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site
    from tuner.simulator.machine import Batch


def _bytes(batch: Batch) -> NDArray[np.uint8]:
    data = batch.state.get("local")
    if data is None:
        size = -(-max(batch.program.layout.local_bytes, 1) // 32) * 32
        shape = (batch.blocks, batch.threads, size // 8)
        data = batch.state["local"] = np.full(shape, POISON, np.uint64).view(np.uint8)
        batch.state["local_written"] = np.zeros((batch.blocks, batch.threads, size), bool)
    return data


def _checked(batch: Batch, address: Index, nbytes: int, site: Site, mask: Any) -> tuple[Index, Any]:
    """Return offsets (B, T) that are valid in every lane, and the lanes that may go on."""
    shape = (batch.blocks, batch.threads)
    size = batch.program.layout.local_bytes
    lanes = batch.active_lanes() if mask is None else np.broadcast_to(mask, shape)
    address = np.broadcast_to(address, shape)
    stray = lanes & ((address < 0) | (address + nbytes > size))
    if stray.any():
        at = int(address[stray][0])
        batch.fault(
            "out_of_bounds",
            f"local memory is {size} bytes; {nbytes} bytes at {at} leave it",
            site,
            stray,
            at,
            "local",
        )
    crooked = lanes & ~stray & ((address & (nbytes - 1)) != 0)
    if crooked.any():
        at = int(address[crooked][0])
        message = f"an access of {nbytes} bytes is at local address {at}, no multiple of {nbytes}"
        batch.fault("misaligned", message, site, crooked, at, "local")
    good = lanes & ~stray & ~crooked
    return np.where(good, address, 0), good


def load_local(batch: Batch, address: Index, nbytes: int, site: Site, mask: Any) -> NDArray[Any]:
    data = _bytes(batch)
    offsets, lanes = _checked(batch, address, nbytes, site, mask)
    index = (offsets // nbytes)[..., None]
    written = np.take_along_axis(batch.state["local_written"], offsets[..., None], 2)[..., 0]
    missing = lanes & ~written
    if missing.any():
        at = int(offsets[missing][0])
        batch.fault(
            "uninitialised", f"local address {at} is read before it is written", site, missing, at, "local"
        )
    cells = data.view(batch.shared.flat_view(nbytes).dtype)
    loaded = np.take_along_axis(cells, index, 2)[..., 0]
    return np.where(lanes, loaded, poison_like(loaded))


def store_local(batch: Batch, address: Index, values: NDArray[Any], site: Site, mask: Any) -> None:
    data = _bytes(batch)
    nbytes = values.dtype.itemsize
    offsets, lanes = _checked(batch, address, nbytes, site, mask)
    block, thread = np.nonzero(lanes)
    chosen = offsets[lanes]
    data.view(values.dtype)[block, thread, chosen // nbytes] = np.broadcast_to(values, lanes.shape)[lanes]
    written = batch.state["local_written"]
    for byte in range(nbytes):
        written[block, thread, chosen + byte] = True
