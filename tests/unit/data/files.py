"""Small files of the known formats, and what damages them."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caldera.errors import DataError


def idx(array: np.ndarray) -> bytes:
    """An IDX file of bytes."""
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, packed: bool = True, samples: int = 6) -> dict[str, np.ndarray]:
    """The four files of a small MNIST; the arrays that are in them."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for number, part in enumerate(("train", "t10k")):
        count = samples - number
        arrays[f"{part}-images-idx3-ubyte"] = np.arange(count * 20).reshape(count, 4, 5) % 256
        arrays[f"{part}-labels-idx1-ubyte"] = np.arange(count) % 10
    for name, array in arrays.items():
        content = idx(array)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return arrays


def picture(color: int, size: tuple[int, int] = (32, 32), form: str = "PNG") -> bytes:
    """An image of one colour; `size` is (width, height)."""
    file = io.BytesIO()
    Image.new("RGB", size, (color, color, color)).save(file, form)
    return file.getvalue()


def tar(members: Mapping[str, bytes] | Iterable[tarfile.TarInfo], packing: str = "gz") -> bytes:
    """An archive of files with contents, or of entries that have none."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{packing}") as archive:
        if isinstance(members, Mapping):
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        else:
            for info in members:
                archive.addfile(info)
    return file.getvalue()


def survives_damage(
    content: bytes, path: Path, read: Callable[[], object], every: int = 1, must_refuse: bool = True
) -> None:
    """Cut the file at every length and change every byte: each is read, or a `DataError`.

    With `must_refuse` every cut must be refused.
    """
    for length in range(0, len(content), every):
        path.write_bytes(content[:length])
        if must_refuse:
            with pytest.raises(DataError):
                read()
        else:
            _tried(read)
    for place in range(0, len(content), every):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[place] ^= change
            path.write_bytes(bytes(damaged))
            _tried(read)
    path.write_bytes(content + b"\0more")
    _tried(read)


def _tried(read: Callable[[], object]) -> None:
    # The one kind of exception that damage may cause.
    with suppress(DataError):
        read()
