"""The card that the host plays sees what is written beside an array, and where."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from caldera.kernels.cuda.codegen.kernel import KernelLaunch, KernelTemplate
from caldera.kernels.cuda.runtime import driver
from tests.card.emulated import EmulatedDriver, compiler, emulated_card
from tests.card.guards import guarded_bytes

KERNEL = KernelTemplate(
    "write",
    {"to": "float*", "place": "i32"},
    """{{
    DYNAMIC_SHARED(float, shared);
    __syncthreads();
    {body}
}}""",
)


@pytest.fixture
def played() -> Iterator[EmulatedDriver]:
    if compiler() is None:
        pytest.skip("no C++ compiler is here")
    playing = EmulatedDriver()
    driver.use(playing)
    yield playing
    driver.use(None)


def _write(body: str, to: np.ndarray, place: int, threads: int = 32, bounds: str = "") -> None:
    source = '#include "machine.cuh"\n' + KERNEL.source(bounds, body=body)
    KernelLaunch(source, "write", 2, threads, KERNEL.bind(to=to, place=place), shared=40)()


def test_shared_memory_is_as_large_as_was_asked_for_and_nan(played: EmulatedDriver) -> None:
    found = guarded_bytes(40, "found").view(np.float32)
    body = "float x = shared[place]; __syncthreads(); to[place] = x; shared[place] = 1.0f;"
    found.fill(0)
    for place in (0, 9):
        _write(body, found, place)
        assert np.isnan(found[place])
    for place in (-1, 10):
        with pytest.raises(AssertionError, match="write wrote beside its 40 bytes of shared"):
            _write("shared[place] = 1.0f;", found, place)


def test_arrays_have_guarded_ends(played: EmulatedDriver) -> None:
    card = emulated_card()
    block = card.allocate(40, "weights")
    weights = card.array(block, 0, (10,), np.dtype(np.float32))
    output = guarded_bytes(40, "an output").view(np.float32).reshape(2, 5)
    for array, name in ((weights, "40 bytes of weights"), (output, "an output")):
        for place in (0, 9):
            _write("to[place] = 1.0f;", array, place)
        with pytest.raises(AssertionError, match=f"write wrote where it must not: after {name}"):
            _write("to[place] = 1.0f;", array, 10)
        with pytest.raises(AssertionError, match="write wrote where it must not: before"):
            _write("to[place] = 1.0f;", array, -1)
        # Nobody else is blamed for it.
        _write("to[place] = 1.0f;", array, 1)


def test_a_block_has_no_more_threads_than_surely_find_registers(played: EmulatedDriver) -> None:
    found = guarded_bytes(40, "found").view(np.float32)
    body = "to[place] = 1.0f;"
    _write(body, found, 0, 256)
    _write(body, found, 0, 512, "__launch_bounds__(512, 1)")
    for threads, bounds in ((288, ""), (544, "__launch_bounds__(512, 1)")):
        with pytest.raises(AssertionError, match=rf"write: \({threads}, 1, 1\) threads"):
            _write(body, found, 0, threads, bounds)
