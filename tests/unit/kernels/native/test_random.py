"""Uniform numbers in native code are those of the definition, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.tensor.philox import uniform01
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.native.random import _uniform

_SEED, _STEP, _STREAM = -12345678912345, 77, 9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [0, 1, 5, 16, 2**33 + 3])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_any_range_with_any_number_of_workers(dtype: str, offset: int, parts: int) -> None:
    state = np.array([_SEED, _STEP], np.int64)
    for count in (0, 1, 3, 15, 16, 17, 1001):
        out = np.full(count + 4, -1, dtype)
        NativeRunner(
            [
                _uniform.call(
                    out=out,
                    state=state,
                    offset=np.array(offset),
                    stream=_STREAM,
                    count=count,
                    apart=1,
                    parts=parts,
                )
            ]
        )()
        expected = uniform01(_SEED, _STEP, _STREAM, offset, count, np.dtype(dtype))
        np.testing.assert_array_equal(out[:count], expected)
        assert (out[count:] == -1).all()
