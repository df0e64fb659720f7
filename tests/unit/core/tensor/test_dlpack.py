"""DLPack lends and borrows memory without copying it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import caldera as cd
from caldera.core.tensor import dtype as dtypes
from caldera.errors import DeviceError, DtypeError

every_dtype = pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
NUMPYS_OWN = [dtype for dtype in dtypes.ALL if dtype != dtypes.bfloat16]


def address(array) -> int:
    return np.asarray(array).__array_interface__["data"][0]


class Old:
    """A lender from before DLPack 1.0: no `max_version`, no way to say "read-only"."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Elsewhere(Old):
    def __dlpack_device__(self):
        return (2, 0)


@pytest.mark.parametrize("dtype", NUMPYS_OWN, ids=str)
def test_numpy_borrows_from_a_tensor(dtype):
    t = cd.Tensor((3, 4), fill=cd.one(), dtype=dtype)
    for view in (t, t[1:, ::-2], t.T):
        array = np.from_dlpack(view)
        assert array.dtype == dtype
        assert array.tolist() == view.tolist()
        assert address(array) == address(view.numpy())
    np.from_dlpack(t)[0, 0] = 0
    assert t[0, 0] == 0


@every_dtype
def test_a_tensor_borrows_from_anyone(dtype):
    lender = cd.Tensor((3, 4), fill=cd.identity(), dtype=dtype).T
    t = cd.from_dlpack(lender)
    assert t.dtype == dtype
    assert t.strides == lender.strides
    assert t.tolist() == lender.tolist()
    assert address(t.numpy()) == address(lender.numpy())
    t[3, 2] = 1
    assert lender[3, 2] == 1


@pytest.mark.parametrize("dtype", NUMPYS_OWN, ids=str)
def test_a_tensor_borrows_from_numpy(dtype):
    array = np.eye(4, dtype=dtype)[::-1, ::2]
    t = cd.from_dlpack(array)
    assert t.tolist() == array.tolist()
    assert address(t.numpy()) == address(array)
    t[0, 0] = 1
    assert array[0, 0] == 1


def test_bfloat16_is_lent_as_what_it_is():
    t = cd.tensor([1.5, -2], dtype="bfloat16")
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(t)
    assert cd.from_dlpack(Old(t)).tolist() == [1.5, -2]


def test_a_borrowed_array_is_kept():
    class Watched(np.ndarray):
        pass

    array = np.zeros(5).view(Watched)
    watch = weakref.ref(array)
    t = cd.from_dlpack(array)
    del array
    gc.collect()
    assert watch() is not None
    assert t.tolist() == [0] * 5
    del t
    gc.collect()
    assert watch() is None


def test_lent_memory_is_kept():
    array = np.from_dlpack(cd.tensor([1.0, 2.0, 3.0]))
    others = [cd.Tensor((3,)) for _ in range(10)]
    assert array.tolist() == [1, 2, 3]
    del others


def test_what_the_lender_does_not_allow_stays_forbidden():
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    for lender in (read_only, Old(np.zeros(3))):
        t = cd.from_dlpack(lender)
        assert t.tolist() == [0, 0, 0]
        with pytest.raises(DeviceError, match="read-only"):
            t[0] = 1.0


def test_the_host_side_of_managed_memory_is_lent_read_only():
    t = cd.tensor([1.0, 2.0], device="loopback")
    array = np.from_dlpack(t)
    assert array.tolist() == [1, 2]
    assert not array.flags.writeable


def test_memory_of_a_device_cannot_be_lent_or_borrowed_by_the_host():
    with pytest.raises(DeviceError, match=r"use t\.to\(kind=cd\.MANAGED\)"):
        np.from_dlpack(cd.Tensor((3,), kind=cd.DEVICE, device="loopback"))
    with pytest.raises(DeviceError, match="bring the array to the CPU"):
        cd.from_dlpack(Elsewhere(np.zeros(3)))


def test_what_is_no_tensor_is_refused():
    with pytest.raises(DtypeError, match="expected an object with __dlpack__, got list"):
        cd.from_dlpack([1, 2])
    with pytest.raises(DtypeError, match="dtype: expected one of"):
        cd.Tensor.from_numpy(np.zeros(3, "M8[s]"), copy=False)
