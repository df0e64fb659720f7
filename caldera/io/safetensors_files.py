"""safetensors files: named tensors after a JSON header, with text metadata.

The layout: eight bytes with the length of the header, the header, then the elements of all tensors
without gaps. The header maps names to dtype, shape and the range of bytes. All numbers are
little-endian on every machine. The safetensors package is not used, so that elements are read
directly into a tensor's memory and written from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.file_access import check_shape
from caldera.base.plain_data import unique_keys
from caldera.core.tensor import Shape, Tensor, size
from caldera.core.tensor import dtype as dtypes
from caldera.core.tensor.dtype import little_endian
from caldera.errors import DataError, DtypeError
from caldera.io.files import (
    PathLike,
    Read,
    Source,
    array_to_save,
    bytes_of,
    created,
    file_size,
    named,
    opened,
    read_array,
    read_tensor,
)

T = TypeVar("T")

_DTYPES: dict[str, dtypes.DType] = {
    "BOOL": dtypes.bool_,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
    "C64": dtypes.complex64,
    "F8_E4M3": dtypes.canonical("float8_e4m3fn", stored=True),
    "F8_E5M2": dtypes.canonical("float8_e5m2", stored=True),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH_BYTES = 8
_ALIGNMENT = 8
_LONGEST_HEADER = 100_000_000
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


class _Entry(NamedTuple):
    """Header entry of a tensor; the range is relative to the end of the header."""

    dtype: dtypes.DType
    shape: Shape
    begin: int
    end: int


class _Header(NamedTuple):
    metadata: dict[str, str]
    entries: dict[str, _Entry]
    data_start: int


def save_safetensors(
    path: Source,
    tensors: Mapping[str, Tensor | NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors by name, and texts by name, into one file. `path` may be an open file.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.safetensors"
    >>> cd.io.save_safetensors(path, {"w": cd.tensor([1.5, 2])}, metadata={"epoch": "3"})
    >>> cd.io.load_safetensors(path)["w"].tolist()
    [1.5, 2.0]
    """
    where = named("save_safetensors", path)
    _check_texts(where, tensors, metadata or {})
    arrays = {name: array_to_save(tensor, f"{where}, {name!r}") for name, tensor in tensors.items()}
    for name, array in arrays.items():
        require(
            array.dtype in _CODES,
            f"{where}, {name!r}",
            "a dtype that safetensors files know",
            array.dtype,
            hint="save_npz has it; or take its real and imaginary part",
            error=DtypeError,
        )
    # Sorted by decreasing element size, so that all tensors are aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with created(path, "wb", where) as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
        file.write(text)
        for name in order:
            file.write(bytes_of(little_endian(arrays[name])))


def load_safetensors(path: Source) -> dict[str, Tensor]:
    """Return the tensors of a file, by name. `path` may be a file that is open.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.safetensors"
    >>> cd.io.save_safetensors(path, {"w": cd.tensor([1.5], dtype="bfloat16")})
    >>> cd.io.load_safetensors(path)["w"]
    Tensor([1.5], shape=(1,), dtype=bfloat16, kind=MANAGED, device=cpu)
    """
    return _entries(path, read_tensor)


def safetensors_arrays(path: Source) -> dict[str, NDArray[Any]]:
    """Read the arrays of a safetensors file into NumPy arrays, by name.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.safetensors"
    >>> cd.io.save_safetensors(path, {"w": cd.tensor([1.5, 2, 3])})
    >>> safetensors_arrays(path)["w"].tolist()
    [1.5, 2.0, 3.0]
    """
    return _entries(path, read_array)


def _entries(path: Source, read: Read[T]) -> dict[str, T]:
    where = named("load_safetensors", path)
    with opened(path, "rb", where) as file:
        header = _read_header(file, where)
        found: dict[str, Any] = {}
        for name, entry in header.entries.items():
            file.seek(header.data_start + entry.begin)
            found[name] = read(file, entry.shape, entry.dtype, f"{where}, {name!r}")
            if sys.byteorder == "big":
                given = found[name]
                elements = given.host_array(write=True) if isinstance(given, Tensor) else given
                elements[...] = little_endian(elements)
        return found


