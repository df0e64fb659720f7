"""Reading and writing files: CSV, NumPy's npy and npz, and safetensors.

Files are untrusted: the declared size is compared with the actual size before memory is allocated,
their contents are never executed, and damage is reported with the file's name.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.io.csv_files import read_csv, write_csv
from caldera.io.numpy_files import load_npy, load_npz, map_npy, save_npy, save_npz
from caldera.io.safetensors_files import (
    load_safetensors,
    load_safetensors_metadata,
    map_safetensors,
    save_safetensors,
)

__all__ = [
    "load_npy",
    "load_npz",
    "load_safetensors",
    "load_safetensors_metadata",
    "map_npy",
    "map_safetensors",
    "read_csv",
    "save_npy",
    "save_npz",
    "save_safetensors",
    "write_csv",
]

_guard(globals(), own_words=False)
_answer_foreign(globals())
