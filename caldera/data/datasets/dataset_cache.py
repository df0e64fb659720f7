"""Search paths, cache and verified downloads of data sets.

A downloaded file is kept only if it is exactly the published one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caldera import io
from caldera.base.config import settings
from caldera.base.file_access import checked_file_name
from caldera.base.file_cache import atomic_write
from caldera.data.sources.base import Array
from caldera.errors import DataError
from caldera.io.files import PathLike, opened
from caldera.io.numpy_files import npz_arrays

ENVIRONMENT = "CALDERA_DATA"
_PIECE = 1 << 20


def cache_folder() -> Path:
    """Return the folder for data that was downloaded or decoded.

    >>> cache_folder().name
    'data'
    """
    return settings.cache_dir / "data"


def search_paths(folder: PathLike | None, name: str) -> list[Path]:
    """Return the folders to search for a data set, in order.

    Each root may contain the data set in a subfolder of its name. If `folder` is given, only this
    folder is searched.

    >>> [place.as_posix() for place in search_paths("/data", "mnist")]
    ['/data/mnist', '/data']
    """
    if folder is not None:
        roots = [Path(folder).expanduser()]
    else:
        environment = os.environ.get(ENVIRONMENT)
        roots = [Path(environment).expanduser()] if environment else []
        roots.append(cache_folder())
    return [place for root in roots for place in (root / name, root)]


def missing_dataset(
    where: str, folder: PathLike | None, name: str, files: str, url: str
) -> DataError:
    """Return the error for a data set that is nowhere.

    >>> print(missing_dataset("data.mnist", "/data", "mnist", "four files", "https://example.org"))
    data.mnist: expected four files in /data/mnist or /data, got none; ...
    """
    looked = " or ".join(map(str, search_paths(folder, name)))
    return DataError.build(
        where,
        expected=f"{files} in {looked}",
        got="none",
        hint=f"download them from {url} and pass their folder as folder= (--data-folder) or "
        f"{ENVIRONMENT}",
    )


def file_hash(path: PathLike, where: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with opened(path, "rb", where) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def cached_arrays(key: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Return the arrays that `make` returns, from the cache if they were made before.

    `key` must name all that the arrays depend on. A damaged cache is recreated; a cache that cannot
    be written is skipped.
    """
    path = cache_folder() / f"{checked_file_name(key, 'data cache')}.npz"
    if path.is_file():
        with suppress(DataError):
            return npz_arrays(path)
    made = make()
    with suppress(OSError, DataError), atomic_write(path, durable=True) as unfinished:
        io.save_npz(unfinished, made)
    return made


_TIMEOUT_S = 30


@dataclass(frozen=True)
class PublishedFile:
    """A file as its publisher describes it.

    >>> PublishedFile("a.gz", bytes=12, sha256="00").name
    'a.gz'
    """

    name: str
    bytes: int
    sha256: str


def download(file: PublishedFile, mirrors: Sequence[str], folder: Path, where: str) -> Path:
    """Return the file in `folder`, from the first mirror that has it as published."""
    target = folder / checked_file_name(file.name, where)
    failures = []
    for mirror in mirrors:
        try:
            with atomic_write(target, durable=True) as unfinished:
                _fetch(mirror + file.name, file, unfinished)
            return target
        except Exception as error:
            # The next mirror may have the file, whichever error this one raised.
            failures.append(f"{mirror}: {error}")
    raise DataError.build(
        where,
        expected=f"{file.name} from the network",
        got="; ".join(failures),
        hint=f"without a network, put the file into {folder}",
    )


def _fetch(url: str, file: PublishedFile, target: Path) -> None:
    # Here, because the network code of the standard library takes long to load, and few need it.
    from urllib import request

    digest = hashlib.sha256()
    received = 0
    with request.urlopen(url, timeout=_TIMEOUT_S) as answer, target.open("wb") as output:
        while piece := answer.read(_PIECE):
            received += len(piece)
            if received > file.bytes:
                raise ValueError(f"more than the {file.bytes} bytes that were published")
            digest.update(piece)
            output.write(piece)
    if digest.hexdigest() != file.sha256:
        raise ValueError(
            f"{received} bytes with SHA-256 {digest.hexdigest()}, published were {file.bytes} with "
            f"{file.sha256}"
        )