def map_safetensors(path: PathLike) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file as memory maps: only accessed parts are read.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.safetensors"
    >>> cd.io.save_safetensors(path, {"w": cd.tensor([1.5, 2, 3])})
    >>> cd.io.map_safetensors(path)["w"][1:].tolist()
    [2.0, 3.0]
    """
    where = named("map_safetensors", path)
    with opened(path, "rb", where) as file:
        header = _read_header(file, where)
        arrays: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape, begin, _) in header.entries.items():
            if not size(shape):
                arrays[name] = np.zeros(shape, dtype)
                continue
            stored = dtype.newbyteorder("<") if sys.byteorder == "big" else dtype
            start = header.data_start + begin
            arrays[name] = np.memmap(file, stored, "r", start, shape).view(np.ndarray)
        return arrays


def load_safetensors_metadata(path: Source) -> dict[str, str]:
    """Return the texts of a file, by name; no tensor is read.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "t.safetensors"
    >>> cd.io.save_safetensors(path, {}, metadata={"epoch": "3"})
    >>> cd.io.load_safetensors_metadata(path)
    {'epoch': '3'}
    """
    where = named("load_safetensors_metadata", path)
    with opened(path, "rb", where) as file:
        return _read_header(file, where).metadata


def _check_texts(where: str, tensors: Mapping[str, object], metadata: Mapping[str, str]) -> None:
    for text in [*tensors, *metadata, *metadata.values()]:
        require(isinstance(text, str), where, "names and metadata of type str", repr(text))
    require(_METADATA not in tensors, where, "names of tensors", f"{_METADATA}, reserved")


def _read_header(file: IO[bytes], where: str) -> _Header:
    """Return the header, with every statement in it compared with the size of the file."""
    total = file_size(file)
    _refuse_pickle(file, where)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    require(
        total >= _LENGTH_BYTES and 0 < length <= min(total - _LENGTH_BYTES, _LONGEST_HEADER),
        where,
        "a header that fits into the file",
        f"length {length} in a file of {total} bytes",
        hint="the file is truncated, or is no safetensors file",
        error=DataError,
    )
    try:
        raw = json.loads(file.read(length), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise DataError.build(where, expected="a JSON header", got=str(error)) from None
    require(
        isinstance(raw, dict), where, "a JSON object as header", type(raw).__name__, error=DataError
    )
    metadata = raw.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise DataError.build(where, expected="metadata of type str", got=repr(metadata))
    entries = {name: _entry(raw[name], f"{where}, {name!r}") for name in raw}
    _check_ranges(entries, total - _LENGTH_BYTES - length, where)
    return _Header(metadata, entries, _LENGTH_BYTES + length)


def _refuse_pickle(file: IO[bytes], where: str) -> None:
    """Say how to convert a file of `torch.save`, which is a pickle, or a zip archive with one."""
    start = file.read(_LENGTH_BYTES + 1)
    file.seek(0)
    # The length of a header may have the bytes that a pickle begins with; a header begins with {.
    is_pickle = start[:2] in _PICKLES and start[_LENGTH_BYTES:] != b"{"
    if start.startswith(_ZIP_MAGIC) or is_pickle:
        name = str(getattr(file, "name", "weights.pth"))
        refuse_exported_program(name, where)
        raise DataError.build(
            where,
            expected="a safetensors file",
            got="one of torch.save, which is a pickle",
            hint="a pickle may run any program, so it is not read here; convert it with PyTorch:\n"
            "  import torch; from safetensors.torch import save_file\n"
            "  save_file({k: v.clone().contiguous() for k, v in "
            f"torch.load({name!r}, map_location='cpu', weights_only=True).items()}}, "
            f"{str(Path(name).with_suffix('.safetensors'))!r})",
        )


def refuse_exported_program(name: str, where: str) -> None:
    """Say how to convert a file of `torch.export.save`, by its name."""
    if not name.endswith(".pt2"):
        return
    path = str(Path(name).with_suffix(".onnx"))
    raise DataError.build(
        where,
        expected="a model file of Caldera or ONNX",
        got="one of torch.export.save",
        hint="convert it with PyTorch and onnxscript, then call "
        f"caldera.onnx.load({path!r}):\n"
        f"  import torch; torch.onnx.export(torch.export.load({name!r}), f={path!r}, dynamo=True)",
    )


def _entry(raw: Any, where: str) -> _Entry:
    """Return the checked header entry of a tensor."""
    fields = raw if isinstance(raw, dict) else {}
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if set(fields) != {"dtype", "shape", "data_offsets"} or not (
        _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2
    ):
        raise DataError.build(
            where,
            expected="dtype, shape and data_offsets",
            got=repr(raw)[:100],
            hint="the header is damaged",
        )
    dtype = _DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        raise DataError.build(
            where, expected="a dtype of " + ", ".join(_DTYPES), got=repr(fields["dtype"])
        )
    entry = _Entry(dtype, tuple(shape), *offsets)
    if entry.end - entry.begin != size(entry.shape) * dtype.itemsize:
        raise DataError.build(
            where,
            expected=f"{size(entry.shape) * dtype.itemsize} bytes for {list(shape)} {dtype}",
            got=f"offsets {offsets}",
            hint="the header is damaged",
        )
    check_shape(shape, where)
    return entry


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_ranges(entries: dict[str, _Entry], available: int, where: str) -> None:
    """The tensors must fill the rest of the file, without gaps or overlaps."""
    position = 0
    for begin, end in sorted((entry.begin, entry.end) for entry in entries.values()):
        require(
            begin == position,
            where,
            f"a tensor that starts at byte {position}",
            begin,
            hint="the header is damaged",
            error=DataError,
        )
        position = end
    require(
        position == available,
        where,
        f"{position} bytes of tensors",
        available,
        hint="the file is truncated or damaged",
        error=DataError,
    )
