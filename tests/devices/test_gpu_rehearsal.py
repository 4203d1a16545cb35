"""The tests that need a GPU run on the stand-in, so that a first GPU has nothing to say about the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_faults", "test_instructions", "test_time", "test_kernels"])
def test_gpu_tests_pass_on_the_stand_in(name: str) -> None:
    file = f"tests/gpu/{name}.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        file,
        "--stand-in",
        "-p",
        "no:cacheprovider",
    ]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert tried.returncode == 0, tried.stdout[-3000:]
    assert " passed" in tried.stdout
    assert "skipped" not in tried.stdout
