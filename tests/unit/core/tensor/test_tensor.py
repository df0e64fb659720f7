"""What a tensor is made from and turns into, on every kind of memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caldera as cd
from caldera import op
from caldera.core.tensor import dtype as dtypes
from caldera.core.tensor.shape import StridedView
from caldera.errors import DeviceError, DtypeError, ShapeError

PLACES = [
    (cd.HOST, "cpu"),
    (cd.DEVICE, "cpu"),
    (cd.MANAGED, "cpu"),
    (cd.CUDA_MANAGED, "cpu"),
    (cd.DEVICE, "loopback"),
    (cd.MANAGED, "loopback"),
    (cd.CUDA_MANAGED, "loopback"),
]
everywhere = pytest.mark.parametrize(
    ("kind", "device"), PLACES, ids=[f"{kind.name}-{device}" for kind, device in PLACES]
)
every_dtype = pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)


def counting(kind=cd.MANAGED, device=None):
    """0 to 23 in shape (2, 3, 4)."""
    return cd.tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4), kind=kind, device=device)


@everywhere
@every_dtype
def test_attributes_and_values(kind, device, dtype):
    t = cd.Tensor((2, 3), fill=cd.one(), dtype=dtype, kind=kind, device=device, name="weights")
    assert t.shape == (2, 3)
    assert t.dtype == dtype
    assert t.kind is kind
    assert t.device is cd.device(device)
    assert t.rank == t.ndim == 2
    assert (t.size, t.nbytes, t.strides, t.offset) == (6, 6 * dtype.itemsize, (3, 1), 0)
    assert t.name == "weights"
    assert t.memory.dtype == dtype
    assert t.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert t.numpy().dtype == dtype


@everywhere
def test_without_a_filler_there_are_zeros_even_in_used_memory(kind, device):
    for _ in range(2):
        t = cd.Tensor((7,), kind=kind, device=device)
        assert t.tolist() == [0] * 7
        t[...] = 5.0
        del t


@pytest.mark.parametrize("place", ["loopback", "loopback:1", "cpu", cd.device("loopback"), 0])
def test_a_device_may_follow_the_kind_of_memory(place):
    with cd.settings.override(accelerator="loopback"):
        wanted = cd.device(place)
        for t in (
            cd.Tensor((2, 3), cd.MANAGED, place),
            cd.Tensor((2, 3), cd.constant(0), cd.MANAGED, place),
            cd.Tensor((2, 3), cd.MANAGED, "float32", place),
            cd.Tensor((2, 3), None, "float32", cd.MANAGED, place),
        ):
            assert (t.device, t.dtype, t.kind) == (wanted, np.float32, cd.MANAGED)
    assert cd.Tensor((2, 3), cd.HOST, "int8").dtype == np.int8
    with pytest.raises(cd.errors.DtypeError, match="cpu"):
        cd.Tensor((2, 3), cd.MANAGED, "cpu", device="loopback")


def test_fill_takes_numbers_and_arrays():
    assert cd.Tensor((2,), fill=3).tolist() == [3, 3]
    assert cd.Tensor((2,), fill=np.array([1, 2])).tolist() == [1, 2]
    assert cd.Tensor((2,), fill=[1, 2]).tolist() == [1, 2]
    assert cd.Tensor((2,), fill=cd.tensor([1, 2])).tolist() == [1, 2]
    with pytest.raises(ShapeError, match=r"expected an array of shape \(3,\)"):
        cd.Tensor((3,), fill=[1, 2])


@everywhere
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors(kind, device, shape):
    t = cd.Tensor(shape, kind=kind, device=device)
    assert t.tolist() == np.zeros(shape).tolist()
    assert t.copy().shape == t.astype("int8").shape == shape
    assert t.to("cpu", kind=cd.HOST).shape == shape
    assert t.reshape(-1).shape == (t.size,)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, "float32"),
        (2, "int64"),
        (True, "bool"),
        ([[1.0, 2], [3, 4]], "float32"),
        ([], "float32"),
        (np.zeros(2), "float64"),
        (np.float64(1), "float64"),
        ([np.zeros(2), np.ones(2)], "float64"),
        (np.zeros(2, np.float16), "float16"),
        (np.zeros(2, dtypes.bfloat16), "bfloat16"),
        (np.zeros(2, ">f4"), "float32"),
    ],
)
def test_dtype_of_data(data, dtype):
    t = cd.tensor(data)
    assert t.dtype == dtypes.canonical(dtype)
    assert t.shape == np.shape(data)


def test_a_dtype_may_be_asked_for_but_not_lose_anything():
    assert cd.tensor([1, 2], dtype="float16").dtype == dtypes.float16
    assert cd.tensor([0, 1], dtype="bool").tolist() == [False, True]
    with pytest.raises(DtypeError, match="expected values that int32 can hold, got float64"):
        cd.tensor([1.5], dtype="int32")
    with pytest.raises(DtypeError, match="integers from 0 to 255 for uint8, got -1"):
        cd.tensor([3, -1], dtype="uint8")
    assert cd.tensor([1j, 2]).dtype == dtypes.complex64
    with pytest.raises(DtypeError, match="float32 can hold, got complex128; take the real part"):
        cd.tensor([1j], dtype="float32")
    with pytest.raises(ShapeError, match="nested lists of equal lengths"):
        cd.tensor([[1], [2, 3]])


def test_tensor_copies_its_data():
    array = np.zeros(3)
    t = cd.tensor(array)
    array[0] = 1
    assert t[0] == 0


@everywhere
def test_views_share_memory(kind, device):
    t = counting(kind, device)
    for view in (
        t[1],
        t[:, ::2],
        t.T,
        t.reshape(6, 4),
        t.transpose(2, 0, 1),
        t.unsqueeze(1),
        t[0:1].squeeze(0),
        t.T.reshape(4, 3, 1, 2),
    ):
        assert view.memory is t.memory
    t[1].T[3, 0] = -1.0
    assert t[1, 0, 3] == -1
    t.reshape(-1)[0] = -2.0
    assert t[0, 0, 0] == -2


def test_a_reshape_that_strides_cannot_express_is_a_copy():
    t = counting()
    flat = t.T.reshape(-1)
    assert flat.memory is not t.memory
    assert (flat.numpy() == t.numpy().T.reshape(-1)).all()


small_shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(st.data())
def test_reshape_of_views_is_numpys(data):
    shape = data.draw(small_shapes)
    array = np.arange(np.prod(shape)).reshape(shape)
    t = cd.tensor(array)
    order = data.draw(st.permutations(range(len(shape))))
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)
    array, t = array.transpose(order)[steps], t.transpose(*order)[steps]
    factors = data.draw(st.permutations([*array.shape, 1]))
    wanted = data.draw(st.sampled_from([factors, [-1], [array.shape[0], -1]]))
    result = t.reshape(wanted)
    assert (result.numpy() == array.reshape(wanted)).all()
    # Whenever NumPy needs no copy, neither do we.
    if np.shares_memory(array, array.reshape(wanted)):
        assert result.memory is t.memory


def test_reshape_squeeze_and_transpose_refuse_nonsense():
    t = counting()
    with pytest.raises(ShapeError, match=r"Tensor\.reshape: expected .* 24 elements"):
        t.reshape(5, 5)
    with pytest.raises(ShapeError, match=r"Tensor\.squeeze: expected axis 1 of size 1"):
        t.squeeze(1)
    with pytest.raises(ShapeError, match=r"Tensor\.transpose: expected each of the 3 axes once"):
        t.transpose(0, 1)
    with pytest.raises(ShapeError, match=r"Tensor\.unsqueeze: expected an axis from -4 to 3"):
        t.unsqueeze(4)


def test_shapes_may_be_given_as_one_sequence():
    t = counting()
    assert t.reshape((4, 6)).shape == t.reshape(4, 6).shape == (4, 6)
    assert t.transpose((1, 0, 2)).shape == t.transpose(1, 0, 2).shape == (3, 2, 4)


@everywhere
def test_copies_are_independent_and_stay_where_they_are(kind, device):
    t = counting(kind, device)
    for original in (t, t[1], t.T, t[:, ::-1]):
        copy = original.copy()
        assert (copy.kind, copy.device) == (kind, t.device)
        assert copy.tolist() == original.tolist()
        assert copy.memory is not t.memory
        assert StridedView(copy.shape, copy.strides, copy.offset).is_dense
    t.copy()[...] = 0.0
    assert t[1, 2, 3] == 23


@everywhere
@pytest.mark.parametrize("target", PLACES, ids=[f"{kind.name}-{name}" for kind, name in PLACES])
def test_every_move_between_places(kind, device, target):
    t = counting(kind, device)
    wanted_kind, wanted_device = target
    moved = t.to(wanted_device, kind=wanted_kind)
    assert (moved.kind, moved.device) == (wanted_kind, cd.device(wanted_device))
    assert moved.tolist() == t.tolist()
    assert t[:, 1].to(wanted_device, kind=wanted_kind).tolist() == t[:, 1].tolist()
    assert (moved is t) == ((kind, device) == target)


@every_dtype
@pytest.mark.parametrize("target", dtypes.ALL, ids=str)
def test_astype(dtype, target):
    t = cd.Tensor((2, 2), fill=cd.identity(), dtype=dtype).T
    if dtypes.is_complex(dtype) and not dtypes.is_complex(target) and target != dtypes.bool_:
        with pytest.raises(DtypeError, match=r"expected real numbers.*take op\.real"):
            t.astype(target)
        return
    t = t.astype(target)
    assert t.dtype == target
    assert t.tolist() == [[1, 0], [0, 1]]


@everywhere
def test_fill_in_place(kind, device):
    t = counting(kind, device)
    assert t.fill_(cd.constant(2)) is t
    assert (t.numpy() == 2).all()
    t[:, ::2].fill_(cd.zero())
    assert t.numpy().sum() == 2 * 8


def test_numpy_shares_memory_where_there_is_one_side():
    for kind in (cd.HOST, cd.DEVICE, cd.MANAGED):
        t = counting(kind, "cpu")
        t.T.numpy()[3, 2, 1] = -5
        assert t[1, 2, 3] == -5


def test_numpy_is_read_only_where_a_write_would_be_lost():
    for kind in (cd.MANAGED, cd.DEVICE):
        t = counting(kind, "loopback")
        array = t.numpy()
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        t[0, 0, 0] = 7.0
        assert t.numpy()[0, 0, 0] == 7


def test_reading_twice_moves_nothing_twice():
    t = counting(cd.MANAGED, "loopback")
    t.device_array(write=True)
    t.device.stream.synchronize()
    before = t.memory.copies
    t.numpy()
    t.tolist()
    assert t.memory.copies == before + 1


def test_discarding_a_part_keeps_the_rest():
    t = counting(cd.MANAGED, "loopback")
    t.device_array()
    t[0].host_array(write=True, discard=True)[...] = 0
    assert t[1, 2, 3] == 23
    whole = t.device_array(write=True)
    t.device.stream.launch(lambda: whole.fill(9))
    t[0].host_array(write=True, discard=True)[...] = 0
    assert t[1, 2, 3] == 9


def test_kernels_see_strided_views_of_the_device_side():
    t = counting(cd.DEVICE, "loopback")
    rows = t[:, 1, ::-1].device_array(write=True)
    t.device.stream.launch(lambda: np.negative(rows, out=rows))
    assert t[1, 1].tolist() == [-16, -17, -18, -19]
    assert t[1, 0].tolist() == [12, 13, 14, 15]


def test_arrays_from_a_tensor():
    t = counting()
    assert np.shares_memory(np.asarray(t), t.numpy())
    assert not np.shares_memory(np.array(t), t.numpy())
    assert np.asarray(t, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(t, np.float64, copy=False)


def test_one_element_is_a_python_number():
    assert cd.tensor([[3]]).item() == 3
    assert type(cd.tensor([[3]]).item()) is int
    assert type(cd.tensor(2.0, dtype="bfloat16").item()) is float
    assert float(cd.tensor([2.5])) == 2.5
    assert int(cd.tensor(2.5)) == 2
    assert bool(cd.tensor(False)) is False
    for convert in (float, int, bool, cd.Tensor.item):
        with pytest.raises(ShapeError, match="expected one element, got shape"):
            convert(counting())


def test_length_and_iteration():
    t = counting()
    assert len(t) == 2
    assert [part.shape for part in t] == [(3, 4), (3, 4)]
    assert list(cd.tensor([1.5, 2.5])) == [1.5, 2.5]
    with pytest.raises(ShapeError, match="len: expected at least one axis"):
        len(cd.tensor(1))
    with pytest.raises(ShapeError, match="len: expected at least one axis"):
        iter(cd.tensor(1))


def test_printing():
    t = cd.tensor([[1.0, 2.0], [3.0, 4.0]], kind=cd.DEVICE, device="loopback:1")
    assert str(t) == "[[1. 2.]\n [3. 4.]]"
    assert repr(t) == (
        "Tensor([[1., 2.],\n        [3., 4.]], "
        "shape=(2, 2), dtype=float32, kind=DEVICE, device=loopback:1)"
    )
    assert len(repr(cd.Tensor((1000, 1000)))) < 1000


def test_tensors_are_compared_by_identity():
    t = cd.tensor([1])
    assert len({t, t, cd.tensor([1])}) == 2


def test_a_wrapped_array_is_shared_whatever_its_strides():
    array = np.arange(24.0).reshape(4, 6)
    for view in (array, array.T, array[::-2, 1::2], array[2:3], array[1], array[:0]):
        t = cd.Tensor.from_numpy(view, copy=False)
        assert t.tolist() == view.tolist()
        t[...] = t.numpy() + 1
        assert t.tolist() == view.tolist()
        assert np.shares_memory(t.numpy(), view) or not view.size


def test_a_wrapped_array_lives_as_long_as_the_tensor():
    class Watched(np.ndarray):
        pass

    array = np.zeros(10).view(Watched)
    watch = weakref.ref(array)
    t = cd.Tensor.from_numpy(array[::2], copy=False)
    del array
    gc.collect()
    assert t.tolist() == [0] * 5
    assert watch() is not None
    del t
    gc.collect()
    assert watch() is None


def test_what_cannot_be_wrapped_is_refused():
    with pytest.raises(DtypeError, match="byte order"):
        cd.Tensor.from_numpy(np.zeros(2, ">f4"), copy=False)
    with pytest.raises(ShapeError, match="each element at a distinct address"):
        cd.Tensor.from_numpy(np.broadcast_to(np.zeros(2), (3, 2)), copy=False)
    records = np.zeros(3, [("tag", "u1"), ("value", "f4")])
    with pytest.raises(ShapeError, match="aligned elements"):
        cd.Tensor.from_numpy(records["value"], copy=False)


def test_a_read_only_array_can_be_wrapped_but_not_written():
    array = np.zeros(3)
    array.flags.writeable = False
    t = cd.Tensor.from_numpy(array, copy=False)
    assert t.tolist() == [0, 0, 0]
    with pytest.raises(DeviceError, match="read-only"):
        t[0] = 1.0
    t.copy()[0] = 1.0


def test_memory_outlives_the_tensor_in_its_arrays():
    array = counting().numpy()
    others = [cd.Tensor((2, 3, 4), fill=cd.one()) for _ in range(10)]
    assert array.reshape(-1).tolist() == list(range(24))
    del others


@pytest.mark.parametrize("dtype", [dtype.name for dtype in dtypes.ALL])
def test_elements_keep_their_dtype(dtype: str) -> None:
    t = cd.tensor(np.array([[1, 0], [1, 1]]).astype(dtypes.BY_NAME[dtype]))
    elements = [t[0, 0], next(iter(t[1])), t[np.array(1), np.array(1)]]
    assert [each.dtype for each in elements] == [t.dtype] * 3
    assert isinstance(t[0, 0].item(), bool | int | float | complex | np.generic)
    for scalar in (t[0, 0], [t[0, 0], t[1, 1]]):
        assert op.exp(scalar).dtype == op.exp(t).dtype
        assert op.equal(scalar, t[0]).tolist() == op.equal(1, t[0]).tolist()
    if dtype != "bool":
        assert (op.add(t[0, 0], t[1, 1]).dtype, op.square(t[0, 0]).dtype) == (t.dtype, t.dtype)
    # Beside others they are weak where they are Python numbers too: np.sqrt(2) must not widen.
    assert (cd.tensor([1.0]) * cd.tensor(np.array([2.0]))[0]).dtype == dtypes.float32


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
def test_no_elements_are_of_any_dtype(dtype: str) -> None:
    assert cd.tensor([], dtype=dtype).dtype.name == cd.tensor([[]], dtype=dtype).dtype.name == dtype
