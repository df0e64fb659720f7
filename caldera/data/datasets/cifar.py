"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32x32 pixels.

They are read from the binary version or from images: a folder or tar archive with `train/<class>/*`
and `test/<class>/*`. The version for Python consists of pickles, which can run any program when
they are read, so it is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from caldera.base.arguments import require
from caldera.data.datasets.dataset import Dataset
from caldera.data.datasets.dataset_cache import (
    PublishedFile,
    cache_folder,
    cached_arrays,
    file_hash,
    missing_dataset,
    search_paths,
)
from caldera.data.datasets.dataset_cache import download as fetch
from caldera.data.datasets.image_folder import train_and_test
from caldera.data.sources.base import Array
from caldera.data.sources.file_formats import SUFFIXES, LabelledImage, archive_members, class_names
from caldera.data.sources.indexed_data import ArrayData
from caldera.data.transforms.decode import ImageSize, decode_all
from caldera.errors import DataError
from caldera.io.files import PathLike, read_bounded

MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
_CHANNELS = 3
_SIZE = ImageSize(32, 32)
_PIXELS = _CHANNELS * _SIZE.height * _SIZE.width
_LARGEST_MEMBER = 1 << 28
_LARGEST_ARCHIVE = 1 << 30
_ARCHIVE_ENDS = (".tar.xz", ".tar.gz", ".tgz", ".tar")


@dataclass(frozen=True)
class _Form:
    """Differences between the two data sets."""

    name: str
    classes: int
    label_bytes: int
    train: tuple[str, ...]
    test: tuple[str, ...]
    class_file: str
    folder: str
    archive: PublishedFile
    python: tuple[str, ...]


