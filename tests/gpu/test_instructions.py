"""Instruction by instruction: the simulator and the GPU leave the same words."""

import pytest
from gpu_jobs import RunSnippet
from snippets import SNIPPETS, Snippet, data_of, differing, ptx_of, simulated
from standin_machine import with_ptx

from tuner.devices.cuda import CudaDevice
from tuner.ptxas import Assembler

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def assembler() -> Assembler:
    return Assembler()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_simulator_and_gpu_agree(gpu: CudaDevice, arch: str, assembler: Assembler, snippet: Snippet) -> None:
    ptx = ptx_of(snippet, arch)
    cubin = assembler.assemble(ptx, arch).cubin
    measured = gpu.run(RunSnippet(with_ptx(cubin, ptx), data_of(snippet).tobytes()))
    assert differing(snippet, simulated(snippet, arch), measured) == []
