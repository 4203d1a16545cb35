"""Triton kernels of our own, and how they are compiled without a GPU; imported where Triton is installed."""

# ruff: noqa: N803
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def softmax(x, out, n, SIZE: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, SIZE)
    values = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * n + i, powers / tl.sum(powers, 0), mask=i < n)


@triton.jit
def matmul(a, b, out, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)[:, None]
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)[None, :]
    depth = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, k, TILE_K):
        x_at, y_at = (start + depth)[None, :], (start + depth)[:, None]
        x = tl.load(a + rows * k + x_at, mask=(rows < m) & (x_at < k), other=0.0)
        y = tl.load(b + y_at * n + columns, mask=(y_at < k) & (columns < n), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(out + rows * n + columns, total, mask=(rows < m) & (columns < n))


@triton.jit
def matmul_s8(a, b, out, n, k, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    depth = tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.int32)
    for start in range(0, k, TILE):
        x = tl.load(a + rows * k + (start + depth)[None, :])
        y = tl.load(b + (start + depth)[:, None] + columns * k)
        total = tl.dot(x, y, total)
    tl.store(out + rows * n + columns, total)


@triton.jit
def layernorm(x, w, out, n, eps, SIZE: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, SIZE)
    values = tl.load(x + row * n + i, mask=i < n, other=0.0)
    centred = tl.where(i < n, values - tl.sum(values, 0) / n, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / n + eps)
    tl.store(out + row * n + i, centred * scale * tl.load(w + i, mask=i < n), mask=i < n)


@triton.jit
def running_sum(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.cumsum(tl.load(x + i), 0))


@triton.jit
def sort(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.sort(tl.load(x + i)))


@triton.jit
def transpose(x, out, m, n, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    tile = tl.load(x + rows[:, None] * n + columns[None, :])
    tl.store(out + columns[:, None] * m + rows[None, :], tl.trans(tile))


@triton.jit
def count(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.atomic_add(out + tl.load(x + i, mask=i < n, other=0), 1, mask=i < n)


@triton.jit
def argmax(x, out, n, SIZE: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, SIZE)
    tl.store(out + row, tl.argmax(tl.load(x + row * n + i, mask=i < n, other=-float("inf")), 0))


@triton.jit
def functions(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, value * tl.sigmoid(1.5 * value) + tl.sin(value) + tl.log(tl.abs(value) + 1), mask=i < n)


@triton.jit
def attention(q, k, v, out, n, SIZE: tl.constexpr, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    inner = tl.arange(0, SIZE)
    query = tl.load(q + rows * SIZE + inner[None, :])
    top = tl.full((TILE,), -float("inf"), tl.float32)
    weight = tl.zeros((TILE,), tl.float32)
    total = tl.zeros((TILE, SIZE), tl.float32)
    for start in range(0, n, TILE):
        keys = start + tl.arange(0, TILE)
        scores = tl.dot(query, tl.load(k + keys[None, :] * SIZE + inner[:, None])) * 0.125
        higher = tl.maximum(top, tl.max(scores, 1))
        powers, fade = tl.exp(scores - higher[:, None]), tl.exp(top - higher)
        weight = weight * fade + tl.sum(powers, 1)
        values = tl.load(v + keys[:, None] * SIZE + inner[None, :])
        total = tl.dot(powers.to(tl.float16), values, total * fade[:, None])
        top = higher
    tl.store(out + rows * SIZE + inner[None, :], total / weight[:, None])


@triton.jit
def matmul_described(a, b, c, k, TILE: tl.constexpr):
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, k, TILE):
        total = tl.dot(a.load([row, start]), b.load([column, start]).T, total)
    c.store([row, column], total)


def compile_triton(
    function: Any, signature: dict[str, str], constants: dict[str, int], capability: int
) -> tuple[str, int, int]:
    """Return (PTX, bytes of dynamic shared memory, threads of a block)."""
    binary = compiled(function, signature, constants, capability)
    return binary.asm["ptx"], binary.metadata.shared, 32 * binary.metadata.num_warps


def compiled(function: Any, signature: dict[str, str], constants: dict[str, int], capability: int) -> Any:
    """Return Triton's compiled kernel."""
    names = {**signature, **dict.fromkeys(constants, "constexpr")}
    order = list(names)
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name in ("m", "n", "k")]
    source = ASTSource(
        fn=function,
        signature=names,
        constexprs={(order.index(name),): value for name, value in constants.items()},
        attrs={(order.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_stages": 3, "num_warps": 4}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