_CIFAR10 = _Form(
    name="cifar10",
    classes=10,
    label_bytes=1,
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    class_file="batches.meta.txt",
    folder="cifar-10-batches-bin",
    archive=PublishedFile(
        "cifar-10-binary.tar.gz",
        bytes=170_052_171,
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    python=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
)
_CIFAR100 = _Form(
    name="cifar100",
    classes=100,
    # The coarse label comes first; the fine one, next to the pixels, is used.
    label_bytes=2,
    train=("train.bin",),
    test=("test.bin",),
    class_file="fine_label_names.txt",
    folder="cifar-100-binary",
    archive=PublishedFile(
        "cifar-100-binary.tar.gz",
        bytes=168_513_733,
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    python=("cifar-100-python.tar.gz", "cifar-100-python"),
)


def cifar10(folder: PathLike | None = None, *, download: bool = True) -> Dataset:
    """Load CIFAR-10: images of shape (3, 32, 32) from 0 to 1, in ten classes.

    `folder` is an archive or a folder: the binary version (`cifar-10-binary.tar.gz` or its
    contents), or images (`train/<class>/*` and `test/<class>/*`, or `cifar10.tar.xz`). Without
    `folder`, the folder named by the environment variable `CALDERA_DATA` and the cache are
    searched, and then the data set is downloaded into the cache. The contents of an archive are
    cached, so that it is unpacked once.

    >>> from caldera import data
    >>> data.cifar10("no/such/folder")
    Traceback (most recent call last):
    caldera.errors.DataError: data.cifar10: expected cifar-10-binary.tar.gz, cifar-10-batches-bin,
    cifar10.tar.xz or train/<class>/ in no/such/folder/cifar10 or no/such/folder, ...
    """
    return _load(_CIFAR10, folder, download)


def cifar100(folder: PathLike | None = None, *, download: bool = True) -> Dataset:
    """Load CIFAR-100: images of shape (3, 32, 32) from 0 to 1, in a hundred (fine) classes.

    It is found as `cifar10` is, with `cifar-100-binary.tar.gz` as the binary version.

    >>> from caldera import data
    >>> data.cifar100("no/such/folder")
    Traceback (most recent call last):
    caldera.errors.DataError: data.cifar100: expected cifar-100-binary.tar.gz, cifar-100-binary,
    cifar100.tar.xz or train/<class>/ in no/such/folder/cifar100 or no/such/folder, ...
    """
    return _load(_CIFAR100, folder, download)


def _load(form: _Form, folder: PathLike | None, download: bool) -> Dataset:
    where = f"data.{form.name}"
    pickles = None
    for place in search_paths(folder, form.name):
        found = _in_place(form, place, where)
        if found is not None:
            return _dataset(form, found)
        pickles = pickles or next((p for n in form.python if (p := place / n).exists()), None)
    if pickles is not None:
        raise _no_pickles(form, str(pickles), where)
    if folder is not None or not download:
        files = f"{form.archive.name}, {form.folder}, {form.name}.tar.xz or train/<class>/"
        raise missing_dataset(where, folder, form.name, files, MIRRORS[0] + form.archive.name)
    archive = fetch(form.archive, MIRRORS, cache_folder() / form.name, where)
    return _dataset(form, _of_archive(form, archive, where))


def _in_place(form: _Form, place: Path, where: str) -> dict[str, Array] | None:
    """Return the arrays, if they are here in one of the known forms."""
    if place.is_file():
        return _of_archive(form, place, where)
    for inner in (place / form.folder, place):
        if all((inner / name).is_file() for name in (*form.train, *form.test)):
            return _of_records(form, _read_records(form, inner, where), where)
    for name in (form.archive.name, *(form.name + end for end in _ARCHIVE_ENDS)):
        if (place / name).is_file():
            return _of_archive(form, place / name, where)
    if (place / "train").is_dir() and (place / "test").is_dir():
        train, test = train_and_test(place, where)
        return _of_images(form, train, test, where)
    return None


def _dataset(form: _Form, arrays: dict[str, Array]) -> Dataset:
    names = tuple(arrays["class_names"].tobytes().decode().split("\n"))
    train, test = (
        ArrayData(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test")
    )
    return Dataset(train, test, form.classes, names, form.name)


def _of_archive(form: _Form, path: Path, where: str) -> dict[str, Array]:
    if path.name in form.python:
        raise _no_pickles(form, str(path), where)
    key = f"{form.name}-{file_hash(path, where)}"
    return cached_arrays(key, partial(_unpacked, form, path, f"{where} {path.name}"))


def _unpacked(form: _Form, path: Path, where: str) -> dict[str, Array]:
    records: dict[str, bytes] = {}
    pictures: dict[str, list[tuple[PurePosixPath, bytes]]] = {"train": [], "test": []}
    known = {*form.train, *form.test, form.class_file}
    for name, content in archive_members(path, _LARGEST_ARCHIVE, _LARGEST_MEMBER, where):
        if form.python[1] in name.parts:
            raise _no_pickles(form, str(name), where)
        if name.name in known:
            records[name.name] = content
        elif (
            name.suffix.lower() in SUFFIXES and len(name.parts) >= 3 and name.parts[-3] in pictures
        ):
            pictures[name.parts[-3]].append((name, content))
    if records:
        return _of_records(form, records, where)
    train, test = (
        [
            LabelledImage(str(name), name.parts[-2], partial(bytes, content))
            for name, content in sorted(pictures[part])
        ]
        for part in ("train", "test")
    )
    return _of_images(form, train, test, where)


def _read_records(form: _Form, folder: Path, where: str) -> dict[str, bytes]:
    optional = [form.class_file] if (folder / form.class_file).is_file() else []
    return {
        name: read_bounded(folder / name, _LARGEST_MEMBER, f"{where} {name}")
        for name in (*form.train, *form.test, *optional)
    }


def _of_records(form: _Form, records: dict[str, bytes], where: str) -> dict[str, Array]:
    """The binary version: for each image its label and then its pixels, channel by channel."""
    parts = {}
    for part, names in (("train", form.train), ("test", form.test)):
        whole = np.concatenate([_record_array(form, name, records, where) for name in names])
        labels = whole[:, form.label_bytes - 1]
        if labels.size and labels.max() >= form.classes:
            raise DataError.build(
                f"{where}, {part}",
                expected=f"labels from 0 to {form.classes - 1}",
                got=str(labels.max()),
            )
        parts[f"{part}_x"] = whole[:, form.label_bytes :].reshape(-1, _CHANNELS, *_SIZE)
        parts[f"{part}_y"] = labels.astype(np.int64)
    text = records.get(form.class_file, b"").decode("utf-8", "replace")
    named = tuple(line.strip() for line in text.splitlines() if line.strip())
    return _with_names(form, parts, named or tuple(map(str, range(form.classes))), where)


def _record_array(form: _Form, name: str, records: dict[str, bytes], where: str) -> Array:
    require(name in records, where, f"a file {name}", ", ".join(sorted(records)), error=DataError)
    content = records[name]
    length = form.label_bytes + _PIXELS
    if not content or len(content) % length:
        raise DataError.build(
            f"{where} {name}",
            expected=f"records of {length} bytes",
            got=f"{len(content)} bytes",
            hint="the file is truncated or damaged",
        )
    return np.frombuffer(content, np.uint8).reshape(-1, length)


def _of_images(
    form: _Form, train: list[LabelledImage], test: list[LabelledImage], where: str
) -> dict[str, Array]:
    names = class_names([*train, *test])
    require(
        train and test and len(names) == form.classes,
        where,
        f"images in {form.classes} classes, train/<class>/* and test/<class>/*",
        f"{len(train)} and {len(test)} images in {len(names)} classes",
        error=DataError,
    )
    parts: dict[str, Array] = {}
    for part, listed in (("train", train), ("test", test)):
        parts[f"{part}_x"], parts[f"{part}_y"] = decode_all(
            listed, names, _CHANNELS, _SIZE, resize=False, where=where
        )
    return _with_names(form, parts, names, where)


def _with_names(
    form: _Form, parts: dict[str, Array], names: tuple[str, ...], where: str
) -> dict[str, Array]:
    require(
        len(names) == form.classes,
        f"{where} {form.class_file}",
        f"{form.classes} names",
        len(names),
        error=DataError,
    )
    return {**parts, "class_names": np.frombuffer("\n".join(names).encode(), np.uint8)}


def _no_pickles(form: _Form, found: str, where: str) -> DataError:
    return DataError.build(
        where,
        expected=f"the binary version, {form.archive.name}",
        got=f"the version for Python, {found}",
        hint="it contains pickles, which can run any program when they are read; download "
        f"{MIRRORS[0]}{form.archive.name}",
    )
