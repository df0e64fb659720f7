"""Kaldi's files: archives (ark) of matrices, vectors and alignments, and scripts (scp).

A script contains the location of each entry of an archive.

    features = dict(audio.kaldi.read_ark("feats.ark"))           # or read_scp("feats.scp")
    audio.kaldi.write_ark("post.ark", posteriors, scp="post.scp")   # for Kaldi's decoders

The binary and text forms are distinguished entry by entry, as Kaldi does. Matrices and vectors of
floats are read as float32 or float64, vectors of integers (alignments) as int32.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from caldera.base.arguments import guard as _guard
from caldera.base.arguments import require
from caldera.base.file_access import check_asked
from caldera.base.file_cache import write_file
from caldera.errors import DataError
from caldera.io.files import created, file_size, opened

__all__ = ["read_ark", "read_scp", "write_ark"]

Form = Literal["binary", "text", "compressed"]
_FLOATS: dict[str, Any] = {"F": np.dtype("<f4"), "D": np.dtype("<f8")}
_INTEGER = np.dtype([("width", "i1"), ("value", "<i4")])
_INTEGERS = re.compile(rb"[-+\d\s]*")
_RANGE = np.iinfo(np.int32)
_LONGEST_KEY, _LONGEST_OFFSET = 4096, 20


def read_ark(path: str | PathLike[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the entries of an archive, in order: a key and an array each.

    >>> import numpy as np
    >>> from caldera.audio import kaldi
    >>> kaldi.write_ark("ali.ark", {"one": np.array([3, 3, 7])})
    >>> [(key, ali.tolist()) for key, ali in kaldi.read_ark("ali.ark")]
    [('one', [3, 3, 7])]
    """
    name = fspath(path)
    with opened(name, "rb", "kaldi.read_ark") as file:
        held = Path(name).stat().st_size
        while (key := _key(file, name)) is not None:
            yield key, _entry(_Reader(file, f"{name}, {key}", held))


