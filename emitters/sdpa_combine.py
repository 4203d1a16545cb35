"""`sdpa_decode`: running softmaxes merged, and the second launch that merges those of the splits."""

from collections.abc import Sequence

from emitters.fragments.loads import load_floats
from emitters.fragments.opening import f32, parameters
from emitters.ptx import F32, Entry, Module, at
from emitters.sdpa_schedule import MOST_D, SPEC

COMBINE = f"{SPEC.id}_combine"
COMBINE_THREADS = MOST_D


def emit_combine(module: Module, splits: int, arguments: Sequence[str]) -> None:
    """The second launch of a plan with splits: merge a head's rows of the workspace."""
    ptx = module.entry(COMBINE, parameters(SPEC, arguments), COMBINE_THREADS)
    ptx.phase("merge the splits of a head")
    d, n_head = ptx.size("d"), ptx.size("n_head")
    head, element = ptx.r("mov.u32", "%ctaid.x"), ptx.r("mov.u32", "%tid.x")
    done = ptx.new_label("done")
    ptx.branch(done, guard=ptx.p("setp.ge.u32", element, d))
    workspace = ptx.pointer("workspace")
    rows = ptx.r("mul.lo.u32", n_head, splits)
    tail = ptx.rd("mad.wide.u32", ptx.r("mul.lo.u32", rows, d), 4, workspace)
    first_row = ptx.r("mul.lo.u32", head, splits)
    pairs = ptx.rd("mad.wide.u32", first_row, 8, tail)
    index = ptx.r("mad.lo.u32", first_row, d, element)
    address = ptx.rd("mad.wide.u32", index, 4, workspace)
    row_bytes = ptx.rd("mul.wide.u32", d, 4)
    maxima, shares = [], []
    for split in range(splits):
        if split:
            address = ptx.rd("add.u64", address, row_bytes)
        maximum, weight = load_floats(ptx, "ld.global", at(pairs, 8 * split), 2)
        maxima.append(maximum)
        shares.append((weight, ptx.f("ld.global.f32", at(address))))
    _, weight, total = merged(ptx, maxima, shares)
    result = ptx.f("mul.rn.f32", total, ptx.f("rcp.approx.f32", weight))
    out = ptx.rd("mad.wide.u32", ptx.r("mad.lo.u32", head, d, element), 4, ptx.pointer("out"))
    ptx.op("st.global.f32", at(out), result)
    ptx.place(done)
    ptx.op("ret")


def merged(ptx: Entry, maxima: Sequence[F32], shares: Sequence[tuple[F32, F32]]) -> tuple[F32, F32, F32]:
    """The largest maximum, and the sums of weights and of values relative to it."""
    largest = maxima[0]
    for one in maxima[1:]:
        largest = ptx.f("max.f32", largest, one)
    weight, total = ptx.f("mov.f32", f32(0.0)), ptx.f("mov.f32", f32(0.0))
    for maximum, (share, value) in zip(maxima, shares, strict=True):
        power = ptx.f("ex2.approx.f32", ptx.f("sub.rn.f32", maximum, largest))
        weight = ptx.f("fma.rn.f32", power, share, weight)
        total = ptx.f("fma.rn.f32", power, value, total)
    return largest, weight, total
