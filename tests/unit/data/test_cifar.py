"""CIFAR in all its forms, except the one that could run programs."""

from __future__ import annotations

import hashlib
import tarfile
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import data
from caldera.errors import DataError
from tests.object_cache import CACHE, cached_file
from tests.unit.data.files import picture, survives_damage, tar
from tests.unit.data.real import FOLDER, needs

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def records(labels: list[int], coarse: bool = False) -> bytes:
    """The binary form: image number n has the pixels n, n + 1, ..."""
    parts = []
    for number, label in enumerate(labels):
        pixels = (np.arange(3072) + number) % 256
        parts.append(bytes([7] * coarse + [label]) + pixels.astype(np.uint8).tobytes())
    return b"".join(parts)


def binary10() -> dict[str, bytes]:
    files = {f"data_batch_{n}.bin": records([n, n + 1]) for n in range(1, 6)}
    return {**files, "test_batch.bin": records([9]), "batches.meta.txt": "\n".join(NAMES).encode()}


def binary100() -> dict[str, bytes]:
    names = "\n".join(f"class {number:02}" for number in range(100)).encode()
    files = {"train.bin": records([0, 99], coarse=True), "test.bin": records([50], coarse=True)}
    return {**files, "fine_label_names.txt": names + b"\n"}


def pictures() -> dict[str, bytes]:
    """Two images a class to train and one to test; the shade tells which."""
    found = {}
    for number, name in enumerate(NAMES):
        found[f"train/{name}/0000.png"] = picture(10 * number)
        found[f"train/{name}/0001.png"] = picture(10 * number + 1)
        found[f"test/{name}/0000.png"] = picture(10 * number + 2)
    return found


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def check_binary(found: data.Dataset) -> None:
    assert found.shape == (3, 32, 32)
    assert found.class_names == tuple(NAMES)
    assert found.train.y is not None
    assert found.train.y.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    x = found.train.raw_batch(np.array([1]))[0][0]
    np.testing.assert_array_equal(x.reshape(-1), (np.arange(3072) + 1) % 256)
    assert found.test.y is not None
    assert found.test.y.tolist() == [9]


def check_pictures(found: data.Dataset) -> None:
    assert found.shape == (3, 32, 32)
    assert found.class_names == tuple(NAMES)
    assert found.train.y is not None
    assert found.train.y.tolist() == [number // 2 for number in range(20)]
    shades = found.train.raw_batch(np.arange(20))[0][:, 2, 31, 31]
    assert shades.tolist() == [10 * (n // 2) + n % 2 for n in range(20)]
    assert found.test.raw_batch(np.arange(10))[0][:, 0, 0, 0].tolist() == list(range(2, 102, 10))


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_the_binary_files(tmp_path: Path, inside: str) -> None:
    write(tmp_path / inside, binary10())
    check_binary(data.cifar10(tmp_path))


def test_the_binary_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    files = {f"cifar-10-batches-bin/{name}": content for name, content in binary10().items()}
    archive.write_bytes(tar({**files, "cifar-10-batches-bin/readme.html": b"about"}))
    check_binary(data.cifar10(tmp_path))
    check_binary(data.cifar10(archive))
    monkeypatch.setenv("CALDERA_DATA", str(tmp_path))
    check_binary(data.cifar10())


def test_cifar100(tmp_path: Path) -> None:
    write(tmp_path / "files" / "cifar-100-binary", binary100())
    archive = tmp_path / "cifar-100-binary.tar.gz"
    archive.write_bytes(tar({f"cifar-100-binary/{n}": c for n, c in binary100().items()}))
    for place in (tmp_path / "files", tmp_path, archive):
        found = data.cifar100(place)
        assert found.classes == 100
        assert found.class_names[42] == "class 42"
        assert found.train.y is not None
        assert found.train.y.tolist() == [0, 99], "the fine label, not the coarse one"
        x = found.train.raw_batch(np.array([1]))[0][0]
        np.testing.assert_array_equal(x.reshape(-1), (np.arange(3072) + 1) % 256)


def test_a_folder_of_images(tmp_path: Path) -> None:
    write(tmp_path / "cifar10", pictures())
    check_pictures(data.cifar10(tmp_path))
    check_pictures(data.cifar10(tmp_path / "cifar10"))


@pytest.mark.parametrize("packing", ["xz", "gz", ""])
@pytest.mark.parametrize("top", ["", "CIFAR-10-images/"])
def test_an_archive_of_images(tmp_path: Path, packing: str, top: str) -> None:
    files = {top + name: content for name, content in reversed(pictures().items())}
    (tmp_path / f"cifar10.tar{'.' + packing if packing else ''}").write_bytes(tar(files, packing))
    check_pictures(data.cifar10(tmp_path))


def test_an_archive_is_unpacked_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "cifar10.tar.xz"
    archive.write_bytes(tar(pictures(), "xz"))
    check_pictures(data.cifar10(archive))
    with monkeypatch.context() as no_unpacking:
        no_unpacking.setattr("caldera.data.datasets.cifar.archive_members", None)
        check_pictures(data.cifar10(archive))
    (kept,) = (cache / "data").iterdir()
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(bytes(content))
    check_pictures(data.cifar10(archive))
    # Another archive of the same name has another key.
    changed = {**pictures(), "train/cat/0000.png": picture(255)}
    archive.write_bytes(tar(changed, "xz"))
    assert data.cifar10(archive).train.x.max() == 1


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, cache: Path) -> None:
    (cache / "data").write_bytes(b"a file in the way")
    archive = tmp_path / "cifar10.tar.gz"
    archive.write_bytes(tar(pictures()))
    check_pictures(data.cifar10(archive))


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_the_version_for_python_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: b"pickle"})
    with pytest.raises(DataError, match="pickles, which can run any program"):
        data.cifar10(tmp_path)
    if name.endswith(".gz"):
        with pytest.raises(DataError, match="pickles, which can run any program"):
            data.cifar10(tmp_path / name)


