"""Images in files, read when they are asked for: folders and tar archives."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from caldera.data.sources.base import SCALE, Array, Arrays, Data
from caldera.data.sources.file_formats import checked_name
from caldera.errors import DataError
from caldera.io.files import opened, read_bounded

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
LARGEST_FILE = 1 << 28


class LabelledImage(NamedTuple):
    """An image that is not read yet, and its class."""

    name: str
    label: str
    read: Callable[[], bytes]


def class_names(images: Sequence[LabelledImage]) -> tuple[str, ...]:
    """The classes of images; their order gives the class numbers.

    >>> class_names([LabelledImage("1.png", "dog", bytes), LabelledImage("2.png", "cat", bytes)])
    ('cat', 'dog')
    """
    return tuple(sorted({image.label for image in images}))


class Files(Data):
    """Encoded images and the numbers of their classes; `Decode` makes arrays of them.

    `data.source` makes it of a folder or a tar archive. Nothing is read before it is asked for.

    >>> from caldera.data.sources.encoded_images import Files, LabelledImage
    >>> files = Files([LabelledImage("a/1.png", "a", bytes), LabelledImage("b/1.png", "b", bytes)])
    >>> files.class_names, files.y.tolist(), files.name_of(1)
    (('a', 'b'), [0, 1], 'b/1.png')
    """

    scale = SCALE
    shape = ()
    dtype = np.dtype(object)

    def __init__(
        self, images: Sequence[LabelledImage], classes: Sequence[str] | None = None
    ) -> None:
        self._images = images
        self.class_names = class_names(images) if classes is None else tuple(classes)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        self._labels = np.array([numbers[image.label] for image in images], np.int64)

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        encoded = np.empty(len(indices), object)
        for place, index in enumerate(indices):
            encoded[place] = self._images[index].read()
        return encoded, self._labels[indices]

    @property
    def y(self) -> Array:
        return self._labels

    def name_of(self, index: int) -> str:
        return self._images[index].name

    def __repr__(self) -> str:
        return f"Files({len(self)} images of {len(self.class_names)} classes)"


def images_in_folder(folder: Path, where: str) -> list[LabelledImage]:
    """The images of a folder that has one folder for each class, in the order of their names."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found = [
        LabelledImage(
            f"{label.name}/{path.name}",
            label.name,
            partial(read_bounded, path, LARGEST_FILE, where),
        )
        for label in classes
        if not label.name.startswith(".")
        for path in sorted(label.iterdir())
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
    if not found:
        raise DataError.build(
            where,
            expected=f"images in {folder}/<class>/",
            got="none",
            hint="make one folder for each class; known names end in "
            + ", ".join(sorted(SUFFIXES)),
        )
    return found


def images_in_archive(path: Path, where: str) -> list[LabelledImage]:
    """The images of a tar archive that is not compressed; its folders are the classes.

    The archive is read once from end to end for the places of its files, and stays open.
    """
    found = []
    # Closed when the last of its images is forgotten.
    file = _Opened(path, where)
    try:
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                name = checked_name(info, LARGEST_FILE, where)
                if name.suffix.lower() not in SUFFIXES or name.name.startswith("."):
                    continue
                if not name.parent.name:
                    raise DataError.build(
                        where, expected="a folder for each class in the archive", got=str(name)
                    )
                read = partial(file.read, info.offset_data, info.size, str(name))
                found.append(LabelledImage(str(name), name.parent.name, read))
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise DataError.build(
            where,
            expected=f"a tar archive at {path}",
            got=str(error),
            hint="one that is compressed cannot be read by places: unpack it, or write shards",
        ) from None
    if not found:
        raise DataError.build(where, expected=f"images in {path}", got="none")
    return found


class _Opened:
    """A file from which several threads may read."""

    def __init__(self, path: Path, where: str) -> None:
        self._where = where
        with opened(path, "rb", where) as file:
            self._number = os.dup(file.fileno())

    def read(self, start: int, size: int, name: str) -> bytes:
        content = os.pread(self._number, size, start)
        if len(content) != size:
            raise DataError.build(
                f"{self._where} {name}",
                expected=f"{size} bytes",
                got=str(len(content)),
                hint="the archive is truncated",
            )
        return content

    def __del__(self) -> None:
        # Not there if the file could not be opened.
        if "_number" in self.__dict__:
            os.close(self._number)
