"""How an access by lanes meets memory: address to buffer, bounds, alignment, undefined bytes, races, traffic.

After a fault the run goes on: a lane with a bad address loads poison and stores nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.counters import Traffic, global_sectors, shared_wavefronts
from tuner.simulator.memory import REGION_BITS, Buffer, Index, Mask
from tuner.simulator.scalar_types import POISON
from tuner.simulator.shapes import stretched

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site
    from tuner.simulator.machine import Batch

Segment = tuple[Buffer, Index, Any]
"""A buffer, byte offsets into it (valid in every lane), and the lanes that access it (None for all)."""


def global_segments(batch: Batch, address: Index, nbytes: int, site: Site, mask: Any) -> list[Segment]:
    """Check an access to global memory and return where it goes; almost always that is one buffer."""
    if mask is not None:
        chosen = np.where(mask, address, 0)
        high = int(chosen.max())
        address = np.where(chosen == 0, high, chosen)
    buffer = batch.memory.by_region.get(int(address.flat[0]) >> REGION_BITS)
    if buffer is not None:
        offsets = address - buffer.base
        bits = int(np.bitwise_or.reduce(offsets, axis=None))  # none is larger; negative where one is
        if bits >= 0 and not bits & (nbytes - 1):
            last = buffer.nbytes - nbytes
            if bits <= last or int(offsets.max()) <= last:
                return [(buffer, offsets, mask)]
    return _checked_segments(batch, address, nbytes, site, mask)


def _checked_segments(batch: Batch, address: Index, nbytes: int, site: Site, mask: Any) -> list[Segment]:
    """Sort lanes by buffer and record those that go astray."""
    shape = (batch.blocks, batch.threads)
    address = stretched(address, shape)
    lanes = batch.active_lanes() if mask is None else stretched(mask, shape)
    segments: list[Segment] = []
    for region in np.unique(address[lanes] >> REGION_BITS):
        here = lanes & (address >> REGION_BITS == region)
        buffer = batch.memory.by_region.get(int(region))
        if buffer is None:
            stray = here
        else:
            stray = here & ((address < buffer.base) | (address + nbytes > buffer.base + buffer.nbytes))
        if stray.any():
            name, message, offset = batch.memory.describe(int(address[stray][0]), nbytes)
            batch.fault("out_of_bounds", message, site, stray, offset, "global", name)
        crooked = here & ~stray & ((address & (nbytes - 1)) != 0)
        if buffer is not None and crooked.any():
            offset = int(address[crooked][0]) - buffer.base
            message = f"an access of {nbytes} bytes is at offset {offset}, no multiple of {nbytes}"
            batch.fault("misaligned", message, site, crooked, offset, "global", buffer.name)
        good = here & ~stray & ~crooked
        if buffer is not None and good.any():
            segments.append((buffer, np.where(good, address - buffer.base, 0), good))
    return segments


def load_global(
    batch: Batch, address: Index, nbytes: int, site: Site, mask: Any, traffic: Traffic, order: str = ""
) -> NDArray[Any]:
    """Return elements of `nbytes` from global addresses; inactive lanes hold anything."""
    segments = global_segments(batch, address, nbytes, site, mask)
    result: Any = None
    for buffer, offsets, lanes in segments:
        if buffer.written is not None:
            check_written(batch, buffer, offsets, nbytes, site, lanes)
        if batch.count:
            count_global(batch, traffic, offsets, nbytes, lanes)
            if batch.counters.touched is not None and traffic is batch.counters.global_loads:
                rows, active = full_rows(batch, offsets, lanes)
                batch.counters.touched.mark(buffer.name, buffer.nbytes, batch.block_ids, rows, active)
        loaded = buffer.view(nbytes).take(offsets >> (nbytes.bit_length() - 1))
        if buffer.races is not None:
            buffer.races.read(batch, offsets, nbytes, lanes, site, order)
        if len(segments) == 1 and lanes is mask:
            return loaded
        result = poison_like(loaded) if result is None else result
        result = np.where(lanes, loaded, result)
    return (
        result if result is not None else poison_like(np.empty((1, 1), batch.shared.flat_view(nbytes).dtype))
    )


def poison_like(array: NDArray[Any]) -> NDArray[Any]:
    size = array.dtype.itemsize
    return np.frombuffer(POISON.to_bytes(8, "little") * 4, array.dtype, 1).reshape(1, 1) if size else array


def check_written(batch: Batch, buffer: Buffer, offsets: Index, nbytes: int, site: Site, lanes: Any) -> None:
    """Record reads of bytes that neither the caller nor the plan has written."""
    missing = unwritten(buffer, offsets, nbytes)
    if not missing.any():
        return
    missing = missing if lanes is None else missing & lanes
    if missing.any():
        full = stretched(missing, (batch.blocks, batch.threads))
        unwritten_fault(batch, site, full, buffer, int(stretched(offsets, full.shape)[full][0]))


def unwritten(buffer: Buffer, offsets: Index, nbytes: int) -> Mask:
    """Return which elements have a byte that nothing has written, of the shape of the offsets."""
    assert buffer.written is not None
    first = offsets // buffer.cell_bytes
    ready = buffer.written.take(first)
    for more in range(1, max(nbytes // buffer.cell_bytes, 1)):
        ready = ready & buffer.written.take(first + more)
    return ~ready


def unwritten_fault(batch: Batch, site: Site, lanes: Mask, buffer: Buffer, offset: int) -> None:
    message = f"offset {offset} of {buffer.name!r} is read before anything has written it"
    batch.fault("uninitialised", message, site, lanes, offset, "global", buffer.name)


def store_global(
    batch: Batch, address: Index, values: NDArray[Any], site: Site, mask: Any, order: str = ""
) -> None:
    """Store elements at global addresses in the active lanes."""
    nbytes = values.dtype.itemsize
    batch.ahead += 1
    for buffer, offsets, lanes in global_segments(batch, address, nbytes, site, mask):
        index = offsets >> (nbytes.bit_length() - 1)
        if batch.count:
            count_global(batch, batch.counters.global_stores, offsets, nbytes, lanes)
        if buffer.races is not None:
            buffer.races.write(batch, offsets, nbytes, lanes, site, values, order)
        view = buffer.writable(nbytes)
        if lanes is not None:
            shape = np.broadcast_shapes(index.shape, values.shape, lanes.shape)
            chosen = stretched(lanes, shape)
            index, values = stretched(index, shape)[chosen], stretched(values, shape)[chosen]
        elif values.size > index.size:  # blocks that store at the same addresses
            index = stretched(index, np.broadcast_shapes(index.shape, values.shape))
        view[index] = values
        if buffer.written is not None:
            mark_written(buffer, index, nbytes)


def mark_written(buffer: Buffer, index: Index, nbytes: int) -> None:
    assert buffer.written is not None
    cells = nbytes // buffer.cell_bytes
    if cells > 1:
        buffer.written.reshape(-1, cells)[index] = True
    else:
        buffer.written[index] = True


def multiplicity(batch: Batch, offsets: Index, mask: Any) -> int:
    """Return how many blocks one row of addresses stands for."""
    rows = max(len(offsets), len(mask) if mask is not None else 1)
    return batch.blocks // rows


def full_rows(batch: Batch, offsets: Index, mask: Any) -> tuple[Index, Any]:
    """Give addresses (and mask) a column for each thread, and a row for each block where rows differ."""
    rows = max(len(offsets), len(mask) if mask is not None else 1)
    shape = (rows, batch.threads)
    offsets = stretched(offsets, shape)
    if mask is not None:
        mask = stretched(mask, shape)
        if batch.existing is not None:
            mask = mask & batch.existing
    elif batch.existing is not None:
        mask = stretched(batch.existing, shape)
    return offsets, mask


def count_global(batch: Batch, traffic: Traffic, offsets: Index, nbytes: int, lanes: Any) -> None:
    """Add an access to the traffic: bytes of active lanes, and distinct sectors a warp."""
    times = multiplicity(batch, offsets, lanes)
    offsets, lanes = full_rows(batch, offsets, lanes)
    active = offsets.size if lanes is None else int(np.count_nonzero(lanes))
    traffic.instructions += times
    traffic.nbytes += active * nbytes * times
    traffic.sectors += global_sectors(offsets, lanes) * times
    traffic.ideal += -(-active * nbytes // 32) * times


def count_shared(batch: Batch, traffic: Traffic, offsets: Index, nbytes: int, mask: Any) -> None:
    """Add an access to the traffic: wavefronts with and without bank conflicts."""
    times = multiplicity(batch, offsets, mask)
    offsets, mask = full_rows(batch, offsets, mask)
    lanes = 32 if nbytes <= 4 else 128 // nbytes
    wavefronts, ideal = shared_wavefronts(offsets, nbytes, mask, lanes)
    active = offsets.size if mask is None else int(np.count_nonzero(mask))
    traffic.instructions += times
    traffic.nbytes += active * nbytes * times
    traffic.wavefronts += wavefronts * times
    traffic.ideal += ideal * times


def shared_offsets(batch: Batch, address: Index, nbytes: int, site: Site, mask: Any) -> tuple[Index, Any]:
    """Check shared addresses; return byte offsets valid in every lane, and the lanes that may go on."""
    chosen = address if mask is None else np.where(mask, address, 1024)
    offsets: Index = chosen - 1024
    bits = int(np.bitwise_or.reduce(offsets, axis=None))  # none is larger; negative where one is
    if bits >= 0 and not bits & (nbytes - 1):
        last = batch.shared.nbytes - nbytes
        if bits <= last or int(offsets.max()) <= last:
            return offsets, mask
    lanes = batch.active_lanes() if mask is None else stretched(mask, (batch.blocks, batch.threads))
    full = stretched(offsets, lanes.shape)
    stray = lanes & ((full < 0) | (full + nbytes > batch.shared.nbytes))
    if stray.any():
        offset = int(full[stray][0])
        past = offset + nbytes - batch.shared.nbytes
        how = f"begin {-offset} bytes before it" if offset < 0 else f"end {past} bytes past it"
        limits = f"shared memory is {batch.shared.nbytes} bytes from address 1024 on"
        message = f"{limits}; {nbytes} bytes at {offset + 1024} {how}"
        batch.fault("out_of_bounds", message, site, stray, offset + 1024, "shared")
    crooked = lanes & ~stray & ((full & (nbytes - 1)) != 0)
    if crooked.any():
        offset = int(full[crooked][0]) + 1024
        message = f"an access of {nbytes} bytes is at shared address {offset}, no multiple of {nbytes}"
        batch.fault("misaligned", message, site, crooked, offset, "shared")
    good = lanes & ~stray & ~crooked
    return np.where(good, full, 0), good


def load_shared(
    batch: Batch, address: Index, nbytes: int, site: Site, mask: Any, order: str = ""
) -> NDArray[Any]:
    offsets, lanes = shared_offsets(batch, address, nbytes, site, mask)
    if batch.count:
        count_shared(batch, batch.counters.shared_loads, offsets, nbytes, lanes)
    if batch.races is not None:
        offsets_of_all, lanes_of_all = race_lanes(batch, offsets, lanes)
        batch.races.read(batch, offsets_of_all, nbytes, lanes_of_all, site, order=order)
    loaded = batch.shared.load(offsets, nbytes)
    return loaded if lanes is mask else np.where(lanes, loaded, poison_like(loaded))


def store_shared(
    batch: Batch, address: Index, values: NDArray[Any], site: Site, mask: Any, order: str = ""
) -> None:
    nbytes = values.dtype.itemsize
    batch.ahead += 1
    offsets, lanes = shared_offsets(batch, address, nbytes, site, mask)
    if batch.count:
        count_shared(batch, batch.counters.shared_stores, offsets, nbytes, lanes)
    if batch.races is not None:
        offsets_of_all, lanes_of_all = race_lanes(batch, offsets, lanes)
        batch.races.write(batch, offsets_of_all, nbytes, lanes_of_all, site, values, order=order)
        if batch.proxy is not None:
            batch.proxy.wrote(offsets_of_all, nbytes, lanes_of_all, site)
    shape = (batch.blocks, batch.threads)
    _, lanes = full_rows(batch, offsets, lanes)
    batch.shared.store(
        stretched(offsets, (len(offsets), batch.threads)), nbytes, stretched(values, shape), lanes
    )


def race_lanes(batch: Batch, offsets: Index, lanes: Any) -> tuple[Index, Any]:
    """Return (offsets, lanes) with a column for each thread, as the race shadow wants them."""
    if offsets.shape[1] == batch.threads and batch.existing is None:
        return offsets, lanes
    return full_rows(batch, offsets, lanes)


__all__ = ["Mask", "Segment", "load_global", "load_shared", "store_global", "store_shared"]
