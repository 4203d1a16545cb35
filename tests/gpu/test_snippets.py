"""The snippets themselves, without a GPU: they assemble, they run clean, and their comparison can fail."""

import numpy as np
import pytest
from snippets import SNIPPETS, Snippet, data_of, differing, ptx_of, simulated

from tuner.ptxas import Assembler


@pytest.fixture(scope="module")
def assembler() -> Assembler:
    return Assembler()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_a_snippet_assembles_and_runs_clean(assembler: Assembler, snippet: Snippet) -> None:
    assembler.assemble(ptx_of(snippet, "sm_80"), "sm_80")
    result = simulated(snippet, "sm_80")
    assert result.any()
    assert differing(snippet, result, result) == []


def test_names_are_unique() -> None:
    assert len({snippet.name for snippet in SNIPPETS}) == len(SNIPPETS)


def test_data_is_the_same_every_time() -> None:
    assert np.array_equal(data_of(SNIPPETS[0]), data_of(SNIPPETS[0]))


@pytest.mark.parametrize("name", ["add.s32", "add.rn.f32", "rcp.approx.f32", "cvt.rn.f16.f32", "mma f16"])
def test_a_difference_is_seen(name: str) -> None:
    (snippet,) = (snippet for snippet in SNIPPETS if snippet.name == name)
    right = simulated(snippet, "sm_80")
    wrong = right.copy()
    wrong[9, 0] ^= 1 << (12 if snippet.tolerance else 0)
    assert differing(snippet, right, wrong)


def test_only_nans_equal_nans_and_zeros_keep_their_sign() -> None:
    snippet = Snippet("", "", "floats", 0.0, "floats")
    values = np.zeros((32, 4), np.float32)
    other = values.copy()
    values[0, 0], other[0, 0] = np.nan, -np.nan
    assert differing(snippet, values.view(np.uint32), other.view(np.uint32)) == []
    other[1, 1] = -0.0
    other[2, 2] = np.nan
    assert len(differing(snippet, values.view(np.uint32), other.view(np.uint32))) == 2
