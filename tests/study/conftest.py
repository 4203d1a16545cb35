"""The toy kernels of `tests/toy`, as an installed package would bring them, and studies of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import emitters

TOY = Path(__file__).parent.parent / "toy"


@pytest.fixture(scope="module", autouse=True)
def _toy_kernels() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(TOY))
    emitters._all_kernels.cache_clear()
    yield
    patch.undo()
    emitters._all_kernels.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def _cubin_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all tests here, and not the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
