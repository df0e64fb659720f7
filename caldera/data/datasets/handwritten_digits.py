"""Handwritten digits: scikit-learn's 8x8 digits, and MNIST's 70,000 images of 28x28 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.data.datasets.dataset import Dataset, arrays
from caldera.data.datasets.dataset_cache import (
    PublishedFile,
    cache_folder,
    missing_dataset,
    search_paths,
)
from caldera.data.datasets.dataset_cache import download as fetch
from caldera.data.sources.file_formats import read_idx
from caldera.data.sources.indexed_data import ArrayData
from caldera.errors import DataError
from caldera.io.files import PathLike

_FILE = Path(__file__).parent / "files" / "digits.npz"
"""The authors and the licence of the digits are stated in the same folder."""
_BRIGHTEST = 16


def digits(*, test: float = 0.2, seed: int = 0) -> Dataset:
    """Load 1797 handwritten digits of shape (1, 8, 8), from 0 to 1.

    >>> from caldera import data
    >>> digits = data.digits()
    >>> digits.shape, digits.classes, float(digits.train.x.max())
    ((1, 8, 8), 10, 1.0)
    """
    with np.load(_FILE, allow_pickle=False) as found:
        x = found["images"][:, None] / _BRIGHTEST
        y = found["target"].astype(np.int64)
    return arrays(x, y, test=test, seed=seed, name="digits")


MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
FILES = {
    "train-images": PublishedFile(
        "train-images-idx3-ubyte.gz",
        bytes=9_912_422,
        sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels": PublishedFile(
        "train-labels-idx1-ubyte.gz",
        bytes=28_881,
        sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images": PublishedFile(
        "t10k-images-idx3-ubyte.gz",
        bytes=1_648_877,
        sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels": PublishedFile(
        "t10k-labels-idx1-ubyte.gz",
        bytes=4_542,
        sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
_CLASSES = 10


def mnist(folder: PathLike | None = None, *, download: bool = True) -> Dataset:
    """Load MNIST: images of shape (1, 28, 28) from 0 to 1, from its four IDX files.

    The files may be gzipped. They are read from `folder`. Without `folder`, the folder named by the
    environment variable `CALDERA_DATA` and the cache are searched, and then the files are
    downloaded into the cache.

    >>> from caldera import data
    >>> data.mnist("no/such/folder")
    Traceback (most recent call last):
    caldera.errors.DataError: data.mnist: expected train-images-idx3-ubyte.gz and three more in
    no/such/folder/mnist or no/such/folder, got none; ...
    """
    # torchvision stores the files in a subfolder.
    inner = ("", "raw", "MNIST/raw")
    folders = (place / each for place in search_paths(folder, "mnist") for each in inner)
    found = next(filter(None, map(_in_folder, folders)), None)
    if found is None:
        if folder is not None or not download:
            first = FILES["train-images"].name
            raise missing_dataset(
                "data.mnist", folder, "mnist", f"{first} and three more", MIRRORS[0]
            )
        target = cache_folder() / "mnist"
        found = {
            key: fetch(published, MIRRORS, target, "data.mnist") for key, published in FILES.items()
        }
    names = tuple(str(digit) for digit in range(_CLASSES))
    train = _samples(found["train-images"], found["train-labels"])
    test = _samples(found["t10k-images"], found["t10k-labels"])
    return Dataset(train, test, _CLASSES, names, "mnist")


def _in_folder(folder: Path) -> dict[str, Path] | None:
    """Return the four files if this folder has all of them."""
    found = {}
    for key, published in FILES.items():
        packed = published.name
        plain = packed.removesuffix(".gz")
        candidates = [folder / packed, folder / plain, folder / plain.replace("-idx", ".idx")]
        present = [path for path in candidates if path.is_file()]
        if not present:
            return None
        found[key] = present[0]
    return found


def _samples(images: Path, labels: Path) -> ArrayData:
    x: NDArray[np.uint8] = read_idx(images, axes=3)
    y = read_idx(labels, axes=1)
    require(
        len(x) == len(y),
        "data.mnist",
        f"{len(x)} labels, one for each image in {images.name}",
        f"{len(y)} in {labels.name}",
        error=DataError,
    )
    if y.size and y.max() >= _CLASSES:
        raise DataError.build(
            f"data.mnist {labels.name}", expected="labels from 0 to 9", got=str(y.max())
        )
    return ArrayData(x[:, None], y.astype(np.int64))
