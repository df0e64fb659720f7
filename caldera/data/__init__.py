"""Data sets, and how their samples reach training: stages, batches, shuffling.

`digits`, `mnist`, `cifar10`, `cifar100`, `csv`, `npz`, `images` and `arrays` each give a `Dataset`:
`train` and `test`. `source` gives samples in files of any size. A `Pipeline` sends samples through
stages, and a `Loader` makes the batches of an epoch of them. A file is never trusted: one that is
truncated, too large, damaged or hostile is refused with a `DataError`.
"""

from __future__ import annotations

from caldera.data._base import Data
from caldera.data.array_data import ArrayData
from caldera.data.as_data import as_data
from caldera.data.batch import Batch, Share
from caldera.data.cifar_files import cifar10, cifar100
from caldera.data.colour import Colour
from caldera.data.dataset import Dataset, arrays, split
from caldera.data.decode import Decode
from caldera.data.digits_set import digits
from caldera.data.draw import Draw
from caldera.data.files import Files
from caldera.data.image_files import images
from caldera.data.levels import Normalise, SubtractMean
from caldera.data.loader import Loader
from caldera.data.mnist_files import mnist
from caldera.data.paths import source
from caldera.data.pipeline import Pipeline
from caldera.data.rotation import Rotate
from caldera.data.shard_writer import write_shards
from caldera.data.shards import Shards
from caldera.data.stage import Stage, Transform
from caldera.data.stream import IterableData
from caldera.data.table_files import csv, npz
from caldera.data.targets import Mixup, OneHot
from caldera.data.windows import Crop, Cutout, Mirror

__all__ = [
    "ArrayData",
    "Batch",
    "Colour",
    "Crop",
    "Cutout",
    "Data",
    "Dataset",
    "Decode",
    "Draw",
    "Files",
    "IterableData",
    "Loader",
    "Mirror",
    "Mixup",
    "Normalise",
    "OneHot",
    "Pipeline",
    "Rotate",
    "Shards",
    "Share",
    "Stage",
    "SubtractMean",
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
    "source",
    "split",
    "write_shards",
]
