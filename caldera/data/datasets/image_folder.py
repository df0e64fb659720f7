"""Folders of images, one folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from caldera.base.arguments import require
from caldera.data.datasets.dataset import Dataset
from caldera.data.datasets.splits import split
from caldera.data.loading.pipeline import Pipeline
from caldera.data.schema import listed
from caldera.data.sources.base import Data
from caldera.data.sources.file_formats import Files, LabelledImage, class_names, images_in_folder
from caldera.data.sources.indexed_data import ArrayData
from caldera.data.transforms.decode import (
    Decode,
    Decoder,
    ImageSize,
    check_decoding,
    decode_all,
    use_images,
)
from caldera.errors import DataError
from caldera.io.files import PathLike

_TRAIN = ("train", "training")
_TEST = ("test", "val", "valid", "validation")
_WHERE = "data.images"
LARGEST_CHOSEN = 256
"""Maximum of the longer side of images if their sizes differ and no size is given."""
_MOST_LISTED = 10


def images(
    folder: PathLike,
    *,
    size: tuple[int, int] | None = None,
    channels: int = 3,
    test: float = 0.2,
    seed: int = 0,
    in_memory: bool = True,
    skip_broken: bool = False,
) -> Dataset:
    """Read images from a folder with one subfolder per class.

    The files are `folder/train/<class>/*` and `folder/test/<class>/*`, or `folder/<class>/*`.
    Without a test folder, `test` is the fraction to hold out. Images are resized to `size` (height,
    width). Without `size`, they are left unchanged if all have the same size; otherwise they are
    resized to the median height and width, at most 256, which a warning and `notes` report.
    `channels` is 3 for colours and 1 for grey. Files without an image suffix are left out; broken
    images are listed in the error, or left out with `skip_broken`. With `in_memory=False`, images
    are read and decoded during training by a `Pipeline`. Requires Pillow.

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
    check_decoding(_WHERE, size, channels)
    root = Path(folder).expanduser().resolve()
    train_list, test_list = train_and_test(root, _WHERE)
    files = [*train_list, *test_list]
    classes = class_names(files)
    broken: dict[str, str] | None = {} if skip_broken else None
    notes: list[str] = []
    wanted, resize = (ImageSize(*size), True) if size else _common_size(files, channels, notes)
    stage = Decode((wanted.height, wanted.width) if resize else None, channels)

    def samples(files: Sequence[LabelledImage]) -> Data:
        if in_memory:
            return ArrayData(
                *decode_all(
                    files, classes, channels, wanted, resize=resize, where=_WHERE, broken=broken
                )
            )
        whole = files if broken is None else _without_broken(files, channels, broken)
        return Pipeline(Files(whole, classes), stage)

    parts = [samples(each) for each in (train_list, test_list) if each]
    if broken:
        left_out = listed(list(broken), str, _MOST_LISTED)
        notes.append(f"{len(broken)} broken images left out: {left_out}")
    for note in notes:
        warnings.warn(f"{_WHERE}: {note}", stacklevel=3)
    train, held_out = parts if len(parts) == 2 else split(parts[0], test=test, seed=seed)
    return Dataset(train, held_out, len(classes), classes, root.name, notes=tuple(notes))


def _common_size(
    found: Sequence[LabelledImage], channels: int, notes: list[str]
) -> tuple[ImageSize, bool]:
    """Return the one size of all images.

    Or else one in the middle, and that they have to be resized.
    """
    decode = Decoder(channels, _WHERE)
    sizes: list[ImageSize] = []
    use_images(
        found,
        lambda _, image: sizes.append(decode.size(image.read(), image.name)),
        _WHERE,
        threads=False,
    )
    if len(set(sizes)) == 1:
        return sizes[0], False
    middle = np.median(np.array(sizes), axis=0)
    middle *= min(1.0, LARGEST_CHOSEN / middle.max())
    chosen = ImageSize(*np.maximum(middle.round().astype(int), 1).tolist())
    smallest, largest = (f"{each.height}x{each.width}" for each in (min(sizes), max(sizes)))
    notes.append(
        f"images of {len(set(sizes))} sizes, {smallest} to {largest}, are resized to "
        f"{chosen.height}x{chosen.width}; set another size with size= (--image-size)"
    )
    return chosen, True


def _without_broken(
    found: Sequence[LabelledImage], channels: int, broken: dict[str, str]
) -> list[LabelledImage]:
    """Return the images that can be decoded, by decoding each image once."""
    decode = Decoder(channels, _WHERE)

    def look(_: int, image: LabelledImage) -> None:
        decode(image.read(), ImageSize(1, 1), image.name, resize=True)

    problems = use_images(found, look, _WHERE)
    broken |= {found[number].name: str(problems[number]) for number in sorted(problems)}
    return [image for number, image in enumerate(found) if number not in problems]


def train_and_test(root: Path, where: str) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """Return the images of a folder; the second list is empty if the folder is not divided."""
    require(root.is_dir(), where, f"a folder at {root}", error=DataError)
    train, test = parts_of_folder(root)
    return images_in_folder(train, where), [] if test is None else images_in_folder(test, where)


def parts_of_folder(root: Path) -> tuple[Path, Path | None]:
    """Return the training and test folders; an undivided folder is the training folder."""
    train, test = (
        next((root / name for name in names if (root / name).is_dir()), None)
        for names in (_TRAIN, _TEST)
    )
    return (root, None) if train is None else (train, test)
