"""Folders of images, one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from caldera.data.array_data import ArrayData
from caldera.data.dataset import Dataset, split
from caldera.data.decode import SUFFIXES, Labelled, Size, class_names, decode_all
from caldera.errors import ConfigError, DataError
from caldera.io.files import PathLike, file_size, opened

_LARGEST_FILE = 1 << 28
_TRAIN = ("train", "training")
_TEST = ("test", "val", "valid", "validation")


def images(
    folder: PathLike,
    *,
    size: tuple[int, int] | None = None,
    channels: int = 3,
    test: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Images from `folder/train/<class>/*` and `folder/test/<class>/*`, or from `folder/<class>/*`.

    Where there is nothing to test with, `test` says which part to set aside. All images must have
    one size, or are brought to `size` (height, width). `channels` is 3 for colours and 1 for shades
    of grey. Files that are no images by their names are left out. Needs Pillow.

    >>> import pathlib, tempfile
    >>> from PIL import Image
    >>> from caldera import data
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for number in range(10):
    ...     path = folder / ("cat" if number % 2 else "dog") / f"{number}.png"
    ...     path.parent.mkdir(exist_ok=True)
    ...     Image.new("RGB", (5, 4)).save(path)
    >>> animals = data.images(folder)
    >>> animals.class_names, animals.shape, len(animals.train), len(animals.test)
    (('cat', 'dog'), (3, 4, 5), 8, 2)
    """
    if channels not in (1, 3):
        raise ConfigError.build("data.images", expected="1 or 3 channels", got=repr(channels))
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ConfigError.build("data.images", expected="size=(height, width)", got=repr(size))
    root = Path(folder).expanduser().resolve()
    train_list, test_list = train_and_test(root, "data.images")
    classes = class_names([*train_list, *test_list])
    wanted = None if size is None else Size(*size)
    resize = wanted is not None
    x, y = decode_all(train_list, classes, channels, wanted, resize=resize, where="data.images")
    train = ArrayData(x, y)
    if test_list:
        shape = Size(*x.shape[2:])
        held_out = ArrayData(
            *decode_all(test_list, classes, channels, shape, resize=resize, where="data.images")
        )
    else:
        train, held_out = split(train, test=test, seed=seed)
    return Dataset(train, held_out, len(classes), classes, root.name)


def train_and_test(root: Path, where: str) -> tuple[list[Labelled], list[Labelled]]:
    """The images of a folder; the second list is empty if the folder is not divided."""
    if not root.is_dir():
        raise DataError.build(where, expected=f"a folder at {root}", got="none")
    train_folder = _first_folder(root, _TRAIN)
    test_folder = _first_folder(root, _TEST)
    train_list = _listed(train_folder or root, where)
    test_list = _listed(test_folder, where) if train_folder and test_folder else []
    return train_list, test_list


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _listed(folder: Path, where: str) -> list[Labelled]:
    """The images of each class, in the order of their names."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found = [
        Labelled(f"{label.name}/{path.name}", label.name, partial(_read, path, where))
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


def _read(path: Path, where: str) -> bytes:
    # Asked before opening: to open a pipe would wait for its writer.
    if not path.is_file():
        raise DataError.build(where, expected=f"a file at {path}", got="something else")
    with opened(path, "rb", where) as file:
        if file_size(file) > _LARGEST_FILE:
            raise DataError.build(
                where, expected=f"at most {_LARGEST_FILE} bytes in {path}", got=str(file_size(file))
            )
        content: bytes = file.read(_LARGEST_FILE)
        return content
