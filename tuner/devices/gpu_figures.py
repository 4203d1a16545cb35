"""Figures of the very GPU that is open: its driver's, and the rest from its nearest relative in the table."""

from dataclasses import replace

from emitters.gpus import GPUS, H200, L4
from emitters.target import Arch, Figure, Gpu
from tuner.devices.jobs import Opened

# Architectures without a GPU in the table: whose rates a clock are taken. Too high a one only loosens bounds.
_RELATIVES: dict[str, Gpu] = {
    "sm_86": L4,
    "sm_100": replace(
        H200,
        mma_s8_peak_cycles=Figure(2, "NVIDIA HGX B200 datasheet: 72 INT8 POPS of 8 GPUs, with sparsity"),
        mma_f16_peak_cycles=Figure(2, "NVIDIA HGX B200 datasheet: 36 FP16 PFLOPS of 8 GPUs, with sparsity"),
    ),
}


def gpu_of(opened: Opened, arch: Arch) -> Gpu:
    """Figures of an open GPU.

    Counts, clocks and bandwidth are the driver's. Rates a clock are those of the table's GPU of that name,
    else of one of that architecture.

    Args:
        opened: What the worker said.
        arch: What is emitted for it.
    """
    facts = opened.facts
    relative = _relative(facts.name, arch)
    by_driver = f"CUDA driver, {facts.name}"
    # Two transfers a clock, as the driver counts the clock of every DRAM type.
    dram_gb_s = 2 * facts.memory_clock_khz * 1e3 * facts.memory_bus_bits / 8 / 1e9
    # A driver that tells no clock (integrated GPUs) leaves NVML's, else the relative's.
    clock_mhz = facts.clock_khz / 1e3 or opened.max_sm_mhz
    return replace(
        relative,
        name=facts.name,
        arch=arch.name,
        sms=Figure(facts.sms, by_driver),
        clock_mhz=Figure(clock_mhz, by_driver) if clock_mhz else relative.clock_mhz,
        max_clock_mhz=Figure(max(opened.max_sm_mhz, clock_mhz), f"NVML or {by_driver}")
        if clock_mhz
        else relative.max_clock_mhz,
        l2_bytes=Figure(facts.l2_bytes, by_driver),
        dram_gb_s=Figure(dram_gb_s, by_driver) if dram_gb_s else relative.dram_gb_s,
    )


def _relative(name: str, arch: Arch) -> Gpu:
    plain = "".join(name.lower().split())
    same_arch = [gpu for gpu in GPUS.values() if gpu.arch == arch.name]
    by_name = [gpu for gpu in same_arch if gpu.name in plain]
    return (by_name or same_arch or [_RELATIVES[arch.name]])[0]
