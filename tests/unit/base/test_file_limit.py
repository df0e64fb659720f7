"""A small file does not get much memory, whatever it says."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera.base.config import Settings
from caldera.base.file_access import check_asked
from caldera.data.sources.file_formats import read_idx
from caldera.errors import ConfigError, DataError


def test_a_file_may_ask_for_a_hundred_times_what_it_has_or_for_the_limit() -> None:
    with cd.settings.override(file_limit=1000):
        check_asked(1000, "load")
        check_asked(1000, "load", held=1)
        check_asked(5000, "load", held=50)
        with pytest.raises(DataError, match=r"at most 1000 B, got 1001 B; .*file_limit = 1001"):
            check_asked(1001, "load", held=10)
        with pytest.raises(DataError, match="file_limit"):
            check_asked(5001, "load", held=50)


def test_the_limit_comes_from_the_environment() -> None:
    assert Settings({"CALDERA_FILE_LIMIT": "5"}).file_limit == 5
    assert Settings({}).file_limit == 1 << 30
    with pytest.raises(ConfigError, match="CALDERA_FILE_LIMIT"):
        Settings({"CALDERA_FILE_LIMIT": "much"})


def test_an_npz_that_unpacks_to_a_thousand_times_its_size(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros(4 << 20, "uint8"))
    assert path.stat().st_size < 10_000
    tracemalloc.start()
    with (
        cd.settings.override(file_limit=1 << 20),
        pytest.raises(DataError, match=r"bomb\.npz: .* got 4\.0 MiB; .*file_limit"),
    ):
        cd.io.load_npz(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert cd.io.load_npz(path)["a"].shape == (4 << 20,)


def test_an_npy_header_of_many_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npy"
    with path.open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + (300 << 20).to_bytes(4, "little"))
        file.truncate(301 << 20)
    tracemalloc.start()
    for load in (cd.io.load_npy, cd.io.map_npy):
        with pytest.raises(DataError, match="a header of 314572800 bytes"):
            load(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_compressed_idx_file(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    packer = zlib.compressobj(9, wbits=31)
    content = bytes([0, 0, 8, 1]) + (4 << 20).to_bytes(4, "big") + bytes(4 << 20)
    path.write_bytes(packer.compress(content) + packer.flush())
    with (
        cd.settings.override(file_limit=1 << 20),
        pytest.raises(DataError, match="file_limit"),
    ):
        read_idx(path, axes=1)
    assert read_idx(path, axes=1).size == 4 << 20
