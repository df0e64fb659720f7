"""npy and npz files: NumPy reads ours, we read NumPy's, and damage is refused."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera import io as files
from caldera.core.tensor import dtype as dtypes
from caldera.errors import DataError, DtypeError

STORABLE = [dtype for dtype in dtypes.ALL if dtype != dtypes.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", STORABLE, ids=str)
shapes = pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3), (2, 3, 4)])


def readable(value: object) -> str:
    """The name of a case is the message it expects, not the bytes that cause it."""
    return value if isinstance(value, str) else ""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.npy"


@every_dtype
@shapes
def test_numpy_reads_ours(path, dtype, shape):
    t = cd.Tensor(shape, fill=cd.one(), dtype=dtype)
    files.save_npy(path, t)
    result = np.load(path, allow_pickle=False)
    assert (result.shape, result.dtype) == (shape, dtype)
    assert result.tolist() == t.tolist()


@every_dtype
@shapes
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("endian", ["<", ">"])
def test_we_read_numpys(path, dtype, shape, order, endian):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    np.save(path, np.array(array, dtype.newbyteorder(endian), order=order))
    t = files.load_npy(path)
    assert (t.shape, t.dtype) == (shape, dtype)
    assert t.tolist() == array.tolist()
    assert t.reshape(-1).memory is t.memory


def test_views_are_saved_in_order(path):
    files.save_npy(path, cd.tensor([[1, 2], [3, 4]]).T)
    assert files.load_npy(path).tolist() == [[1, 3], [2, 4]]


def test_bfloat16_has_no_place_in_npy(path):
    with pytest.raises(DtypeError, match="save it as safetensors"):
        files.save_npy(path, cd.Tensor((2,), dtype="bfloat16"))
    np.save(path, np.zeros(2, dtypes.bfloat16))
    with pytest.raises(DataError, match="numbers of a dtype that Caldera has"):
        files.load_npy(path)


class Bomb:
    """Something whose unpickling is noticed."""

    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


@pytest.mark.parametrize(
    "array",
    [
        np.array([Bomb()], object),
        np.zeros(2, np.clongdouble),
        np.array(["a"]),
        np.zeros(2, "f4,i4"),
        np.zeros(2, "M8[s]"),
        np.zeros(2, np.longdouble),
    ],
    ids=lambda array: str(array.dtype),
)
def test_other_dtypes_are_refused(path, array):
    np.save(path, array, allow_pickle=True)
    with pytest.raises(DataError, match=r"load_npy t\.npy: expected numbers of a dtype"):
        files.load_npy(path)
    assert not Bomb.exploded


def npy_with_header(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header of an npy file"),
        (b"hello world", "header of an npy file"),
        (pickle.dumps([1]), "header of an npy file"),
        (b"\x93NUMPY\x09\x00" + bytes(20), "header of an npy file, got 'version"),
        (npy_with_header("{'descr': '<f4'"), "header of an npy file"),
        (npy_with_header("__import__('os')"), "header of an npy file"),
        (
            npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"),
            "8 bytes of elements .* got 0 in the file; the file is truncated",
        ),
        (
            npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**15,), }"),
            "header of an npy file",
        ),
        (
            npy_with_header(
                "{'descr': '<f4', 'fortran_order': False, "
                "'shape': (1000000000, 1000000000, 1000000000), }",
                b"1234",
            ),
            "4000000000000000000000000000 bytes of elements",
        ),
        (
            npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", b"1234"),
            "sizes >= 0",
        ),
        (
            npy_with_header(
                "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", b"\x01\x02"
            ),
            "0 or 1 for each bool",
        ),
    ],
    ids=readable,
)
def test_damaged_files_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        files.load_npy(path)
    assert "t.npy" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_noticed(path):
    files.save_npy(path, cd.tensor([1.0, 2.0]))
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DataError):
            files.load_npy(path)


@settings(max_examples=50)
@given(st.data())
def test_damage_anywhere_gives_a_data_error_or_other_numbers(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    for load, save in ((files.load_npy, files.save_npy), (files.load_npz, save_in_archive)):
        path = folder / "t.npy"
        save(path, cd.tensor([1.0, 2.0]))
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            load(path)


def save_in_archive(path, tensor):
    files.save_npz(path, {"a": tensor})


def test_npz_round_trip_and_numpy_reads_it(path):
    tensors = {"a": cd.tensor([1, 2]), "layer/0.weight": cd.Tensor((2, 3)), "file": cd.tensor(1.5)}
    files.save_npz(path, tensors)
    result = files.load_npz(path)
    assert {name: t.tolist() for name, t in result.items()} == {
        name: t.tolist() for name, t in tensors.items()
    }
    with np.load(path) as arrays:
        assert arrays["layer/0.weight"].shape == (2, 3)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_we_read_numpys_npz(path, save):
    with path.open("wb") as file:
        save(file, a=np.eye(100), b=np.arange(3)[::-1], c=np.asfortranarray(np.ones((2, 3))))
    result = files.load_npz(path)
    assert result["a"].tolist() == np.eye(100).tolist()
    assert result["b"].tolist() == [2, 1, 0]
    assert result["c"].shape == (2, 3)


def archive(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


GOOD = npy_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }", b"ab")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an npz file"),
        (GOOD, "an npz file"),
        (archive(("a.npy", GOOD))[:-30], "an npz file"),
        (archive(("a.npy", GOOD)).replace(b"ab", b"ac"), "Bad CRC-32"),
        (archive(("a.npy", GOOD[:-1])), "'a': expected 2 bytes of elements"),
        (archive(("a.txt", b"hello")), "npy files inside, got 'a.txt'"),
        (archive(("a.npy", GOOD), compression=zipfile.ZIP_BZIP2), "npy files inside"),
    ],
    ids=readable,
)
def test_damaged_archives_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        files.load_npz(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_is_noticed(path, save):
    with path.open("wb") as file:
        save(file, a=np.arange(100_000))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"load_npz t\.npy"):
        files.load_npz(path)


def test_an_archive_that_claims_too_much_is_refused_before_memory_is_taken(path):
    huge = 2**40
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({huge},), }}"
    content = bytearray(archive(("a.npy", npy_with_header(header)), compression=8))
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="contents that fit into a file of"):
        files.load_npz(path)