def test_the_version_for_python_is_refused_under_another_name(tmp_path: Path) -> None:
    archive = tmp_path / "renamed.tar.gz"
    archive.write_bytes(tar({"cifar-10-batches-py/data_batch_1": b"pickle"}))
    with pytest.raises(DataError, match="pickles"):
        data.cifar10(archive)


def without(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {each: content for each, content in files.items() if each != name}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({**binary10(), "test_batch.bin": records([10])}, "labels from 0 to 9, got 10"),
        ({**binary10(), "test_batch.bin": records([1])[:-1]}, "records of 3073 bytes, got 3072"),
        ({**binary10(), "test_batch.bin": b""}, "records of 3073 bytes, got 0"),
        ({**binary10(), "batches.meta.txt": b"cat\ndog"}, "10 names, got 2"),
        (without(binary10(), "data_batch_3.bin"), "a file data_batch_3.bin"),
        (without(pictures(), "x"), ""),
        ({"train/cat/1.png": picture(1), "test/cat/1.png": picture(1)}, "1 classes"),
        ({**pictures(), "train/cat/2.png": picture(1, (32, 31))}, "image of 32x32, got 31x32"),
        ({**pictures(), "train/cat/2.png": picture(1)[:40]}, "2.png: expected an image"),
        ({"nothing": b"known"}, "0 and 0 images"),
        ({**pictures(), "../../train/cat/2.png": picture(1)}, "the path"),
    ],
)
def test_wrong_archives_are_refused(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    archive = tmp_path / "cifar10.tar.gz"
    archive.write_bytes(tar(files))
    if not message:
        check_pictures(data.cifar10(archive))
        return
    with pytest.raises(DataError, match=message):
        data.cifar10(archive)


def test_damaged_files_are_survived(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    write(folder, binary10())
    survives_damage(
        records([1]), folder / "test_batch.bin", lambda: data.cifar10(folder), every=400
    )
    archive = tmp_path / "cifar10.tar.gz"
    content = tar(pictures())
    survives_damage(content, archive, lambda: data.cifar10(archive), every=len(content) // 12)


def test_cifar_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz, cifar-10-batches-bin"):
        data.cifar10(download=False)
    with pytest.raises(DataError, match=r"cifar-100-binary\.tar\.gz"):
        data.cifar100(tmp_path)


EVERY = 25
"""One in so many of the 60,000 files: to decode all takes a third of a minute."""


def _write_some_of(archive: Path, part: Path) -> None:
    files = Counter[str]()
    with tarfile.open(archive) as given, tarfile.open(part, "w") as some:
        for member in given:
            if member.isfile():
                folder = str(Path(member.name).parent)
                if files[folder] % EVERY == 0:
                    some.addfile(member, given.extractfile(member))
                files[folder] += 1
    assert sorted(files.values()) == [1000] * 10 + [5000] * 10


@needs("cifar10.tar.xz")
def test_the_real_cifar10(tmp_path: Path) -> None:
    archive = FOLDER / "cifar10.tar.xz"
    # To unpack it takes seconds, and is not what is tested.
    digest = hashlib.blake2b(archive.read_bytes(), digest_size=20).hexdigest()
    kept = CACHE / "cifar10" / f"{digest}-{EVERY}.tar"
    kept.parent.mkdir(parents=True, exist_ok=True)
    cached_file(kept, partial(_write_some_of, archive))
    (tmp_path / "cifar10.tar").symlink_to(kept.resolve())
    with cd.settings.override(cache_dir=tmp_path):
        found = data.cifar10(tmp_path)
    assert (len(found.train), len(found.test), found.shape) == (2000, 400, (3, 32, 32))
    assert found.class_names == tuple(NAMES)
    assert found.train.y is not None
    assert np.bincount(found.train.y).tolist() == [200] * 10
    assert found.test.y is not None
    assert np.bincount(found.test.y).tolist() == [40] * 10
    # The published statistics; the images have been through JPEG, and are a few of them.
    normalise = data.Normalise.of(found.train)
    np.testing.assert_allclose(normalise.mean, [0.4914, 0.4822, 0.4465], atol=1e-2)
    np.testing.assert_allclose(normalise.std, [0.2470, 0.2435, 0.2616], atol=1e-2)
