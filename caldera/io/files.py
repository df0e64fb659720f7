"""Common code of all file formats: opening with clear errors, and reading raw elements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.file_cache import atomic_write
from caldera.core.memory import MemoryManager
from caldera.core.tensor import DType, Shape, Tensor, array_of, bool_, size
from caldera.errors import DataError

PathLike: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = PathLike | IO[bytes]
"""Path of a file, or an open file, which is read from its beginning to its end."""
T = TypeVar("T")
Read: TypeAlias = Callable[[IO[bytes], Shape, DType, str], T]
"""Reads raw elements in row-major order: `read_tensor` or `read_array`."""


@contextmanager
def opened(path: Source, mode: str, where: str, **options: Any) -> Iterator[IO[Any]]:
    """Open a file for reading; a path that cannot be opened is a `DataError`.

    >>> with opened("no/such/file.csv", "r", "read_csv"):
    ...     pass
    Traceback (most recent call last):
    caldera.errors.DataError: read_csv: expected a file at no/such/file.csv, got no folder no/such
    """
    if not isinstance(path, str | os.PathLike):
        path.seek(0)
        yield path
        return
    try:
        file = open(path, mode, **options)  # noqa: SIM115 - closed below, after the errors of opening
    except OSError as error:
        raise DataError.build(
            where, expected=f"a file at {os.fspath(path)}", got=_reason(Path(path), error)
        ) from None
    with file:
        yield file


@contextmanager
def created(path: Source, mode: str, where: str, **options: Any) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces the target only when it is complete.

    If writing fails, an existing file is unchanged. A path that cannot be written is a `DataError`.

    >>> with created("no/such/file.csv", "w", "write_csv"):
    ...     pass
    Traceback (most recent call last):
    caldera.errors.DataError: write_csv: expected a file at no/such/file.csv, got no folder no/such
    """
    if not isinstance(path, str | os.PathLike):
        yield path
        return
    target = Path(path)
    with ExitStack() as stack:
        try:
            if not target.parent.is_dir():
                raise FileNotFoundError
            if target.is_dir():
                raise IsADirectoryError
            unfinished = stack.enter_context(atomic_write(target))
            file = stack.enter_context(open(unfinished, mode, **options))
        except OSError as error:
            raise DataError.build(
                where, expected=f"a file at {os.fspath(path)}", got=_reason(target, error)
            ) from None
        yield file


def named(function: str, path: Source) -> str:
    """Return the start of an error message about a file.

    >>> named("read_csv", "data/iris.csv")
    'read_csv iris.csv'
    """
    return f"{function} {file_name_of(path)}"


def file_name_of(path: Source) -> str:
    """Return the name of a file, without its folder.

    >>> import io
    >>> file_name_of("data/iris.csv"), file_name_of(io.BytesIO())
    ('iris.csv', 'open file')
    """
    return Path(path).name if isinstance(path, str | os.PathLike) else "open file"


def file_size(file: IO[Any]) -> int:
    """Return the bytes of an open file.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     file_size(file)
    0
    """
    here = file.tell()
    total = file.seek(0, os.SEEK_END)
    file.seek(here)
    return total


def read_bounded(path: PathLike, most: int, where: str) -> bytes:
    """Return the bytes of a file, if it is one and has no more than `most`.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     read_bounded(file.name, 10, "load")
    b''
    """
    # Asked before opening: to open a pipe would wait for its writer.
    require(
        not Path(path).exists() or Path(path).is_file(),
        where,
        f"a file at {path}",
        "something else",
        error=DataError,
    )
    with opened(path, "rb", where) as file:
        size = file_size(file)
        require(size <= most, where, f"at most {most} bytes in {path}", size, error=DataError)
        return file.read(most)


def array_to_save(value: Tensor | NDArray[Any], where: str) -> NDArray[Any]:
    """Return the elements of a tensor or array in row-major order.

    >>> array_to_save(np.arange(6).reshape(2, 3).T, "save_npy").flags.c_contiguous
    True
    """
    array = value.numpy() if isinstance(value, Tensor) else array_of(value, where, stored=True)
    # Not `ascontiguousarray`, which would turn a scalar into a vector.
    return np.asarray(array, order="C")


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array, without a copy.

    >>> bytes_of(np.array([1, 2], np.int16)).nbytes
    4
    """
    return array.reshape(-1).view(np.uint8).data


def read_tensor(file: IO[bytes], shape: Shape, dtype: DType, where: str) -> Tensor:
    """Return a tensor from raw elements in row-major order, straight into its memory.

    >>> import io
    >>> read_tensor(io.BytesIO(b"ab"), (2,), np.dtype("uint8"), "load").tolist()
    [97, 98]
    """
    memory = MemoryManager(size(shape), dtype, owner=where)
    _fill(memory.host(write=True, discard=True), file, where)
    return Tensor._wrap(memory, shape, dtype)


def read_array(file: IO[bytes], shape: Shape, dtype: DType, where: str) -> NDArray[Any]:
    """Read raw elements as an array of the host, without querying the GPUs.

    A process that has queried them can no longer be forked.

    >>> import io
    >>> read_array(io.BytesIO(b"ab"), (2,), np.dtype("uint8"), "load")
    array([97, 98], dtype=uint8)
    """
    found = np.empty(shape, dtype)
    _fill(found, file, where)
    return found


def _fill(elements: NDArray[Any], file: IO[bytes], where: str) -> None:
    wanted = bytes_of(elements)
    filled = 0
    while filled < wanted.nbytes:
        count = file.readinto(wanted[filled:])  # type: ignore[attr-defined]
        require(
            count,
            where,
            f"{wanted.nbytes} bytes of elements",
            filled,
            hint="the file is truncated",
            error=DataError,
        )
        filled += count
    if elements.dtype == bool_ and elements.size and elements.view(np.uint8).max() > 1:
        raise DataError.build(where, expected="0 or 1 for each bool", got="other bytes")


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        if not path.parent.exists():
            return f"no folder {path.parent}"
        return "no such file; check the name and the folder"
    if isinstance(error, IsADirectoryError):
        return "a folder"
    return str(error.strerror)
