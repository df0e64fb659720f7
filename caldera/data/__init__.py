"""Data sets, and how their samples reach training: batches, shuffling, transforms.

`digits`, `mnist`, `cifar10`, `cifar100`, `csv`, `npz`, `images` and `arrays` each give a `Dataset`:
`train` and `test`, from which a `Loader` makes batches. A file is never trusted: one that is
truncated, too large, damaged or hostile is refused with a `DataError`.
"""

from __future__ import annotations

from caldera.data._base import Data
from caldera.data.array_data import ArrayData
from caldera.data.cifar_files import cifar10, cifar100
from caldera.data.dataset import Dataset, arrays, as_data, split
from caldera.data.digits_set import digits
from caldera.data.draw import Draw
from caldera.data.image_files import images
from caldera.data.loader import Batch, Loader, Share
from caldera.data.mnist_files import mnist
from caldera.data.stream import IterableData
from caldera.data.table_files import csv, npz
from caldera.data.transform import Compose, Crop, Cutout, Mirror, Normalise, Transform

__all__ = [
    "ArrayData",
    "Batch",
    "Compose",
    "Crop",
    "Cutout",
    "Data",
    "Dataset",
    "Draw",
    "IterableData",
    "Loader",
    "Mirror",
    "Normalise",
    "Share",
    "Transform",
    "arrays",
    "as_data",
    "cifar10",
    "cifar100",
    "csv",
    "digits",
    "images",
    "mnist",
    "npz",
    "split",
]
