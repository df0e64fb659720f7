"""Folders of shards: what was written comes back, and what is damaged is refused."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import data
from caldera.data.random_draws import block_permutation
from caldera.errors import CalderaError, ConfigError, DataError, IndexingError
from tests.unit.data.files import picture


def arrays(count: int = 23) -> tuple[np.ndarray, ...]:
    x = np.random.default_rng(0).integers(0, 256, (count, 2, 3)).astype(np.uint8)
    return x, np.arange(count) * 1.5, np.arange(count) % 7


class Encoded(data.Data):
    """Byte strings of different lengths."""

    shape = ()
    dtype = np.dtype(object)
    scale = 255.0

    def __init__(self, contents: list[bytes]) -> None:
        self.contents = contents

    def __len__(self) -> int:
        return len(self.contents)

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        found = np.empty(len(indices), object)
        found[:] = [self.contents[index] for index in indices]
        return found, np.asarray(indices)


@pytest.mark.parametrize("shard_bytes", [1, 60, 1 << 20])
def test_arrays_come_back(tmp_path: Path, shard_bytes: int) -> None:
    given = arrays()
    found = data.write_shards(tmp_path, given, shard_bytes=shard_bytes, class_names=["a", "b"])
    again = data.Shards(tmp_path)
    assert len(found) == len(again) == 23
    assert again.class_names == ("a", "b")
    indices = np.array([22, 0, 5, 5, 13])
    for read, wanted in zip(again.raw_batch(indices), given, strict=True):
        assert read.dtype == wanted.dtype
        np.testing.assert_array_equal(read, wanted[indices])
    np.testing.assert_array_equal(again.batch(indices)[0], given[0][indices] / np.float32(255))
    assert again.y is not None
    np.testing.assert_array_equal(again.y, given[-1])
    # Anybody can read them.
    np.testing.assert_array_equal(np.load(tmp_path / "00000.x.npy")[0], given[0][0])
    same = data.Loader(data.ArrayData(*given), 4, seed=1), data.Loader(again, 4, seed=1)
    for mine, theirs in zip(*same, strict=True):
        np.testing.assert_array_equal(mine.x, theirs.x)


def test_byte_strings_of_any_length_come_back(tmp_path: Path) -> None:
    contents = [b"", b"a", b"bcd" * 50, b"\0\1", *[bytes([n]) * n for n in range(20)]]
    shards = data.write_shards(tmp_path, Encoded(contents), shard_bytes=40)
    found, numbers = shards.raw_batch(np.arange(len(contents))[::-1])
    assert found.tolist() == contents[::-1]
    assert numbers.tolist() == list(range(len(contents)))[::-1]
    assert "encoded" in repr(shards)


def test_streams_and_pipelines_are_written_as_they_come(tmp_path: Path) -> None:
    stream = data.IterableData([([float(n)], n) for n in range(9)])
    assert data.write_shards(tmp_path / "stream", stream).batch(np.array([8]))[1].tolist() == [8]
    x = np.full((4, 3, 8, 8), 200, np.uint8)
    written = data.write_shards(tmp_path / "cut", data.Pipeline((x, np.arange(4)), data.Crop(5)))
    # The stages have been done, and bytes are still bytes.
    assert [column.shape for column in written.columns] == [(3, 5, 5), ()]
    assert written.raw_batch(np.array([0]))[0].dtype == np.uint8
    assert written.batch(np.array([0]))[0].dtype == np.float32


def test_images_train_from_shards_as_from_memory(tmp_path: Path) -> None:
    contents = [picture(10 * n, (6, 6)) for n in range(20)]
    stages = [data.Decode(), data.Crop(5), data.Mirror()]
    here = data.Loader(data.Pipeline(Encoded(contents), stages), 6, seed=2)
    shards = data.write_shards(tmp_path, Encoded(contents), shard_bytes=300)
    there = data.Loader(data.Pipeline(shards, stages, workers=2), 6, seed=2)
    for mine, theirs in zip(here, there, strict=True):
        assert mine.x.tobytes() == theirs.x.tobytes()


def test_there_may_be_more_shards_than_files_that_can_be_open(tmp_path: Path) -> None:
    x, y = np.arange(200), np.arange(200) * 2
    shards = data.write_shards(tmp_path, (x, y), shard_bytes=16)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        found = shards.batch(x[::-1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    np.testing.assert_array_equal(found, [x[::-1], y[::-1]])


def test_a_rank_reads_its_own_samples_alone(tmp_path: Path) -> None:
    read: list[int] = []

    class Watched(data.Shards):
        def raw_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
            read.extend(indices.tolist())
            return super().raw_batch(indices)

    data.write_shards(tmp_path, arrays(40), shard_bytes=100)
    seen = []
    for rank in range(4):
        pipeline = data.Pipeline(Watched(tmp_path))
        read.clear()
        handed = [
            n for b in data.Loader(pipeline, 8, rank=rank, ranks=4) for n in b.indices.tolist()
        ]
        assert read == handed
        seen += handed
    assert sorted(seen) == list(range(40))


@pytest.mark.parametrize("block", [1, 3, 10, 100])
def test_an_order_by_blocks_has_every_sample_once(tmp_path: Path, block: int) -> None:
    data.write_shards(tmp_path, arrays(97))
    shards = data.Shards(tmp_path, block=block)
    orders = {tuple(shards.order(seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(97)) for order in orders)


def test_blocks_keep_neighbours_near() -> None:
    order = block_permutation(10_000, block=20, seed=1, epoch=0)
    for start in range(0, 10_000, 320):
        assert len(set((order[start : start + 320] // 20).tolist())) <= 17
    # And still, what comes next is seldom what lies next.
    assert (np.abs(np.diff(order)) == 1).mean() < 0.02


def test_a_sample_is_named_by_its_file(tmp_path: Path) -> None:
    shards = data.write_shards(tmp_path, Encoded([b"no image"] * 5), shard_bytes=32)
    assert shards.name_of(3) == "sample 1 of 00001.x.npy"
    with pytest.raises(DataError, match=r"Decode of sample 0 of 00000\.x\.npy: data\.Decode"):
        data.Pipeline(shards, data.Decode())


# --- what is refused


def index(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "index.json").read_text())
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 3},
        {"version": 2, "samples": [22]},
        {"samples": "many"},
        {"samples": [-1]},
        {"samples": [True]},
        {"samples": [1 << 60]},
        {"arrays": []},
        {"arrays": [{"name": "../../etc", "dtype": "uint8", "shape": []}]},
        {"arrays": [{"name": "x", "dtype": "object", "shape": []}]},
        {"arrays": [{"name": "x", "dtype": "uint8", "shape": [1.5]}]},
        {"arrays": [{"name": "x", "dtype": "uint8"}]},
        {"arrays": [{"name": "x", "encoded": True}] * 2},
        {"class_names": 3},
    ],
)
def test_an_index_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    data.write_shards(tmp_path, arrays())
    # Without a digest, as older versions wrote it.
    (tmp_path / "index.json").write_text(json.dumps(index(tmp_path) | {"version": 1} | change))
    with pytest.raises(DataError, match=r"index\.json: expected the index of a folder of shards"):
        data.Shards(tmp_path)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    data.write_shards(tmp_path / "a", arrays())
    everything = np.arange(23)
    content = (tmp_path / "a/00000.x.npy").read_bytes()
    for wrong in (content[:-1], content[:50], content + b"1", b""):
        (tmp_path / "a/00000.x.npy").write_bytes(wrong)
        with pytest.raises(DataError):
            data.Shards(tmp_path / "a").batch(everything)
    np.save(tmp_path / "a/00000.x.npy", np.zeros((23, 2, 4), np.uint8))
    with pytest.raises(DataError, match="this differs from the index"):
        data.Shards(tmp_path / "a").batch(everything)
    (tmp_path / "a/00000.x.npy").unlink()
    with pytest.raises(DataError, match="expected a file"):
        data.Shards(tmp_path / "a").batch(everything)
    data.write_shards(tmp_path / "b", Encoded([b"abc", b"de"]))
    for offsets in ([0, 3, 6], [0, 4, 3], [-1, 3, 5]):
        np.save(tmp_path / "b/00000.x.offsets.npy", np.array(offsets))
        with pytest.raises(DataError, match="ascending offsets from 0 to 5"):
            data.Shards(tmp_path / "b").batch(np.arange(2))
    with pytest.raises(DataError, match=r"expected a file at .*index\.json"):
        data.Shards(tmp_path)


def test_mistakes_are_named(tmp_path: Path) -> None:
    shards = data.write_shards(tmp_path, arrays())
    with pytest.raises(DataError, match="an empty folder"):
        data.write_shards(tmp_path, arrays())
    with pytest.raises(DataError, match="expected samples, got none"):
        data.write_shards(tmp_path / "none", arrays(0))
    with pytest.raises(ConfigError, match="shard_bytes"):
        data.write_shards(tmp_path / "small", arrays(), shard_bytes=0)
    with pytest.raises(ConfigError, match="a block"):
        data.Shards(tmp_path, block=0)
    with pytest.raises(IndexingError, match="0 to 22, got 3 to 23"):
        shards.batch(np.array([3, 23]))


def test_samples_larger_than_any_file_are_refused(tmp_path: Path) -> None:
    data.write_shards(tmp_path / "shards", (np.ones((4, 3), "float32"), np.arange(4)))
    index = tmp_path / "shards" / "index.json"
    text = json.loads(index.read_text())
    text["arrays"][0]["shape"] = [999999999999]
    text["version"] = 1
    index.write_text(json.dumps(text))
    with pytest.raises(DataError, match="samples of shape"):
        data.Shards(tmp_path / "shards")


def test_what_differs_from_what_was_written_is_refused(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data.write_shards(tmp_path / "a", arrays(), shard_bytes=200)
    data.write_shards(tmp_path / "b", Encoded([b"abc", b"", b"de"]))
    for folder in ("a", "b"):
        given = data.Shards(tmp_path / folder)
        everything = np.arange(len(given))
        whole = given.raw_batch(everything)
        for path in sorted((tmp_path / folder).iterdir()):
            content = path.read_bytes()
            for _ in range(12):
                damaged = bytearray(content)
                damaged[draw.integers(len(content))] ^= 1 << int(draw.integers(8))
                path.write_bytes(damaged)
                try:
                    found = data.Shards(tmp_path / folder).raw_batch(everything)
                except CalderaError:
                    continue
                for mine, theirs in zip(found, whole, strict=True):
                    assert mine.tolist() == theirs.tolist()
            path.write_bytes(content)


def test_folders_of_older_versions_have_no_checksums(tmp_path: Path) -> None:
    data.write_shards(tmp_path, arrays())
    for path in tmp_path.glob("*.sums.npy"):
        path.unlink()
    with pytest.raises(DataError, match=r"expected a file at .*sums\.npy"):
        data.Shards(tmp_path).raw_batch(np.arange(3))
    old = {name: each for name, each in index(tmp_path).items() if name != "digest"}
    (tmp_path / "index.json").write_text(json.dumps({**old, "version": 1}))
    np.testing.assert_array_equal(data.Shards(tmp_path).raw_batch(np.arange(3))[1], [0.0, 1.5, 3.0])
