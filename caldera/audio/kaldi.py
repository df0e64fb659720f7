"""Kaldi's files: archives (ark) of matrices, vectors and alignments, and the scripts (scp) that say
where each of their entries is.

    features = dict(audio.kaldi.read_ark("feats.ark"))           # or read_scp("feats.scp")
    audio.kaldi.write_ark("post.ark", posteriors, scp="post.scp")   # for Kaldi's decoders

Binary and text forms are told apart entry by entry, as Kaldi does. Matrices and vectors of floats
come as float32 or float64, vectors of integers (alignments) as int32.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from caldera.base.arguments import guard as _guard
from caldera.base.file_access import check_asked
from caldera.base.file_cache import write_file
from caldera.errors import ConfigError, DataError
from caldera.io.files import created, opened

__all__ = ["read_ark", "read_scp", "write_ark"]

Form = Literal["binary", "text", "compressed"]
_FLOATS: dict[str, Any] = {"F": np.dtype("<f4"), "D": np.dtype("<f8")}


def read_ark(path: str | PathLike[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The entries of an archive, in order: a key and an array each.

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
            yield key, _entry(file, f"{name}, {key}", held)


def read_scp(path: str | PathLike[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The entries that a script names, in its order. Only files are opened: lines with commands are
    refused.

    Paths that are not absolute are looked for from where the program runs, as Kaldi does, and then
    beside the script.
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
        if not offset.isdigit():
            file_name, offset = place, "0"
        target = Path(file_name)
        if not target.exists() and not target.is_absolute():
            target = name.parent / file_name
        with opened(target, "rb", f"{name}, line {number}") as file:
            file.seek(int(offset))
            yield key, _entry(file, f"{target}, {key}", target.stat().st_size)


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
    if form not in ("binary", "text", "compressed"):
        raise ConfigError.build(
            "kaldi.write_ark", expected="form='binary', 'text' or 'compressed'", got=repr(form)
        )
    given = entries.items() if isinstance(entries, Mapping) else entries
    lines = []
    with created(path, "wb", "kaldi.write_ark") as file:
        for entry in given:
            if not isinstance(entry, tuple | list) or len(entry) != 2:
                raise DataError.build(
                    "kaldi.write_ark",
                    expected="pairs of a key and an array",
                    got=f"a {type(entry).__name__}",
                )
            key, value = entry
            if not isinstance(key, str) or not key or any(letter.isspace() for letter in key):
                raise DataError.build(
                    "kaldi.write_ark", expected="keys without spaces", got=repr(key)
                )
            file.write(f"{key} ".encode())
            lines.append(f"{key} {fspath(path)}:{file.tell()}\n")
            _write(file, np.asarray(value), form, key)
    if scp is not None:
        write_file(Path(scp), "".join(lines))


# --- reading


def _key(file: IO[bytes], name: str) -> str | None:
    letters = bytearray()
    while (letter := file.read(1)) not in (b"", b" ", b"\t"):
        letters += letter
        if len(letters) > 4096:
            raise DataError.build(name, expected="an archive of Kaldi", got="no key at its begin")
    key = letters.decode("utf-8", "replace").strip()
    if not letter:
        if key:
            raise DataError.build(name, expected="something behind each key", got=f"only {key!r}")
        return None
    return key


def _exactly(file: IO[bytes], count: int, where: str, held: int) -> bytes:
    check_asked(count, where, held=held)
    found = file.read(count)
    if len(found) != count:
        raise DataError.build(where, expected=f"{count} bytes more", got=f"{len(found)}")
    return found


def _entry(file: IO[bytes], where: str, held: int) -> np.ndarray:
    start = file.read(2)
    if start == b"\0B":
        return _binary(file, where, held)
    return _text(file, start, where)


def _size(file: IO[bytes], where: str) -> int:
    width, value = struct.unpack("<bi", _exactly(file, 5, where, 5))
    if width != 4 or value < 0:
        raise DataError.build(where, expected="a length", got=f"{value} in {width} bytes")
    return int(value)


def _binary(file: IO[bytes], where: str, held: int) -> np.ndarray:
    token = file.read(1).decode("latin-1")
    if token == "\4":
        file.seek(-1, io.SEEK_CUR)
        return _integers(file, where, held)
    while not token.endswith(" ") and len(token) < 4:
        token += file.read(1).decode("latin-1")
    kind = token.strip()
    if kind in ("CM", "CM2", "CM3"):
        return _compressed(file, kind, where, held)
    if len(kind) == 2 and kind[0] in _FLOATS and kind[1] in "MV":
        dtype = _FLOATS[kind[0]]
        shape = tuple(_size(file, where) for _ in range(2 if kind[1] == "M" else 1))
        raw = _exactly(file, int(np.prod(shape, dtype=object)) * dtype.itemsize, where, held)
        return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))
    raise DataError.build(
        where,
        expected="a matrix, a vector, or integers",
        got=f"a {kind!r}",
        hint="lattices, models and posteriors in pairs are not arrays",
    )


def _integers(file: IO[bytes], where: str, held: int) -> np.ndarray:
    count = _size(file, where)
    raw = np.frombuffer(_exactly(file, 5 * count, where, held), np.uint8).reshape(count, 5)
    if count and (raw[:, 0] != 4).any():
        raise DataError.build(where, expected="integers of 4 bytes", got="others")
    return np.ascontiguousarray(raw[:, 1:]).view("<i4").reshape(count).astype(np.int32)


def _compressed(file: IO[bytes], kind: str, where: str, held: int) -> np.ndarray:
    low, width, rows, columns = struct.unpack("<ffii", _exactly(file, 16, where, held))
    if rows < 0 or columns < 0:
        raise DataError.build(where, expected="a matrix", got=f"one of {rows} by {columns}")
    if kind != "CM":
        dtype, most = ("<u2", 65535.0) if kind == "CM2" else ("u1", 255.0)
        raw = _exactly(file, rows * columns * np.dtype(dtype).itemsize, where, held)
        values = np.frombuffer(raw, dtype).reshape(rows, columns)
        return (low + values * np.float32(width / most)).astype(np.float32)
    raw = _exactly(file, columns * 8, where, held)
    edges = low + np.frombuffer(raw, "<u2").reshape(columns, 4) * np.float32(width / 65535.0)
    values = np.frombuffer(_exactly(file, rows * columns, where, held), np.uint8)
    return _from_bytes(values.reshape(columns, rows).T, edges.astype(np.float32))


def _from_bytes(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Numbers between the smallest, the quartiles and the largest of their column."""
    zero, quarter, three, one = edges.T
    found = values.astype(np.float32)
    low = zero + (quarter - zero) * found * np.float32(1 / 64)
    middle = quarter + (three - quarter) * (found - 64) * np.float32(1 / 128)
    high = three + (one - three) * (found - 192) * np.float32(1 / 63)
    return np.where(values <= 64, low, np.where(values <= 192, middle, high)).astype(np.float32)


