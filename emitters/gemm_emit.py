"""Text and plan of a schedule of the GEMM family: everything but the operands."""

from collections.abc import Callable
from textwrap import wrap

from emitters.fragments.matrix import Lane
from emitters.fragments.stores import add_words, exchange_with_neighbour, store_words
from emitters.gemm_codes import Packed, Records
from emitters.gemm_decoded import Decoded
from emitters.gemm_main_loop import Accumulators, MainLoop
from emitters.gemm_operands import Block, Operand, Rows
from emitters.gemm_rules import check
from emitters.gemm_schedule import DenseSchedule, Geometry
from emitters.kernel import EmittedKernel, KernelSpec, schedule_values
from emitters.ptx import R32, R64, Entry, Module, Parameter, Pred
from emitters.target import Target
from results.plan import KernelStep, LaunchPlan, MemsetStep, Step

Operands = Callable[[Block, R64, R64], tuple[Operand, Operand]]
"""Makes both operands from their global pointers."""


def emit_gemm(spec: KernelSpec, schedule: DenseSchedule, target: Target) -> EmittedKernel:
    """Text and plan of a forward kernel.

    Raises:
        EmitError: The schedule breaks a rule of `emitters.gemm_rules`.
    """
    check(schedule, target)
    return emit_product(spec, Geometry(schedule), target, _operands)


def emit_product(spec: KernelSpec, geometry: Geometry, target: Target, operands: Operands) -> EmittedKernel:
    """Text and plan of any product of the family.

    Args:
        spec: Two operands and C; the sizes of C and the length of the reduction.
        geometry: Of a schedule that keeps the rules.
        target: For which it is emitted.
        operands: What sets the kernels apart.
    """
    schedule = geometry.schedule
    values = schedule_values(schedule)
    module = Module(
        target.arch,
        [
            f"{spec.id}: {spec.computes}",
            f"semantics {spec.semantic_hash}",
            *wrap(
                " ".join(f"{name}={value}" for name, value in values.items()),
                width=100,
                initial_indent="schedule ",
                subsequent_indent="         ",
            ),
            f"target {target.arch.name}, {geometry.shared.nbytes} bytes of dynamic shared memory",
        ],
    )
    parameters = [Parameter(buffer.name, "u64") for buffer in spec.buffers]
    parameters += [Parameter(size, "u32") for size in spec.sizes]
    ptx = module.entry(spec.id, parameters, geometry.threads, schedule.min_blocks)
    _body(ptx, spec, geometry, operands)
    return EmittedKernel(spec.id, target.arch.name, values, module.text(), plan(spec, geometry))


def plan(spec: KernelSpec, geometry: Geometry) -> LaunchPlan:
    """The steps of one call: with a split along k, C is zeroed first."""
    schedule = geometry.schedule
    blocks = f"ceil_div(m, {schedule.tile_m}) * ceil_div(n, {schedule.tile_n})"
    kernel = KernelStep(
        entry=spec.id,
        grid=(blocks, "1", str(schedule.split_k)),
        block=(geometry.threads, 1, 1),
        shared_bytes=geometry.shared.nbytes,
        arguments=spec.arguments,
    )
    steps: tuple[Step, ...] = (kernel,)
    if schedule.split_k > 1:
        steps = (MemsetStep(spec.outputs[0], 0, "4 * m * n"), kernel)
    return LaunchPlan(steps, valid=geometry.valid)


def _operands(block: Block, a_source: R64, b_source: R64) -> tuple[Operand, Operand]:
    ptx, geometry, tiles = block.ptx, block.geometry, block.geometry.shared
    ptx.phase("addresses of A")
    a = Rows(block, tiles.a, geometry.a_width, operand="a", source=a_source)
    ptx.phase("addresses of B")
    b: Operand
    match geometry.b_kind, tiles.b, tiles.rows:
        case "rows", tile, _ if tile is not None:
            width = geometry.schedule.copy_bytes
            b = Rows(block, tile, width, operand="b", source=b_source, reach=a.reach)
        case "packed", tile, _ if tile is not None:
            b = Packed(block, tile, b_source)
        case "records", tile, _ if tile is not None:
            b = Records(block, tile, b_source)
        case _, _, rows if rows is not None:
            b = Decoded(block, rows, tiles.codes, b_source)
    return a, b


