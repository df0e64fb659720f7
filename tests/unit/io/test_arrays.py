"""Files read as arrays of the host, and as tensors: the same either way."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera.errors import DataError
from caldera.io.numpy_files import npz_arrays
from caldera.io.safetensors_files import safetensors_arrays

ARRAYS = {
    "rows": np.arange(6, dtype="float32").reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "other bytes": np.arange(4, dtype=">i2"),
    "truth": np.array([True, False]),
    "nothing": np.zeros((0, 3), "int64"),
    "one": np.array(5, "uint8"),
}


def _compare(arrays: dict[str, np.ndarray], tensors: dict[str, cd.Tensor]) -> None:
    assert arrays.keys() == tensors.keys()
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (tensors[name].dtype, tensors[name].shape)
        assert array.dtype.isnative
        assert array.flags.c_contiguous
        assert array.flags.writeable
        np.testing.assert_array_equal(array, tensors[name].numpy())


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    _compare(npz_arrays(tmp_path / "a.npz"), cd.io.load_npz(tmp_path / "a.npz"))


def test_a_single_number_that_is_said_to_lie_by_columns(tmp_path: Path) -> None:
    content = BytesIO()
    header = {"descr": "<f8", "fortran_order": True, "shape": ()}
    np.lib.format.write_array_header_1_0(content, header)
    content.write(np.array(2.5).tobytes())
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue())
    found = npz_arrays(tmp_path / "a.npz")
    assert found["x"].shape == ()
    _compare(found, cd.io.load_npz(tmp_path / "a.npz"))


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {name: cd.tensor(array) for name, array in ARRAYS.items()}
    cd.io.save_safetensors(path, {**tensors, "half": cd.tensor([1.5], dtype="bfloat16")})
    _compare(safetensors_arrays(path), cd.io.load_safetensors(path))


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_what_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("npz"):
        np.savez(path, **ARRAYS)
    else:
        cd.io.save_safetensors(path, {"x": cd.tensor(ARRAYS["rows"])})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\."):
        (npz_arrays if name.endswith("npz") else safetensors_arrays)(path)
