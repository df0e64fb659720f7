"""IDX files and MNIST: found in every usual place, and nothing but the truth accepted."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from caldera import data
from caldera.data.sources.file_formats import read_idx
from caldera.errors import DataError
from tests.unit.data.files import idx, survives_damage, write_mnist
from tests.unit.data.real import FOLDER, needs


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read(tmp_path: Path, packed: bool) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 4, 5)).astype(np.uint8)
    path = tmp_path / "images"
    content = idx(array)
    path.write_bytes(gzip.compress(content) if packed else content)
    found = read_idx(path, axes=3)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)
    path.write_bytes(gzip.compress(content[:40]) + gzip.compress(content[40:]))
    np.testing.assert_array_equal(read_idx(path, axes=3), array)


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx_files_are_refused(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "labels"
    content = idx(np.arange(20))
    survives_damage(
        gzip.compress(content) if packed else content, path, lambda: read_idx(path, axes=1)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"\0\0\x08\x03" + b"\0" * 8, "magic 00000803"),
        (b"\0\0\x0d\x01" + b"\0" * 8, "magic 00000d01"),
        (b"PK\x03\x04" + b"\0" * 8, "magic 504b0304"),
        (b"\0\0\x08\x01\0\0", "1 sizes"),
        (b"\0\0\x08\x01\0\0\0\x02ab more", "2 bytes for shape"),
        (b"\0\0\x08\x01\xff\xff\xff\xffab", "4294967295 bytes for shape"),
        (gzip.compress(b"\0\0\x08\x01\xff\xff\xff\xff"), "4294967295 bytes for shape"),
    ],
    ids=["empty", "axes", "floats", "zip", "short", "long", "huge", "huge-gz"],
)
def test_headers_that_lie_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(path, axes=1)


def test_sizes_that_overflow_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1))
    with pytest.raises(DataError, match="the file is truncated or damaged"):
        read_idx(path, axes=3)


def test_a_bomb_stops_at_the_declared_size(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05" + bytes(50_000_000)))
    with pytest.raises(DataError, match="expected 5 bytes for shape"):
        read_idx(path, axes=1)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inside", ["", "mnist", "mnist/raw", "MNIST/raw"])
def test_mnist_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, inside: str
) -> None:
    arrays = write_mnist(tmp_path / "sets" / inside, packed)
    by_argument = data.mnist(tmp_path / "sets")
    monkeypatch.setenv("CALDERA_DATA", str(tmp_path / "sets"))
    for found in (by_argument, data.mnist()):
        assert (found.shape, found.classes, found.name) == ((1, 4, 5), 10, "mnist")
        assert (len(found.train), len(found.test)) == (6, 5)
        images = arrays["train-images-idx3-ubyte"].astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(found.train.x[:, 0], images)
        assert found.test.y is not None
        assert found.test.y.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
        assert found.test.y.dtype == np.int64


def test_mnist_is_found_in_the_cache(cache: Path) -> None:
    write_mnist(cache / "data" / "mnist")
    assert len(data.mnist(download=False).train) == 6


def test_mnist_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="CALDERA_DATA"):
        data.mnist(tmp_path)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz and three more in .*cache"):
        data.mnist(download=False)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.arange(5))))
    with pytest.raises(DataError, match="6 labels, one for each image"):
        data.mnist(tmp_path)
    labels.write_bytes(gzip.compress(idx(np.arange(6) + 5)))
    with pytest.raises(DataError, match="labels from 0 to 9, got 10"):
        data.mnist(tmp_path)


@needs("mnist")
def test_the_real_mnist() -> None:
    found = data.mnist(FOLDER)
    assert (len(found.train), len(found.test), found.shape) == (60000, 10000, (1, 28, 28))
    assert found.train.y is not None
    assert np.bincount(found.train.y).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert found.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    normalise = data.Normalise.of(found.train)
    assert np.round(normalise.mean, 4).tolist() == [0.1307]
    assert np.round(normalise.std, 4).tolist() == [0.3081]