def _text(file: IO[bytes], start: bytes, where: str) -> np.ndarray:
    """A matrix or a vector in brackets, or integers up to the end of the line."""
    rest = start + file.readline()
    if b"[" not in rest:
        return _integers_of(rest, where)
    while b"]" not in rest:
        line = file.readline()
        if not line:
            raise DataError.build(where, expected="a ] at the end of an array", got="the end")
        rest += line
    inside = rest[rest.index(b"[") + 1 : rest.index(b"]")].decode("ascii", "replace")
    is_matrix = "\n" in inside
    try:
        rows = [[float(each) for each in row.split()] for row in inside.split("\n") if row.strip()]
        array = np.array(rows, np.float32)
    except ValueError:
        raise DataError.build(
            where, expected="numbers in rows of one length", got="others"
        ) from None
    if not rows:
        return np.zeros((0, 0) if is_matrix else 0, np.float32)
    return array if is_matrix else array[0]


def _integers_of(line: bytes, where: str) -> np.ndarray:
    try:
        return np.array([int(each) for each in line.split()], np.int32)
    except ValueError:
        raise DataError.build(where, expected="integers", got=repr(line[:40])) from None


# --- writing


def _write(file: IO[bytes], array: np.ndarray, form: Form, key: str) -> None:
    if array.dtype.kind in "iub" and array.ndim == 1:
        _write_integers(file, array, form)
        return
    if array.dtype.kind != "f" or array.ndim not in (1, 2):
        raise DataError.build(
            f"kaldi.write_ark, {key}",
            expected="floats (rows, columns) or (numbers,), or integers (numbers,)",
            got=f"shape {array.shape} of {array.dtype}",
        )
    if array.dtype != np.float64:
        array = array.astype(np.float32)
    if form == "text":
        rows = [" ".join(f"{each:.9g}" for each in row) for row in np.atleast_2d(array)]
        text = "\n  ".join(rows) if array.ndim == 2 else rows[0] + " "
        file.write(f" [{chr(10) + '  ' if array.ndim == 2 else ' '}{text}]\n".encode())
    elif form == "compressed" and array.ndim == 2 and array.size:
        _write_compressed(file, array.astype(np.float32))
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
    raw = np.empty((len(array), 5), np.uint8)
    raw[:, 0] = 4
    raw[:, 1:] = np.ascontiguousarray(array, "<i4").reshape(-1, 1).view(np.uint8)
    file.write(b"\0B" + struct.pack("<bi", 4, len(array)) + raw.tobytes())


def _write_compressed(file: IO[bytes], array: np.ndarray) -> None:
    """A byte a number, between quartiles of its column that are 16-bit numbers themselves."""
    low, high = float(array.min()), float(array.max())
    width = max(high - low, abs(low) * 1e-5 + 1e-10)
    rows, columns = array.shape
    picks = np.sort(array, axis=0)[[0, rows // 4, (3 * rows) // 4, rows - 1]]
    marks = np.floor(np.clip((picks - low) / width, 0, 1) * 65535 + 0.499).astype(np.int64)
    # Each above the one before it, with room for those that follow.
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
