"""The device table: what there is, what is missing, and which is taken when none is named."""

import pytest
from fake_device import FakeDevice

from tuner import devices
from tuner.devices import DEVICES, default_device, device_named, simulated_gpus
from tuner.devices.device import DeviceError
from tuner.task import RequestError, task_for


def test_every_gpu_of_the_table_can_be_simulated() -> None:
    for name, arch in simulated_gpus().items():
        device = device_named(f"sim:{name}")
        assert (device.name, device.target.arch.name) == (f"sim:{name}", arch)
    assert device_named("sim").name == "sim:rtx4090"


@pytest.mark.parametrize("kind", DEVICES)
def test_each_says_how_its_name_is_written(kind: str) -> None:
    assert DEVICES[kind].form.startswith(kind)


def test_an_unknown_device_names_the_near_ones() -> None:
    with pytest.raises(DeviceError, match="unknown device 'replai:x'; did you mean replay:FILE"):
        device_named("replai:x")


def test_a_gpu_that_is_here_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda name: object())
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    assert default_device() == "cuda"
    monkeypatch.setattr(devices, "find_spec", lambda name: None)  # no CuPy
    assert default_device() == "sim:rtx4090"
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    assert default_device() == "sim:rtx4090"


def test_an_architecture_takes_the_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is here if it has it, else one to predict for."""
    here = FakeDevice(name="cuda:NVIDIA L4")
    monkeypatch.setattr("tuner.task.default_device", lambda: "cuda")
    monkeypatch.setattr(
        "tuner.task.device_named", lambda name: here if name == "cuda" else device_named(name)
    )
    assert task_for("toy", None, None, "sm_89").device is here
    assert not here.closed.is_set()
    assert task_for("toy", None, None, "sm_80").device.name == "sim:a100"
    assert here.closed.is_set()
    with pytest.raises(RequestError, match="no GPU of sm_86 has figures"):
        task_for("toy", None, None, "sm_86")


def test_the_task_leaves_out_what_cannot_serve_the_problem() -> None:
    whole = task_for("gemm", None, "sim:rtx4090", None)
    ragged = task_for("gemm", "300x272x96", "sim:rtx4090", None)
    assert len(ragged.space) < len(whole.space)
    assert ragged.key.space_hash != whole.key.space_hash
    assert whole.baseline is not None
    assert ragged.baseline is not None