def _body(ptx: Entry, spec: KernelSpec, geometry: Geometry, operands: Operands) -> None:
    schedule = geometry.schedule
    done = ptx.new_label("DONE")
    ptx.phase("operands and sizes")
    a_source, b_source, c_target = (ptx.pointer(buffer.name) for buffer in spec.buffers)
    m, n, k = (ptx.size(size) for size in spec.sizes)
    row, column = _tile_of_block(ptx, schedule, m, n)
    k0, left, steps = _share_of_k(ptx, schedule, k)
    if schedule.split_k > 1:
        ptx.comment("A block without a share adds nothing.")
        ptx.op("bra.uni", done, guard=ptx.p("setp.le.s32", left, 0))
    ptx.phase("thread, lane, warp")
    tid = ptx.r("mov.u32", "%tid.x")
    warp = ptx.r("shr.u32", tid, 5)
    warp_n = ptx.r("and.b32", warp, schedule.warps_n - 1)
    block = Block(
        ptx=ptx,
        geometry=geometry,
        shared=ptx.shared_base(),
        tid=tid,
        lane=Lane.of(ptx, tid),
        warp_m=ptx.r("shr.u32", warp, schedule.warps_n.bit_length() - 1),
        warp_n=warp_n,
        m=m,
        n=n,
        k=k,
        m0=ptx.r("mul.lo.u32", row, schedule.tile_m),
        n0=ptx.r("mul.lo.u32", column, schedule.tile_n),
        k0=k0,
        left=left,
    )
    ptx.comment(f"The block's tile starts at row {block.m0}, column {block.n0}, k {block.k0}.")
    a, b = operands(block, a_source, b_source)
    ptx.phase("accumulators")
    loop = MainLoop(block, a, b, steps)
    loop.emit()
    ptx.phase("epilogue")
    _epilogue(block, loop.accumulators, c_target)
    ptx.place(done)
    ptx.op("ret")


def _tile_of_block(ptx: Entry, schedule: DenseSchedule, m: R32, n: R32) -> tuple[R32, R32]:
    """Tile row and tile column of this block: groups of `raster` tile rows, walked down column by column."""
    ptx.phase("tile of the block")
    number = ptx.r("mov.u32", "%ctaid.x")
    across = _ceil_div(ptx, n, schedule.tile_n)
    if schedule.raster == 1:
        row = ptx.r("div.u32", number, across)
        return row, ptx.r("sub.u32", number, ptx.r("mul.lo.u32", row, across))
    down = _ceil_div(ptx, m, schedule.tile_m)
    in_group = ptx.r("mul.lo.u32", across, schedule.raster)
    group = ptx.r("div.u32", number, in_group)
    first = ptx.r("mul.lo.u32", group, schedule.raster)
    within = ptx.r("sub.u32", number, ptx.r("mul.lo.u32", group, in_group))
    height = ptx.r("min.u32", ptx.r("sub.u32", down, first), schedule.raster)
    column = ptx.r("div.u32", within, height)
    row = ptx.r("sub.u32", within, ptx.r("mul.lo.u32", column, height))
    return ptx.r("add.u32", row, first), column


def _ceil_div(ptx: Entry, size: R32, tile: int) -> R32:
    up = ptx.r("add.u32", size, tile - 1)
    if tile & (tile - 1) == 0:
        return ptx.r("shr.u32", up, tile.bit_length() - 1)
    return ptx.r("div.u32", up, tile)