def read_scp(path: str | PathLike[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Iterate over the entries that a script names, in order.

    Only files are opened: lines with commands are rejected. Relative paths are resolved from the
    working directory, as in Kaldi, and then from the folder of the script.
    """
    name = Path(fspath(path))
    with opened(name, "r", "kaldi.read_scp", encoding="utf-8", errors="replace") as script:
        lines = script.read().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, _, rest = line.strip().partition(" ")
        place = rest.strip()
        if not place or place.endswith("|") or place.startswith("|"):
            raise DataError.build(
                f"{name}, line {number}",
                expected="a key and file:offset",
                got=repr(line.strip()),
                hint="commands in scripts are not run: write their output to an archive first",
            )
        file_name, _, offset = place.rpartition(":")
        if not (offset.isascii() and offset.isdecimal()):
            file_name, offset = place, "0"
        target = Path(file_name)
        if not target.exists() and not target.is_absolute():
            target = name.parent / file_name
        where = f"{name}, line {number}"
        # Asked before opening: a pipe would wait for its writer, a device never end.
        require(
            not target.exists() or target.is_file(),
            where,
            f"a file at {target}",
            "something else",
            error=DataError,
        )
        with opened(target, "rb", where) as file:
            held = file_size(file)
            if len(offset) > _LONGEST_OFFSET or int(offset) >= held:
                got = f"{offset[:40]} of {held}"
                raise DataError.build(where, expected=f"an offset within {target}", got=got)
            file.seek(int(offset))
            yield key, _entry(_Reader(file, f"{target}, {key}", held))


def write_ark(
    path: str | PathLike[str],
    entries: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    scp: str | PathLike[str] | None = None,
    form: Form = "binary",
) -> None:
    """Write arrays as an archive, and where each is as a script if `scp` is a path.

    Floats are written in their precision, integers as alignments. "compressed" keeps a byte a
    number of matrices (Kaldi's speech-feature method): lossy, and a quarter of the size.
    """
    require(
        form in ("binary", "text", "compressed"),
        "kaldi.write_ark",
        "form='binary', 'text' or 'compressed'",
        repr(form),
    )
    given = entries.items() if isinstance(entries, Mapping) else entries
    lines = []
    with created(path, "wb", "kaldi.write_ark") as file:
        for entry in given:
            require(
                isinstance(entry, tuple | list) and len(entry) == 2,
                "kaldi.write_ark",
                "pairs of a key and an array",
                f"a {type(entry).__name__}",
                error=DataError,
            )
            key, value = entry
            require(
                isinstance(key, str) and key.split() == [key],
                "kaldi.write_ark",
                "keys without spaces",
                repr(key),
                error=DataError,
            )
            try:
                file.write(f"{key} ".encode())
            except UnicodeEncodeError:
                expected = "keys that UTF-8 can write"
                raise DataError.build("kaldi.write_ark", expected=expected, got=repr(key)) from None
            lines.append(f"{key} {fspath(path)}:{file.tell()}\n")
            _write(file, np.asarray(value), form, key)
    if scp is not None:
        write_file(Path(scp), "".join(lines))


# --- reading


@dataclass(frozen=True)
class _Reader:
    """Reader of an open archive; it never reads beyond the end."""

    file: IO[bytes]
    where: str
    held: int

    def exactly(self, count: int) -> bytes:
        """Read exactly `count` bytes."""
        check_asked(count, self.where, held=self.held)
        found = self.file.read(min(count, self.held + 1))
        if len(found) != count:
            raise self.refused(f"{count} bytes more", f"{len(found)}")
        return found

    def numbers(self, dtype: Any, *shape: int) -> np.ndarray:
        """Read an array of this shape, in row-major order."""
        raw = self.exactly(math.prod(shape) * np.dtype(dtype).itemsize)
        return np.frombuffer(raw, dtype).reshape(shape)

    def size(self) -> int:
        """Return a length: its width, 4, and the number."""
        width, value = struct.unpack("<bi", self.exactly(5))
        if width != 4 or value < 0:
            raise self.refused("a length", f"{value} in {width} bytes")
        return int(value)

    def refused(self, expected: str, got: str, hint: str = "") -> DataError:
        """Return an error about the contents."""
        return DataError.build(self.where, expected=expected, got=got, hint=hint)


def _key(file: IO[bytes], name: str) -> str | None:
    letters = bytearray()
    while (letter := file.read(1)) not in (b"", b" ", b"\t"):
        letters += letter
        require(
            len(letters) <= _LONGEST_KEY,
            name,
            "an archive of Kaldi",
            "no key at its start",
            error=DataError,
        )
    key = letters.decode("utf-8", "replace").strip()
    if not letter and not key:
        return None
    if not letter or key.split() != [key]:
        expected = "a key before each array, and something behind it"
        raise DataError.build(name, expected=expected, got=repr(key[:80]))
    return key


def _entry(reader: _Reader) -> np.ndarray:
    start = reader.file.read(2)
    if start == b"\0B":
        return _binary(reader)
    reader.file.seek(-len(start), io.SEEK_CUR)
    return _text(reader)


def _binary(reader: _Reader) -> np.ndarray:
    token = reader.exactly(1)
    if token == b"\4":
        reader.file.seek(-1, io.SEEK_CUR)
        found = reader.numbers(_INTEGER, reader.size())
        if (found["width"] != 4).any():
            raise reader.refused("integers of 4 bytes", "others")
        return found["value"].astype(np.int32)
    while not token.endswith(b" ") and len(token) < 4:
        token += reader.exactly(1)
    kind = token.decode("latin-1").strip()
    if kind in ("CM", "CM2", "CM3"):
        return _compressed(reader, kind)
    if len(kind) == 2 and kind[0] in _FLOATS and kind[1] in "MV":
        dtype = _FLOATS[kind[0]]
        shape = [reader.size() for _ in range(2 if kind[1] == "M" else 1)]
        return reader.numbers(dtype, *shape).astype(dtype.newbyteorder("="))
    hint = "lattices, models and posteriors in pairs are not arrays"
    raise reader.refused("a matrix, a vector, or integers", f"a {kind!r}", hint)


def _compressed(reader: _Reader, kind: str) -> np.ndarray:
    low, width, rows, columns = struct.unpack("<ffii", reader.exactly(16))
    if rows < 0 or columns < 0:
        raise reader.refused("a matrix", f"one of {rows} by {columns}")
    with np.errstate(all="ignore"):
        if kind != "CM":
            dtype, most = ("<u2", 65535.0) if kind == "CM2" else ("u1", 255.0)
            values = reader.numbers(dtype, rows, columns)
            found = (low + values * np.float32(width / most)).astype(np.float32)
        else:
            edges = low + reader.numbers("<u2", columns, 4) * np.float32(width / 65535.0)
            codes = reader.numbers("u1", columns, rows).T
            found = _from_bytes(codes, edges.astype(np.float32))
    if not np.isfinite(found).all():
        raise reader.refused("finite numbers in a compressed matrix", "others")
    return found


def _from_bytes(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return numbers between the smallest, the quartiles and the largest of their column."""
    zero, quarter, three, one = edges.T
    found = values.astype(np.float32)
    low = zero + (quarter - zero) * found * np.float32(1 / 64)
    middle = quarter + (three - quarter) * (found - 64) * np.float32(1 / 128)
    high = three + (one - three) * (found - 192) * np.float32(1 / 63)
    return np.where(values <= 64, low, np.where(values <= 192, middle, high)).astype(np.float32)


def _text(reader: _Reader) -> np.ndarray:
    """Return a matrix or a vector in brackets, or integers up to the end of the line."""
    lines = [reader.file.readline()]
    if b"[" not in lines[0]:
        return _integers_of(reader, lines[0])
    while b"]" not in lines[-1]:
        lines.append(reader.file.readline())
        if not lines[-1]:
            raise reader.refused("a ] at the end of an array", "the end")
    inside, _, behind = b"".join(lines).partition(b"[")[2].partition(b"]")
    if behind.strip():
        raise reader.refused("the end of the line behind an array", repr(behind[:40]))
    is_matrix = b"\n" in inside
    try:
        rows = [list(map(_number, row.split())) for row in inside.split(b"\n")]
        wide = np.array([row for row in rows if row], np.float64)
    except ValueError:
        raise reader.refused("rows of numbers, all of the same length", "others") from None
    if not wide.size:
        return np.zeros((0, 0) if is_matrix else 0, np.float32)
    with np.errstate(over="ignore"):
        array = wide.astype(np.float32)
    if (np.isinf(array) & np.isfinite(wide)).any():
        raise reader.refused("numbers in the range of float32", "larger ones")
    return array if is_matrix else array[0]


def _number(text: bytes) -> float:
    """Parse a number as C does: unlike in Python, without underscores."""
    if b"_" in text:
        raise ValueError("an underscore")
    return float(text)


def _integers_of(reader: _Reader, line: bytes) -> np.ndarray:
    try:
        if not line.endswith(b"\n"):
            raise ValueError("no end of the line")
        if not _INTEGERS.fullmatch(line):
            raise ValueError("other letters")
        # Beyond int32 it is an OverflowError.
        return np.array([int(each) for each in line.split()], np.int32)
    except (ValueError, OverflowError):
        expected = "integers in the range of int32, up to the end of the line"
        raise reader.refused(expected, repr(line[:40])) from None


# --- writing


def _write(file: IO[bytes], array: np.ndarray, form: Form, key: str) -> None:
    where = f"kaldi.write_ark, {key}"
    if array.dtype.kind in "iub" and array.ndim == 1:
        low, high = int(array.min(initial=0)), int(array.max(initial=0))
        if low < _RANGE.min or high > _RANGE.max:
            expected = "integers in the range of int32, as Kaldi has them"
            raise DataError.build(where, expected=expected, got=f"{low} to {high}")
        _write_integers(file, array, form)
        return
    require(
        array.dtype.kind == "f" and array.ndim in (1, 2) and max(array.shape) <= _RANGE.max,
        where,
        "floats (rows, columns) or (numbers,), or integers (numbers,)",
        f"shape {array.shape} of {array.dtype}",
        error=DataError,
    )
    packs = form == "compressed" and array.ndim == 2 and array.size > 0
    with np.errstate(over="ignore"):
        array = array.astype(np.float32 if packs or array.itemsize <= 4 else np.float64)
    require(
        not packs or np.isfinite(array).all(),
        where,
        "finite numbers to compress",
        "others",
        error=DataError,
    )
    if form == "text":
        rows = [" ".join(f"{each:.9g}" for each in row) for row in np.atleast_2d(array)]
        text = "\n  ".join(rows) if array.ndim == 2 else rows[0] + " "
        file.write(f" [{chr(10) + '  ' if array.ndim == 2 else ' '}{text}]\n".encode())
    elif packs:
        _write_compressed(file, array)
    else:
        letter = "D" if array.dtype == np.float64 else "F"
        file.write(b"\0B" + f"{letter}{'M' if array.ndim == 2 else 'V'} ".encode())
        for size in array.shape:
            file.write(struct.pack("<bi", 4, size))
        file.write(np.ascontiguousarray(array, _FLOATS[letter]).tobytes())


def _write_integers(file: IO[bytes], array: np.ndarray, form: Form) -> None:
    if form == "text":
        file.write((" ".join(str(each) for each in array.tolist()) + "\n").encode())
        return
    raw = np.empty(len(array), _INTEGER)
    raw["width"], raw["value"] = 4, array
    file.write(b"\0B" + struct.pack("<bi", 4, len(array)) + raw.tobytes())


def _write_compressed(file: IO[bytes], array: np.ndarray) -> None:
    """A byte a number, between quartiles of its column that are 16-bit numbers themselves."""
    low, high = float(array.min()), float(array.max())
    width = max(high - low, abs(low) * 1e-5 + 1e-10)
    rows, columns = array.shape
    picks = np.sort(array, axis=0)[[0, rows // 4, (3 * rows) // 4, rows - 1]]
    marks = np.floor(np.clip((picks - low) / width, 0, 1) * 65535 + 0.499).astype(np.int64)
    # Strictly increasing, with space for the following marks.
    for i in range(1, 4):
        marks[i] = np.maximum(marks[i], marks[i - 1] + 1)
    marks = np.minimum(marks, np.array([65532, 65533, 65534, 65535])[:, None])
    edges = low + marks.T.astype(np.float64) * (width / 65535.0)
    zero, quarter, three, one = edges.T
    small = np.clip(np.round((array - zero) / (quarter - zero) * 64), 0, 64)
    middle = np.clip(64 + np.round((array - quarter) / (three - quarter) * 128), 64, 192)
    large = np.clip(192 + np.round((array - three) / (one - three) * 63), 192, 255)
    codes = np.where(array < quarter, small, np.where(array < three, middle, large))
    file.write(b"\0BCM " + struct.pack("<ffii", low, width, rows, columns))
    file.write(marks.T.astype("<u2").tobytes())
    file.write(np.ascontiguousarray(codes.T.astype(np.uint8)).tobytes())


_guard(globals(), where="kaldi.{}".format)
