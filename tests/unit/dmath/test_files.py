"""Arrays in folders and files: any number of ranks reads what any other number has written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from caldera import comm
from caldera import dmath as dm
from caldera.compiler.sharding.distributions import (
    BlockCyclic,
    Blocks,
    Columns,
    Grid,
    Replicated,
    Rows,
)
from caldera.dmath import shards
from caldera.dmath.files import load_handles, save_handles
from caldera.dmath.protocol import SERVICES
from caldera.dmath.rank import Rank
from caldera.dmath.session import Session, SpmdSession
from caldera.errors import CalderaError, ConfigError, DataError

RNG = np.random.default_rng(0)
ARRAYS = {
    "a": RNG.normal(size=(7, 5)),
    "b/c": RNG.normal(size=(4, 3, 2)).astype("float32"),
    "complex": (RNG.normal(size=(5, 4)) + 1j * RNG.normal(size=(5, 4))),
    "none": np.zeros((0, 3)),
    "number": np.array(3.5),
    "flags": RNG.random((6, 6)) > 0.5,
}
LAYOUTS = {
    "a": BlockCyclic(2, grid=(2, 2)),
    "b/c": Columns(),
    "complex": Rows(),
    "none": Rows(),
    "number": Replicated(),
    "flags": Blocks(rows=[0, 1, 4, 6], columns=2, owners=[[0, 3, 1], [2, 1, 0], [3, 3, 2]]),
}


def _saved(session: Session, folder: Path) -> None:
    ranks = range(session.ranks)
    handles = {
        name: session.put(array, LAYOUTS[name].of(array.shape, ranks))
        for name, array in ARRAYS.items()
    }
    save_handles(session, folder, handles)


def _check(session: Session, folder: Path, **how: object) -> None:
    loaded = load_handles(session, folder, **how)  # type: ignore[arg-type]
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        found = session.get(loaded[name])
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dm.disconnect()
    with dm.connect(threads=4) as session:
        _saved(session, tmp_path / "arrays")
    return tmp_path / "arrays"


def test_any_number_of_ranks_reads_what_four_have_written(folder: Path) -> None:
    parts = {path.name for path in folder.iterdir()}
    assert len(parts) == 5
    for ranks in (1, 2, 3, 4, 6):
        with dm.connect(threads=ranks) as session:
            _check(session, folder)
            wide = load_handles(session, folder, {"a": Grid(1, ranks)})["a"]
            np.testing.assert_array_equal(session.get(wide), ARRAYS["a"])


def test_every_rank_may_run_the_script_that_saves_and_loads(tmp_path: Path) -> None:
    def save(communicator: comm.Communicator) -> None:
        _saved(SpmdSession(communicator), tmp_path / "arrays")

    def load(communicator: comm.Communicator) -> None:
        _check(SpmdSession(communicator), tmp_path / "arrays")

    comm.run_virtual_ranks(4, save)
    comm.run_virtual_ranks(2, load)


def test_saving_again_replaces_and_leaves_nothing_over(folder: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    with dm.connect(threads=4) as session:
        _saved(session, folder)
        _check(session, folder)
    after = {path.name for path in folder.iterdir()}
    assert len(after) == len(before)
    assert after & before == {"index.json"}


def test_damage_is_named(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())

    def refused(match: str) -> None:
        with dm.connect(threads=2) as session, pytest.raises(CalderaError, match=match):
            load_handles(session, folder)

    def changed(**parts: object) -> None:
        (folder / "index.json").write_text(json.dumps({**index, **parts}))

    changed(version=3)
    refused(r"dm\.load arrays: expected 'caldera arrays', version 2, .* got .* version 3")
    changed(arrays={})
    refused("version 2, with its digest, got .* version 2")
    # Of older versions, without one.
    index["version"] = 1
    broken = json.loads(json.dumps(index["arrays"]))
    broken["a"]["files"]["0"] = "../../etc/passwd"
    changed(arrays=broken)
    refused(r"dm\.load arrays: expected an index\.json as dm\.save writes it")
    broken["a"] = {**index["arrays"]["a"], "layout": {"Popen": ["ls"]}}
    changed(arrays=broken)
    refused(r"expected an index\.json")
    changed(arrays={"a": {**index["arrays"]["a"], "dtype": "float32"}})
    refused(r"expected a part 'a' of .* float32, got .* float64")
    changed()
    first = folder / index["arrays"]["a"]["files"]["0"]
    whole = first.read_bytes()
    first.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(r"worker \d of 2: dm\.load .* expected a part '\w+' that fits its checksum")
    first.write_bytes(whole[:-1])
    refused(r"worker \d of 2: map_safetensors .*truncated")
    first.unlink()
    refused(r"worker \d of 2: .*expected a file at")
    (folder / "index.json").write_text("{")
    refused(r"expected an index\.json")


def test_one_array_as_an_npy_file_and_back_by_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "BLOCK_BYTES", 100)
    dm.disconnect()
    with dm.connect(threads=3) as session:
        handle = session.put(ARRAYS["a"], Columns().of((7, 5), range(3)))
        save_handles(session, tmp_path / "a.npy", {"": handle})
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), ARRAYS["a"])
        np.save(tmp_path / "f.npy", np.asfortranarray(ARRAYS["b/c"]))
        for file, array in (("a", ARRAYS["a"]), ("f", ARRAYS["b/c"])):
            for layout in (
                Rows(),
                Columns(),
                Grid(3, 1),
                BlockCyclic(1, grid=(1, 3)),
                Replicated(),
            ):
                (loaded,) = load_handles(session, tmp_path / f"{file}.npy", layout).values()
                np.testing.assert_array_equal(session.get(loaded), array)
        with pytest.raises(ConfigError, match="expected a folder, or a file that ends in"):
            save_handles(session, tmp_path / "a.txt", {"": handle})
        with pytest.raises(ConfigError, match=r"expected a folder of dm\.save, or a file that"):
            load_handles(session, tmp_path / "a.txt")
        with pytest.raises(DataError, match="expected a file at"):
            load_handles(session, tmp_path / "none.npy")


class _Dataset:
    """What h5py and zarr give: slices are read, nothing else is."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype, self.largest = array.shape, array.dtype, 0

    def __getitem__(self, box: tuple[slice, ...]) -> np.ndarray:
        assert all(isinstance(each, slice) and each.step in (None, 1) for each in box)
        self.largest = max(self.largest, self._array[box].size)
        return self._array[box]


