"""Frozen entries for the tests, of a GEMM as the emitters state it."""

from dataclasses import replace
from typing import Any

from sample_trials import KEY, SCHEDULE, ended

from results.frozen import Contract, FrozenEntry, Limit, Operand, RunnerUp
from results.plan import KernelStep, LaunchPlan, MemsetStep
from results.trial import Measurement, Resources, Source, Verdict

CONTRACT = Contract(
    kernel="ternary_gemm_s8",
    aliases=("gemm",),
    version=1,
    computes="C[m,n] = sum_k A[m,k] * w[k,n]",
    semantic_hash=KEY.semantic_hash,
    buffers=(
        Operand("a", "in", "int8", ("m", "k")),
        Operand("w", "in", "uint32", ("k * n // 16",), "2-bit codes, code k*N + n"),
        Operand("c", "out", "int32", ("m", "n")),
    ),
    sizes=("m", "n", "k"),
    limits=(
        Limit("m", "m >= 1", "must be at least 1"),
        Limit("n", "n % 16 == 0 and n > 0", "must be a multiple of 16"),
        Limit("k", "k % 16 == 0 and k > 0", "must be a multiple of 16"),
    ),
)


def plan(valid: str = "1") -> LaunchPlan:
    grid = ("ceil_div(n, 128)", "ceil_div(m, 128)", "1")
    arguments = ("a", "w", "c", "m", "n", "k")
    kernel = KernelStep("ternary_gemm_s8", grid, (256, 1, 1), 50176, arguments)
    return LaunchPlan((MemsetStep("c", 0, "4 * m * n"), kernel), valid=valid)


def measured(time_us: float = 61.5, source: Source = Source.CUDA_EVENTS) -> Measurement:
    return Measurement(time_us, source, (time_us, time_us + 1), "cold-l2", {"warm": 55.0}, 44.1)


def predicted(time_us: float = 61.5) -> Measurement:
    return replace(measured(time_us, Source.MODEL), policy="model", details={"limiter": "tensor"})


def entry(*sizes: int, **changes: Any) -> FrozenEntry:
    """A predicted entry for a problem of the GEMM."""
    problem = dict(zip(CONTRACT.sizes, sizes or (4096, 3456, 1280), strict=True))
    made = FrozenEntry(
        contract=CONTRACT,
        arch="sm_89",
        device="sim:rtx4090",
        sizes=problem,
        schedule=SCHEDULE,
        ptx=f"// for {problem}\n.version 7.8\n.target sm_89\n",
        cubin=b"\x7fELF\x00\xff" + bytes(str(problem), "ascii"),
        plan=plan(),
        source_hash="ab" * 32,
        code_hash="cd" * 32,
        resources=Resources(registers=168, shared_bytes=50176, spill_bytes=0, threads=256),
        verdict=Verdict(mismatches=0, problems=("1x16x16", "4096x3456x1280")),
        measurement=predicted(),
        study=KEY.name,
        number=12,
        created_at="2026-01-02T03:04:05+00:00",
        versions={"ptxas": "13.0.88"},
        runner_up=RunnerUp(KEY.name, 7, ended(7).schedule, 63.0),
    )
    return replace(made, **changes)
