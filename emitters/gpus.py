"""Figures of the GPUs that the cost model knows, each with its source.

Peak mma rates are the vendor's dense TOPS divided by SMs and clock: one m16n8k32 s8 mma is 8,192 operations,
one m16n8k16 f16 mma 4,096, and an SM has four sub-partitions. What is measured says by whom and where; what
is only inferred says so.
"""

import difflib

from emitters.target import Figure, Gpu, Target, arch_named

_ADA = "NVIDIA Ada GPU Architecture whitepaper v2.01"
_A100 = "NVIDIA A100 Tensor Core GPU Architecture whitepaper v1.0"
_H100 = "NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04, table of H100 SXM5"
_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper v1.1, appendix A, GeForce RTX 5090"
_L2_BENCH = "github.com/te42kyfo/gpu-benches, gpu-l2-cache"
_MMA_SYNC = "mma.sync reaches about 62 % of wgmma: arXiv 2402.13499 and 2501.12084"


class UnknownGpuError(ValueError):
    """A GPU that no table here describes."""


RTX4090 = Gpu(
    name="rtx4090",
    arch="sm_89",
    sms=Figure(128, f"{_ADA}, appendix A, GeForce RTX 4090"),
    clock_mhz=Figure(2520, f"{_ADA}, appendix A, boost clock"),
    max_clock_mhz=Figure(3105, "`nvidia-smi -q -d CLOCK` of retail cards, Max Clocks"),
    l2_bytes=Figure(73728 * 1024, f"{_ADA}, appendix A, L2 cache size"),
    dram_gb_s=Figure(1008, f"{_ADA}, appendix A, memory bandwidth"),
    mma_s8_cycles=Figure(16, f"660.6 dense INT8 TOPS: {_ADA}, appendix A"),
    mma_f16_cycles=Figure(32, f"165.2 dense FP16 TFLOPS with FP32 accumulate: {_ADA}, appendix A"),
    fp32_lanes=Figure(128, f"{_ADA}, Ada SM"),
    l2_bytes_per_clock_per_sm=Figure(
        15.2, "1,945.6 B/clk by cp.async: github.com/smallscientist1/cuda_microbenchmark, analysis_RTX4090.md"
    ),
)
A100 = Gpu(
    name="a100",
    arch="sm_80",
    sms=Figure(108, f"{_A100}, table 1"),
    clock_mhz=Figure(1410, f"{_A100}, table 1, boost clock"),
    max_clock_mhz=Figure(1410, "`nvidia-smi -q -d CLOCK`, Max Clocks: the boost clock"),
    l2_bytes=Figure(40 * 1024 * 1024, f"{_A100}, table 1"),
    dram_gb_s=Figure(2039, "NVIDIA A100 datasheet (June 2021), A100 80GB SXM"),
    mma_s8_cycles=Figure(8, f"624 dense INT8 TOPS: {_A100}, table 1"),
    mma_f16_cycles=Figure(8, f"312 dense FP16 TFLOPS with FP32 accumulate: {_A100}, table 1"),
    fp32_lanes=Figure(64, f"{_A100}, A100 SM"),
    l2_bytes_per_clock_per_sm=Figure(35.5, f"5,400 GB/s on an A100 80GB: {_L2_BENCH}, a100_80.txt"),
)
H100 = Gpu(
    name="h100",
    arch="sm_90",
    sms=Figure(132, _H100),
    clock_mhz=Figure(1830, f"the clock at which 132 SMs have the 1,978.9 dense INT8 TOPS of: {_H100}"),
    max_clock_mhz=Figure(1980, "`nvidia-smi -q -d CLOCK` of H100 SXM5, Max Clocks"),
    l2_bytes=Figure(50 * 1024 * 1024, _H100),
    dram_gb_s=Figure(3352, _H100),
    mma_s8_cycles=Figure(4 / 0.62, _MMA_SYNC),
    mma_f16_cycles=Figure(4 / 0.62, _MMA_SYNC),
    fp32_lanes=Figure(128, _H100),
    l2_bytes_per_clock_per_sm=Figure(
        37.4, f"9,770 GB/s at 1,980 MHz on an H200, the same die: {_L2_BENCH}, h200.txt"
    ),
    mma_s8_peak_cycles=Figure(4, f"1,978.9 dense INT8 TOPS: {_H100}"),
    mma_f16_peak_cycles=Figure(4, f"989.4 dense FP16 TFLOPS: {_H100}"),
)
H200 = Gpu(
    name="h200",
    arch="sm_90",
    sms=Figure(132, "NVIDIA H200 datasheet: the compute figures of H100 SXM5"),
    clock_mhz=Figure(1830, "as H100 SXM5: the same 1,979 dense INT8 TOPS in the NVIDIA H200 datasheet"),
    max_clock_mhz=Figure(
        1980, "`nvidia-smi -q -d CLOCK`, Max Clocks: github.com/awslabs/amazon-eks-ami, pull request 1985"
    ),
    l2_bytes=Figure(50 * 1024 * 1024, f"the die of: {_H100}"),
    dram_gb_s=Figure(4800, "NVIDIA H200 datasheet, H200 SXM"),
    mma_s8_cycles=Figure(4 / 0.62, _MMA_SYNC),
    mma_f16_cycles=Figure(4 / 0.62, _MMA_SYNC),
    fp32_lanes=Figure(128, f"the die of: {_H100}"),
    l2_bytes_per_clock_per_sm=Figure(37.4, f"9,770 GB/s at 1,980 MHz: {_L2_BENCH}, h200.txt"),
    mma_s8_peak_cycles=Figure(4, "1,979 dense INT8 TOPS: NVIDIA H200 datasheet (3,958 with sparsity)"),
    mma_f16_peak_cycles=Figure(4, "990 dense FP16 TFLOPS: NVIDIA H200 datasheet (1,979 with sparsity)"),
)
L4 = Gpu(
    name="l4",
    arch="sm_89",
    sms=Figure(58, f"{_ADA}, appendix with NVIDIA L4"),
    clock_mhz=Figure(2040, f"{_ADA}, appendix with NVIDIA L4, boost clock; at 72 W long runs are slower"),
    max_clock_mhz=Figure(2040, "`nvidia-smi -q -d CLOCK`, Max Clocks: the boost clock"),
    l2_bytes=Figure(48 * 1024 * 1024, f"{_ADA}, appendix with NVIDIA L4"),
    dram_gb_s=Figure(300, f"{_ADA}, appendix with NVIDIA L4"),
    mma_s8_cycles=Figure(16, f"242 dense INT8 TOPS: {_ADA}, appendix with NVIDIA L4"),
    mma_f16_cycles=Figure(16, f"121 dense FP16 TFLOPS with FP32 accumulate: {_ADA}, appendix with NVIDIA L4"),
    fp32_lanes=Figure(128, f"{_ADA}, Ada SM"),
    l2_bytes_per_clock_per_sm=Figure(
        14.8, f"inferred: 5,220 GB/s at 2,490 MHz on the 142 SMs of an L40: {_L2_BENCH}, l40.txt"
    ),
)
RTX5090 = Gpu(
    name="rtx5090",
    arch="sm_120",
    sms=Figure(170, _BLACKWELL),
    clock_mhz=Figure(2407, f"{_BLACKWELL}, boost clock"),
    max_clock_mhz=Figure(3090, "`nvidia-smi -q -d CLOCK` of retail cards, Max Clocks"),
    l2_bytes=Figure(98304 * 1024, _BLACKWELL),
    dram_gb_s=Figure(1792, _BLACKWELL),
    mma_s8_cycles=Figure(16, f"838 dense INT8 TOPS: {_BLACKWELL}"),
    mma_f16_cycles=Figure(32, f"209.5 dense FP16 TFLOPS with FP32 accumulate: {_BLACKWELL}"),
    fp32_lanes=Figure(128, _BLACKWELL),
    l2_bytes_per_clock_per_sm=Figure(15.2, "inferred: not measured here, taken as on the RTX 4090"),
)

GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in (RTX4090, A100, H100, H200, L4, RTX5090)}


def gpu_named(name: str) -> Gpu:
    """The GPU of that name.

    Raises:
        UnknownGpuError: With the names that are near it, or else all there are.
    """
    try:
        return GPUS[name]
    except KeyError:
        near = difflib.get_close_matches(name.lower(), GPUS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(GPUS)}"
        raise UnknownGpuError(f"unknown GPU {name!r}; {hint}") from None


def target_named(gpu: str) -> Target:
    """The target that a GPU is: its architecture, and its figures for the model.

    Raises:
        UnknownGpuError: As `gpu_named`.
    """
    figures = gpu_named(gpu)
    return Target(arch_named(figures.arch), figures)
