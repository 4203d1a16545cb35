"""The table of GPUs is held to the vendor's peak rates, which it was not copied from."""

from dataclasses import fields

import pytest

from emitters.gpus import GPUS, UnknownGpuError, gpu_named, target_named
from emitters.target import ARCHS, Figure, Gpu

# Dense peaks of the vendor's data sheets: INT8 TOPS, FP16 TFLOPS (FP32 accumulate), FP32 TFLOPS.
PEAKS = {
    "rtx4090": (660.6, 165.2, 82.6),
    "a100": (624.0, 312.0, 19.5),
    "h100": (1978.9, 989.4, 66.9),
    "h200": (1979.0, 989.5, 67.0),
    "l4": (242.0, 121.0, 30.3),
    "rtx5090": (838.0, 209.5, 104.8),
}


def _figures(gpu: Gpu) -> dict[str, Figure]:
    values = {field.name: getattr(gpu, field.name) for field in fields(gpu)}
    return {name: value for name, value in values.items() if isinstance(value, Figure)}


@pytest.mark.parametrize("name", PEAKS)
def test_cycles_and_clock_give_the_vendors_peaks(name: str) -> None:
    gpu = GPUS[name]
    clocks = gpu.sms.value * gpu.clock_mhz.value * 1e6
    s8 = (gpu.mma_s8_peak_cycles or gpu.mma_s8_cycles).value
    f16 = (gpu.mma_f16_peak_cycles or gpu.mma_f16_cycles).value
    peaks = (
        clocks * 4 * (2 * 16 * 8 * 32) / s8 / 1e12,
        clocks * 4 * (2 * 16 * 8 * 16) / f16 / 1e12,
        clocks * gpu.fp32_lanes.value * 2 / 1e12,
    )
    # H100's tensor peak is stated at another clock than its FP32 peak.
    fp32_tolerance = 0.08 if gpu.arch == "sm_90" else 0.01
    assert peaks[:2] == pytest.approx(PEAKS[name][:2], rel=0.01)
    assert peaks[2] == pytest.approx(PEAKS[name][2], rel=fp32_tolerance)


def test_the_table_holds_the_named_gpus() -> None:
    assert set(GPUS) == set(PEAKS)
    assert {gpu.arch for gpu in GPUS.values()} <= set(ARCHS)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_figure_is_positive_and_names_its_source(gpu: Gpu) -> None:
    for name, figure in _figures(gpu).items():
        assert figure.value > 0, name
        assert len(figure.source) > 10, name
    assert gpu.max_clock_mhz.value >= gpu.clock_mhz.value


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_no_mma_is_faster_than_specified(gpu: Gpu) -> None:
    assert gpu.mma_s8_peak_cycles is None or gpu.mma_s8_peak_cycles.value <= gpu.mma_s8_cycles.value
    assert gpu.mma_f16_peak_cycles is None or gpu.mma_f16_peak_cycles.value <= gpu.mma_f16_cycles.value


def test_unknown_name_lists_the_near_ones() -> None:
    with pytest.raises(UnknownGpuError, match="unknown GPU 'rtx4900'; did you mean rtx4090"):
        gpu_named("rtx4900")
    with pytest.raises(UnknownGpuError, match="known are rtx4090, a100, h100, h200, l4, rtx5090"):
        gpu_named("zzz")


def test_target_of_a_gpu_has_its_architecture() -> None:
    target = target_named("h200")
    assert (target.arch.name, target.gpu) == ("sm_90", GPUS["h200"])
