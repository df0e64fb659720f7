"""Folders of images, one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caldera.data.datasets.dataset import Dataset, split
from caldera.data.loading.pipeline import Pipeline
from caldera.data.sources.array_data import ArrayData
from caldera.data.sources.base import Data
from caldera.data.sources.encoded_images import Files, LabelledImage, class_names, images_in_folder
from caldera.data.transforms.decode import Decode, Size, check_decoding, decode_all
from caldera.errors import DataError
from caldera.io.files import PathLike

_TRAIN = ("train", "training")
_TEST = ("test", "val", "valid", "validation")


def images(
    folder: PathLike,
    *,
    size: tuple[int, int] | None = None,
    channels: int = 3,
    test: float = 0.2,
    seed: int = 0,
    in_memory: bool = True,
) -> Dataset:
    """Images from `folder/train/<class>/*` and `folder/test/<class>/*`, or from `folder/<class>/*`.

    Where there is nothing to test with, `test` says which part to set aside. All images must have
    one size, or are brought to `size` (height, width). `channels` is 3 for colours and 1 for shades
    of grey. Files that are no images by their names are left out. With `in_memory=False` they are
    read and decoded while training runs, by a `Pipeline`. Needs Pillow.

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
    check_decoding("data.images", size, channels)
    root = Path(folder).expanduser().resolve()
    train_list, test_list = train_and_test(root, "data.images")
    classes = class_names([*train_list, *test_list])
    train: Data
    if in_memory:
        wanted, resize = None if size is None else Size(*size), size is not None
        x, y = decode_all(train_list, classes, channels, wanted, resize=resize, where="data.images")
        train, shape = ArrayData(x, y), Size(*x.shape[2:])
    else:
        train = Pipeline(Files(train_list, classes), Decode(size, channels))
        shape = Size(*train.shape[1:])
    if not test_list:
        train, held_out = split(train, test=test, seed=seed)
    elif in_memory:
        held_out = ArrayData(
            *decode_all(test_list, classes, channels, shape, resize=resize, where="data.images")
        )
    else:
        held_out = Pipeline(Files(test_list, classes), Decode(size, channels))
    return Dataset(train, held_out, len(classes), classes, root.name)


def train_and_test(root: Path, where: str) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """The images of a folder; the second list is empty if the folder is not divided."""
    if not root.is_dir():
        raise DataError.build(where, expected=f"a folder at {root}", got="none")
    train_folder = _first_folder(root, _TRAIN)
    test_folder = _first_folder(root, _TEST)
    train_list = images_in_folder(train_folder or root, where)
    test_list = images_in_folder(test_folder, where) if train_folder and test_folder else []
    return train_list, test_list


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)