@pytest.mark.parametrize(("suffix", "library"), [("h5", "h5py"), ("zarr", "zarr")])
def test_datasets_are_read_by_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, library: str
) -> None:
    data = {"x": _Dataset(ARRAYS["a"])}
    opened = SimpleNamespace(File=lambda path, mode: data, open=lambda path, mode: data)
    path = tmp_path / f"a.{suffix}"
    path.touch()
    dm.disconnect()
    with dm.connect(threads=2) as session:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, library, None)
            with pytest.raises(ConfigError, match=f"pip install {library}"):
                load_handles(session, path, dataset="x")
        monkeypatch.setitem(sys.modules, library, opened)
        for layout in (Rows(), BlockCyclic(2, grid=(1, 2))):
            loaded = load_handles(session, path, layout, dataset="x")["x"]
            np.testing.assert_array_equal(session.get(loaded), ARRAYS["a"])
        assert data["x"].largest < ARRAYS["a"].size
        with pytest.raises(ConfigError, match="expected dataset= one of x, got ''"):
            load_handles(session, path)
        with pytest.raises(DataError, match=f"expected a file of {library} with a dataset 'y'"):
            load_handles(session, path, dataset="y")


def test_arrays_are_saved_and_loaded_as_users_do(tmp_path: Path) -> None:
    dm.disconnect()
    with dm.connect(threads=3):
        a = dm.array(ARRAYS["a"], layout=dm.Grid(1, 3))
        dm.save(tmp_path / "one", a @ a.T)
        dm.save(tmp_path / "two", {"a": a, "b": a + 1.0})
        dm.save(tmp_path / "a.npy", a)
        for wrong in ({"a": ARRAYS["a"]}, {1: a}, ARRAYS["a"]):
            with pytest.raises(ConfigError, match="expected an array of dmath, or a dict of array"):
                dm.save(tmp_path / "wrong", wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="expected one array for an npy file, got 2"):
            dm.save(tmp_path / "b.npy", {"a": a, "b": a})
    with dm.connect(threads=2):
        np.testing.assert_allclose(dm.load(tmp_path / "one").numpy(), ARRAYS["a"] @ ARRAYS["a"].T)
        both = dm.load(tmp_path / "two", layout=dm.Columns())
        np.testing.assert_array_equal(both["b"].numpy(), ARRAYS["a"] + 1)
        np.testing.assert_array_equal(dm.load(tmp_path / "a.npy").numpy(), ARRAYS["a"])


def test_a_folder_that_a_worker_does_not_see_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen_by_first(rank: Rank, path: str, nonce: str) -> str:
        return "no such folder" if rank.communicator.rank == 1 else ""

    dm.disconnect()
    with dm.connect(threads=2):
        array = dm.ones((4, 4))
        dm.save(tmp_path / "seen", array)
        monkeypatch.setitem(SERVICES, "unseen_folder", seen_by_first)
        with pytest.raises(ConfigError, match=r"workers see: .*, got no such folder, for worker 1"):
            dm.save(tmp_path / "unseen", array)
        dm.save(tmp_path / "whole.npy", array)
    assert not list(tmp_path.rglob(".caldera-*"))
