"""safetensors files: the safetensors package reads ours, we read its, and damage is refused."""

from __future__ import annotations

import contextlib
import json
import sys

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera import io as files
from caldera.core.tensor import dtype as dtypes
from caldera.errors import ConfigError, DataError


def readable(value: object) -> str:
    """The name of a case is the message it expects, not the bytes that cause it."""
    return value if isinstance(value, str) else ""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.safetensors"


def one_of_each() -> dict[str, cd.Tensor]:
    tensors = {
        str(dtype): cd.Tensor((2, 3), fill=cd.identity(), dtype=dtype)
        for dtype in dtypes.ALL
        if dtype != dtypes.complex128
    }
    return tensors | {"scalar": cd.tensor(1.5), "empty": cd.Tensor((0, 2)), "ä/ß": cd.tensor([1])}


def as_lists(tensors) -> dict[str, object]:
    return {name: (str(t.dtype), t.shape, t.tolist()) for name, t in tensors.items()}


def test_round_trip(path):
    files.save_safetensors(path, one_of_each())
    assert as_lists(files.load_safetensors(path)) == as_lists(one_of_each())


def test_the_package_reads_ours(path):
    files.save_safetensors(path, one_of_each(), metadata={"made by": "caldera"})
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"made by": "caldera"}
        assert set(file.keys()) == set(one_of_each())
        for name, t in one_of_each().items():
            array = file.get_tensor(name)
            assert (array.dtype, array.shape) == (t.dtype, t.shape)
            assert array.tolist() == t.tolist()


def test_we_read_the_packages(path):
    arrays = {name: t.numpy() for name, t in one_of_each().items()}
    safetensors.numpy.save_file(arrays, path, metadata={"epoch": "3"})
    assert as_lists(files.load_safetensors(path)) == as_lists(one_of_each())
    assert files.load_safetensors_metadata(path) == {"epoch": "3"}


def test_elements_are_aligned(path):
    files.save_safetensors(path, one_of_each())
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    for entry in json.loads(content[8 : 8 + length]).values():
        width = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
        assert entry["data_offsets"][0] % width.get(entry["dtype"], 1) == 0


def test_views_and_arrays_are_saved_in_order(path):
    t = cd.tensor([[1, 2], [3, 4]], kind=cd.DEVICE, device="loopback").T
    files.save_safetensors(path, {"t": t, "a": np.arange(4)[::-1]})
    result = files.load_safetensors(path)
    assert result["t"].tolist() == [[1, 3], [2, 4]]
    assert result["a"].tolist() == [3, 2, 1, 0]


def test_nothing_to_save(path):
    files.save_safetensors(path, {})
    assert files.load_safetensors(path) == {}
    assert files.load_safetensors_metadata(path) == {}


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [({1: np.zeros(2)}, {}), ({}, {"a": 1}), ({}, {1: "a"}), ({"__metadata__": np.zeros(2)}, {})],
)
def test_names_and_metadata_are_checked(path, tensors, metadata):
    with pytest.raises(ConfigError, match="save_safetensors"):
        files.save_safetensors(path, tensors, metadata)
    assert not path.exists()


def file_with(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object = "U8", shape: object = (2,), offsets: object = (0, 2)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a header that fits into the file"),
        (b"1234567", "a header that fits into the file"),
        ((2**60).to_bytes(8, "little") + b"{}", "a header that fits into the file"),
        (file_with(b"{"), "a JSON header"),
        (file_with(b"\xff{}"), "a JSON header"),
        (file_with(b"[" * 100_000), "a JSON header"),
        (file_with([1]), "a JSON object as header, got list"),
        (file_with({"a": 1}), "'a': expected dtype, shape and data_offsets, got 1"),
        (file_with({"a": {"dtype": "U8"}}), "'a': expected dtype, shape and data_offsets"),
        (file_with({"a": entry(shape=[-2])}, b"ab"), "'a': expected dtype, shape"),
        (file_with({"a": entry(shape=[True, 2])}, b"ab"), "'a': expected dtype, shape"),
        (file_with({"a": entry(offsets=[0])}, b"ab"), "'a': expected dtype, shape"),
        (file_with({"a": entry("F8_E8M0")}, b"ab"), "'a': expected a dtype of BOOL, .*F8_E8M0"),
        (file_with({"a": entry([])}, b"ab"), "'a': expected a dtype of"),
        (file_with({"a": entry(shape=[10**9, 10**9])}, b"ab"), "'a': expected 10{18} bytes"),
        (file_with({"a": entry(offsets=[2, 0])}, b"ab"), "'a': expected 2 bytes"),
        (file_with({"a": entry()}, b"a"), "expected 2 bytes of tensors, got 1; the file is trunc"),
        (file_with({"a": entry()}, b"abc"), "expected 2 bytes of tensors, got 3"),
        (file_with({"a": entry(offsets=[1, 3])}, b"abc"), "starts at byte 0, got 1"),
        (file_with({"a": entry(), "b": entry(offsets=[1, 3])}, b"abc"), "starts at byte 2, got 1"),
        (file_with(b'{"a": 1, "a": 2}'), "the name .a. twice"),
        (file_with({"__metadata__": {"a": 1}}), "metadata of type str"),
        (file_with({"a": entry("BOOL")}, b"\x00\x07"), "0 or 1 for each bool"),
    ],
    ids=readable,
)
def test_damaged_files_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        files.load_safetensors(path)
    assert str(caught.value).startswith("load_safetensors t.safetensors")
    assert "\n" not in str(caught.value)


@settings(max_examples=50)
@given(st.data())
def test_damage_anywhere_gives_a_data_error_or_other_numbers(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "t.safetensors"
    files.save_safetensors(path, {"a": cd.tensor([1, 2]), "b": cd.tensor([True])}, {"c": "d"})
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(DataError):
        files.load_safetensors(path)


def test_a_missing_file(path):
    with pytest.raises(DataError, match=r"expected a file at .*, got no such file"):
        files.load_safetensors(path)


def test_bytes_are_turned_on_machines_whose_highest_comes_first(path, monkeypatch) -> None:
    names = ("int16", "bfloat16", "float64")
    arrays = {name: np.array([1, 2, 3]).astype(dtypes.canonical(name)) for name in names}
    files.save_safetensors(path, arrays)
    little = path.read_bytes()
    monkeypatch.setattr(sys, "byteorder", "big")
    files.save_safetensors(path, arrays)
    # Here the arrays themselves are not turned, so the file is, and reading it turns them back.
    assert path.read_bytes()[-6:-4] == little[-6:-4][::-1]
    for name, tensor in files.load_safetensors(path).items():
        assert tensor.numpy().tobytes() == arrays[name].tobytes()
