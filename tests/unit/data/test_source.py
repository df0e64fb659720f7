"""Samples in files of other people: folders, archives, IDX and npy."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from caldera import data
from caldera.errors import DataError
from tests.unit.data.files import idx, picture, survives_damage, tar


def write_images(folder: Path) -> None:
    for number in range(8):
        path = folder / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(30 * number, (5, 4)))
    (folder / "cat" / "notes.txt").write_text("no image")


def test_folders_and_archives_of_images_are_read_when_asked(tmp_path: Path) -> None:
    write_images(tmp_path / "animals")
    members = {
        f"animals/{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted((tmp_path / "animals").rglob("*.*"))
    }
    (tmp_path / "animals.tar").write_bytes(tar(members, packing=""))
    for path in (tmp_path / "animals", tmp_path / "animals.tar"):
        files = data.source(path)
        assert isinstance(files, data.Files)
        assert files.class_names == ("cat", "dog")
        assert files.y.tolist() == [0] * 4 + [1] * 4
        assert files.name_of(0).endswith("cat/1.png")
        pipeline = data.Pipeline(files, data.Decode())
        assert (len(pipeline), pipeline.shape) == (8, (3, 4, 5))
        shades = (pipeline.x[:, 0, 0, 0] * 255).round().astype(int)
        assert shades.tolist() == [30, 90, 150, 210, 0, 60, 120, 180]
        # A path is as good as what lies there.
        assert data.Pipeline(str(path), data.Decode()).x.tobytes() == pipeline.x.tobytes()
    with pytest.raises(DataError, match=r"put data\.Decode\(\) first"):
        data.Pipeline(tmp_path / "animals")


def test_an_image_that_is_damaged_is_named_when_its_turn_comes(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "dog" / "4.png").write_bytes(picture(1, (5, 4))[:40])
    pipeline = data.Pipeline(tmp_path, data.Decode(), workers=2)
    with pytest.raises(DataError, match=r"Decode of dog/4\.png: data\.Decode: expected an image"):
        list(data.Loader(pipeline, 2))
    (tmp_path / "cat" / "1.png").unlink()
    with pytest.raises(DataError, match=r"reading cat/1\.png: .*expected a file"):
        list(data.Loader(pipeline, 8))


def test_images_may_be_decoded_while_training(tmp_path: Path) -> None:
    write_images(tmp_path)
    here = data.images(tmp_path, test=0.25)
    there = data.images(tmp_path, test=0.25, in_memory=False)
    assert there.class_names == here.class_names
    assert (there.shape, len(there.train), len(there.test)) == ((3, 4, 5), 6, 2)
    np.testing.assert_array_equal(there.train.x, here.train.x)
    assert there.train.y is not None
    np.testing.assert_array_equal(there.train.y, here.train.y)
    divided = tmp_path / "divided"
    for part in ("train", "test"):
        write_images(divided / part)
    assert len(data.images(divided, in_memory=False, size=(3, 3), channels=1).test) == 8


def test_arrays_stay_in_their_files(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 4)).astype(np.uint8)
    y = np.arange(12)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "x-idx3-ubyte").write_bytes(idx(x))
    (tmp_path / "x-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
    for name in ("x.npy", "x-idx3-ubyte", "x-idx3-ubyte.gz"):
        found = data.source(tmp_path / name, tmp_path / "y.npy")
        assert len(found) == 12
        np.testing.assert_array_equal(found.raw_batch(np.array([7, 2]))[0], x[[7, 2]])
        np.testing.assert_array_equal(found.batch(np.array([7]))[0], x[[7]] / np.float32(255))
    mapped = data.source(tmp_path / "x.npy")
    assert isinstance(mapped, data.ArrayData)
    assert mapped.stored() is not None
    base = mapped.stored().arrays[0].base  # type: ignore[union-attr]
    assert isinstance(base, np.memmap)
    assert data.source(tmp_path / "x.npy", scale=None).dtype == np.uint8


@pytest.mark.parametrize("name", ["x.npy", "x-idx3-ubyte"])
def test_damaged_arrays_are_refused(tmp_path: Path, name: str) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "x-idx3-ubyte").write_bytes(idx(x))
    path = tmp_path / name
    survives_damage(path.read_bytes(), path, lambda: data.source(path).x, every=3)


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(DataError, match="expected shards, folders of images"):
        data.source(tmp_path / "text.txt")
    with pytest.raises(DataError, match="expected a file at"):
        data.source(tmp_path / "none.npy")
    with pytest.raises(DataError, match="expected images in"):
        data.source(tmp_path)
    write_images(tmp_path / "parts" / "train")
    with pytest.raises(DataError, match="pass one, such as"):
        data.source(tmp_path / "parts")
    (tmp_path / "flat.tar").write_bytes(tar({"1.png": picture(1)}, packing=""))
    with pytest.raises(DataError, match="a folder for each class"):
        data.source(tmp_path / "flat.tar")
    (tmp_path / "packed.tar.gz").write_bytes(tar({"a/1.png": picture(1)}))
    with pytest.raises(DataError, match="has no random access"):
        data.source(tmp_path / "packed.tar.gz")
    (tmp_path / "bad.tar").write_bytes(tar({"../a/1.png": picture(1)}, packing=""))
    with pytest.raises(DataError, match="plain files of a fitting size"):
        data.source(tmp_path / "bad.tar")