def _share_of_k(ptx: Entry, schedule: DenseSchedule, k: R32) -> tuple[R32, R32, R32]:
    """First k of this block, units of k from there, and k-steps."""
    if schedule.split_k == 1:
        return ptx.r("mov.u32", 0), k, _ceil_div(ptx, k, schedule.tile_k)
    ptx.phase("share of k")
    share = _ceil_div(ptx, _ceil_div(ptx, k, schedule.tile_k), schedule.split_k)
    share = ptx.r("mul.lo.u32", share, schedule.tile_k)
    k0 = ptx.r("mul.lo.u32", share, ptx.r("mov.u32", "%ctaid.z"))
    left = ptx.r("min.s32", ptx.r("sub.s32", k, k0), share)
    return k0, left, _ceil_div(ptx, left, schedule.tile_k)


def _epilogue(block: Block, accumulators: Accumulators, target: R64) -> None:
    """Scale, and store or add what lies inside C. N % 16 == 0, so that vectors lie in or out whole."""
    ptx, geometry = block.ptx, block.geometry
    part = geometry.lane_part
    column = ptx.r("mad.lo.u32", block.warp_n, geometry.warp_n, block.n0)
    odd: Pred | None = None
    if part.exchange:
        # The even lane's columns, and four more on the odd lane.
        odd_lane = ptx.r("and.b32", block.lane.member, 1)
        odd = ptx.p("setp.ne.u32", odd_lane, 0)
        even = ptx.r("sub.u32", block.lane.member, odd_lane)
        column = ptx.r("mad.lo.u32", even, part.columns_apart, column)
        column = ptx.r("mad.lo.u32", odd_lane, 4, column)
    else:
        column = ptx.r("mad.lo.u32", block.lane.member, part.columns_apart, column)
    row = ptx.r("mad.lo.u32", block.warp_m, geometry.warp_m, block.m0)
    if part.rows_apart == 1:
        row = ptx.r("add.u32", row, block.lane.group)
    else:
        row = ptx.r("mad.lo.u32", block.lane.group, part.rows_apart, row)
    rows_left = ptx.r("sub.s32", block.m, row)
    columns_left = ptx.r("sub.s32", block.n, column)
    index = ptx.rd("mul.wide.u32", row, block.n)
    index = ptx.rd("mad.wide.u32", column, 1, index)
    address = ptx.rd("add.s64", ptx.rd("shl.b64", index, 2), target)
    count = 2 * geometry.fragments_m
    distances = [part.row(number + 1) - part.row(number) for number in range(count - 1)]
    row_bytes = {rows: ptx.rd("mul.wide.u32", block.n, 4 * rows) for rows in dict.fromkeys(distances)}
    put = add_words if geometry.schedule.split_k > 1 else store_words
    for number in range(count):
        last = part.row(number) + 7 * part.rows_apart
        step = ", every other" if part.rows_apart == 2 else ""
        ptx.comment(f"rows {part.row(number)} .. {last} of the warp{step}")
        if number:
            address = ptx.rd("add.s64", address, row_bytes[distances[number - 1]])
        inside = ptx.p("setp.gt.s32", rows_left, part.row(number))
        limit = ptx.r("selp.b32", columns_left, 0, inside)
        fragments = accumulators[number // 2]
        vectors = []
        for first, elements in part.runs:
            words = [fragments[fragment][2 * (number % 2) + element] for fragment, element in elements]
            if geometry.scale_shift:
                words = [ptx.r("shr.s32", word, geometry.scale_shift) for word in words]
            vectors.append((first, words))
        if odd is not None:
            vectors = _exchanged(ptx, odd, vectors, part.columns_apart)
        for first, words in vectors:
            put(ptx, address, 4 * first, words, ptx.p("setp.gt.s32", limit, first))


Vectors = list[tuple[int, list[R32]]]
"""Distance from the lane's first column, and the words of neighbouring columns from there."""


def _exchanged(ptx: Entry, odd: Pred, vectors: Vectors, lane_columns: int) -> Vectors:
    """Pairs of a lane's vectors, exchanged so that two lanes fill a sector; the second of each pair is the
    odd lane's, `lane_columns` further on."""
    result: Vectors = []
    for (first, even_words), (_, odd_words) in zip(vectors[::2], vectors[1::2], strict=True):
        of_even, of_odd = exchange_with_neighbour(ptx, odd, even_words, odd_words)
        result += [(first, of_even), (first + lane_columns, of_odd)]
    return result
