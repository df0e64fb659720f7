"""NumPy's npy and npz files, without pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.file_access import check_asked, check_shape
from caldera.core.tensor import DType, Shape, Tensor, bfloat16, canonical, size
from caldera.core.tensor.dtype import FLOAT8
from caldera.errors import DataError, DtypeError
from caldera.io.files import (
    PathLike,
    Read,
    array_to_save,
    created,
    file_size,
    named,
    opened,
    read_array,
    read_tensor,
)

T = TypeVar("T")

# Deflate cannot shrink anything further than this.
_LARGEST_COMPRESSION = 1032
# What zipfile raises for damaged files; a RuntimeError is for members that are encrypted.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)
_LONGEST_HEADER = 10_000
"""Bytes: NumPy parses none that is longer."""
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def save_npy(path: PathLike, tensor: Tensor | NDArray[Any]) -> None:
    """Write one tensor as an npy file.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.npy"
    >>> cd.io.save_npy(path, cd.tensor([1, 2, 3]))
    >>> cd.io.load_npy(path).tolist()
    [1, 2, 3]
    """
    where = named("save_npy", path)
    array = _array(tensor, where)
    with created(path, "wb", where) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def load_npy(path: PathLike) -> Tensor:
    """Read one tensor from an npy file; see `save_npy`.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.npy"
    >>> np.save(path, np.eye(2))
    >>> cd.io.load_npy(path).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    where = named("load_npy", path)
    with opened(path, "rb", where) as file:
        return _elements(read_tensor, file, file_size(file), where)


def map_npy(path: PathLike) -> NDArray[Any]:
    """Return the array of an npy file as a memory map: only accessed parts are read.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.npy"
    >>> np.save(path, np.arange(6).reshape(3, 2))
    >>> cd.io.map_npy(path)[1].tolist()
    [2, 3]
    """
    where = named("map_npy", path)
    with opened(path, "rb", where) as file:
        shape, column_major, stored = _header(file, file_size(file), where)
        if not size(shape):
            return np.zeros(shape, stored)
        order: Literal["C", "F"] = "F" if column_major else "C"
        mapped = np.memmap(file, stored, "r", file.tell(), shape, order)
    return mapped.view(np.ndarray)


def save_npz(path: PathLike, tensors: Mapping[str, Tensor | NDArray[Any]]) -> None:
    """Write several tensors by name into one npz file, uncompressed.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.npz"
    >>> cd.io.save_npz(path, {"a": cd.tensor([1]), "b": cd.tensor([2.5])})
    >>> {name: t.tolist() for name, t in cd.io.load_npz(path).items()}
    {'a': [1], 'b': [2.5]}
    """
    where = named("save_npz", path)
    arrays = {name: _array(tensor, f"{where}, {name!r}") for name, tensor in tensors.items()}
    with created(path, "wb", where) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load_npz(path: PathLike) -> dict[str, Tensor]:
    """Read the tensors of an npz file, by name; see `save_npz`.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.npz"
    >>> np.savez_compressed(path, a=np.arange(3))
    >>> cd.io.load_npz(path)["a"].tolist()
    [0, 1, 2]
    """
    return _members(path, read_tensor)


def npz_arrays(path: PathLike) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file into NumPy arrays, by name.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.npz"
    >>> np.savez(path, a=np.arange(3))
    >>> npz_arrays(path)
    {'a': array([0, 1, 2])}
    """
    return _members(path, read_array)


def _members(path: PathLike, read: Read[T]) -> dict[str, T]:
    where = named("load_npz", path)
    with opened(path, "rb", where) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                _check_members(members, file_size(file), where)
                found = {}
                for member in members:
                    name = member.filename.removesuffix(".npy")
                    with archive.open(member) as content:
                        found[name] = _elements(
                            read, content, member.file_size, f"{where}, {name!r}"
                        )
                        # The checksum is compared when the end is met.
                        content.read(1)
                return found
        except DataError:
            raise
        except _DAMAGE as error:
            raise DataError.build(
                where, expected="an npz file", got=str(error), hint="the file may be truncated"
            ) from None


def _array(tensor: Tensor | NDArray[Any], where: str) -> NDArray[Any]:
    array = array_to_save(tensor, where)
    require(
        array.dtype != bfloat16 and array.dtype not in FLOAT8,
        where,
        "a dtype that npy files know",
        array.dtype.name,
        hint="save it as safetensors, or astype('float32') first",
        error=DtypeError,
    )
    return array


def _elements(read: Read[T], file: IO[bytes], total: int, where: str) -> T:
    """Read one npy file of `total` bytes, as a tensor or an array."""
    shape, column_major, stored = _header(file, total, where)
    found: Any = read(file, shape[::-1] if column_major else shape, canonical(stored), where)
    if not stored.isnative:
        elements = found.host_array(write=True) if isinstance(found, Tensor) else found
        elements.byteswap(inplace=True)
    return found.T.copy() if column_major else found


def _header(file: IO[bytes], total: int, where: str) -> tuple[Shape, bool, DType]:
    """Shape, whether the first axis is the dense one, and dtype, in a file of `total` bytes."""
    readers = {
        (1, 0): (2, np.lib.format.read_array_header_1_0),
        (2, 0): (4, np.lib.format.read_array_header_2_0),
    }
    try:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise ValueError(f"version {version}")
        width, reader = readers[version]
        stated = file.read(width)
        length = int.from_bytes(stated, "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"a header of {length} bytes")
        shape, column_major, dtype = reader(BytesIO(stated + file.read(length)))
    except Exception as error:
        # NumPy's parser has a different exception for every kind of damage.
        raise DataError.build(
            where, expected="the header of an npy file", got=repr(str(error))[:100]
        ) from None
    require(not any(length < 0 for length in shape), where, "sizes >= 0", shape, error=DataError)
    try:
        canonical(dtype)
    except DtypeError:
        raise DataError.build(
            where,
            expected="numbers of a dtype that Caldera has",
            got=f"dtype {dtype}",
            hint="objects, records and dates are not read",
        ) from None
    wanted, left = size(shape) * dtype.itemsize, total - file.tell()
    require(
        wanted == left,
        where,
        f"{wanted} bytes of elements for shape {shape} and {dtype}",
        f"{left} in the file",
        hint="the file is truncated or damaged",
        error=DataError,
    )
    check_shape(shape, where)
    return shape, column_major, dtype


def _check_members(members: list[zipfile.ZipInfo], total: int, where: str) -> None:
    """Refuse what no npz file has, before anything is unpacked."""
    names = [member.filename for member in members]
    require(
        len(set(names)) == len(names),
        where,
        "each name once",
        ", ".join(sorted(names)),
        error=DataError,
    )
    for member in members:
        require(
            member.filename.endswith(".npy") and member.compress_type in _COMPRESSIONS,
            where,
            "npy files inside",
            repr(member.filename),
            error=DataError,
        )
    unpacked = sum(member.file_size for member in members)
    require(
        unpacked <= _LARGEST_COMPRESSION * total,
        where,
        f"contents that fit into a file of {total} bytes",
        f"{unpacked} bytes",
        hint="the file is damaged or hostile",
        error=DataError,
    )
    check_asked(unpacked, where, held=total)
