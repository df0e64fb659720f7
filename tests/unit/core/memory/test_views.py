"""Arrays over memory that the host cannot reach may be looked at in any way, but never read."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.memory.software import DeviceArray
from caldera.errors import DeviceError


@pytest.fixture
def there() -> DeviceArray:
    return np.arange(12, dtype="float32").reshape(3, 4).view(DeviceArray)


def test_parts_are_views(there: DeviceArray) -> None:
    assert there[1].shape == (4,)
    assert there[1:, None, ::2].shape == (2, 1, 2)
    assert there[..., 0].shape == (3,)
    assert there[1, 2, ...].shape == ()
    assert isinstance(there[-1], DeviceArray)


@pytest.mark.parametrize("key", [(0, 0), (np.int64(1), 2), [0, 1], np.array([True, False, True])])
def test_elements_are_not_read(there: DeviceArray, key: object) -> None:
    with pytest.raises(DeviceError, match="on the host"):
        there[key]


def test_an_element_of_one_axis_is_not_read(there: DeviceArray) -> None:
    with pytest.raises(DeviceError, match="an element"):
        there[0][1]
