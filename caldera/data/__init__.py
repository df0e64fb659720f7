"""Data sets and the input pipeline: stages, batches and shuffling.

`digits`, `mnist`, `cifar10`, `cifar100`, `table`, `npz`, `images`, `texts`, `windows` and `arrays`
each return a `Dataset` with `train` and `test`. `source` reads samples from files of any size. A
`Pipeline` sends samples through stages, and a `Loader` makes the batches of an epoch. Files are
untrusted: a truncated, oversized, damaged or hostile file is rejected with a `DataError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caldera.base.arguments import imported_later as _imported_later
from caldera.base.foreign_names import answer_foreign as _answer_foreign

if TYPE_CHECKING:
    from caldera.data.column import Column
    from caldera.data.datasets.cifar import cifar10, cifar100
    from caldera.data.datasets.dataset import Dataset, arrays, npz
    from caldera.data.datasets.handwritten_digits import digits, mnist
    from caldera.data.datasets.image_folder import images
    from caldera.data.datasets.splits import split
    from caldera.data.datasets.tables import csv, csv_inputs, table, table_inputs
    from caldera.data.datasets.texts import texts
    from caldera.data.datasets.windows import windows
    from caldera.data.loading.batch import Batch, Share
    from caldera.data.loading.loader import Loader
    from caldera.data.loading.pipeline import Pipeline
    from caldera.data.random_draws import Draw
    from caldera.data.schema import Schema
    from caldera.data.sources.as_data import as_data, source
    from caldera.data.sources.base import Data
    from caldera.data.sources.file_formats import Files
    from caldera.data.sources.indexed_data import ArrayData, ItemData
    from caldera.data.sources.iterable_data import IterableData
    from caldera.data.sources.ragged_data import RaggedData
    from caldera.data.sources.shard_writer import write_shards
    from caldera.data.sources.shards import Shards
    from caldera.data.text.tokenizer import Tokenizer
    from caldera.data.transforms.decode import Decode
    from caldera.data.transforms.geometry import Crop, Cutout, Mirror, Rotate
    from caldera.data.transforms.intensity import Colour, Normalise, SubtractMean
    from caldera.data.transforms.stage import BatchStage as Stage
    from caldera.data.transforms.stage import Mixup, OneHot, Transform

# Imported on first use: most programs need few names.
_LATER = {
    "ArrayData": "caldera.data.sources.indexed_data",
    "Batch": "caldera.data.loading.batch",
    "Colour": "caldera.data.transforms.intensity",
    "Column": "caldera.data.column",
    "Crop": "caldera.data.transforms.geometry",
    "Cutout": "caldera.data.transforms.geometry",
    "Data": "caldera.data.sources.base",
    "Dataset": "caldera.data.datasets.dataset",
    "Decode": "caldera.data.transforms.decode",
    "Draw": "caldera.data.random_draws",
    "Files": "caldera.data.sources.file_formats",
    "ItemData": "caldera.data.sources.indexed_data",
    "IterableData": "caldera.data.sources.iterable_data",
    "Loader": "caldera.data.loading.loader",
    "Mirror": "caldera.data.transforms.geometry",
    "Mixup": "caldera.data.transforms.stage",
    "Normalise": "caldera.data.transforms.intensity",
    "OneHot": "caldera.data.transforms.stage",
    "Pipeline": "caldera.data.loading.pipeline",
    "RaggedData": "caldera.data.sources.ragged_data",
    "Rotate": "caldera.data.transforms.geometry",
    "Schema": "caldera.data.schema",
    "Shards": "caldera.data.sources.shards",
    "Share": "caldera.data.loading.batch",
    "Stage": "caldera.data.transforms.stage:BatchStage",
    "SubtractMean": "caldera.data.transforms.intensity",
    "Tokenizer": "caldera.data.text.tokenizer",
    "Transform": "caldera.data.transforms.stage",
    "arrays": "caldera.data.datasets.dataset",
    "as_data": "caldera.data.sources.as_data",
    "cifar10": "caldera.data.datasets.cifar",
    "cifar100": "caldera.data.datasets.cifar",
    "csv": "caldera.data.datasets.tables",
    "csv_inputs": "caldera.data.datasets.tables",
    "digits": "caldera.data.datasets.handwritten_digits",
    "images": "caldera.data.datasets.image_folder",
    "mnist": "caldera.data.datasets.handwritten_digits",
    "npz": "caldera.data.datasets.dataset",
    "source": "caldera.data.sources.as_data",
    "split": "caldera.data.datasets.splits",
    "table": "caldera.data.datasets.tables",
    "table_inputs": "caldera.data.datasets.tables",
    "texts": "caldera.data.datasets.texts",
    "windows": "caldera.data.datasets.windows",
    "write_shards": "caldera.data.sources.shard_writer",
}

__all__ = [
    "ArrayData",
    "Batch",
    "Colour",
    "Column",
    "Crop",
    "Cutout",
    "Data",
    "Dataset",
    "Decode",
    "Draw",
    "Files",
    "ItemData",
    "IterableData",
    "Loader",
    "Mirror",
    "Mixup",
    "Normalise",
    "OneHot",
    "Pipeline",
    "RaggedData",
    "Rotate",
    "Schema",
    "Shards",
    "Share",
    "Stage",
    "SubtractMean",
    "Tokenizer",
    "Transform",
    "arrays",
    "as_data",
    "cifar10",
    "cifar100",
    "csv",
    "csv_inputs",
    "digits",
    "images",
    "mnist",
    "npz",
    "source",
    "split",
    "table",
    "table_inputs",
    "texts",
    "windows",
    "write_shards",
]

_answer_foreign(
    globals(),
    _imported_later(
        globals(),
        _LATER,
        "Batch",
        "Draw",
        "Share",
        "write_shards",
    ),
)


def __dir__() -> list[str]:
    return sorted(__all__)
