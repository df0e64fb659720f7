"""Where data sets are looked for, and what is kept of those that took time to read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from caldera import io
from caldera.base.config import settings
from caldera.base.file_cache import atomic_write
from caldera.base.file_names import checked_file_name
from caldera.data.sources.base import Array
from caldera.errors import DataError
from caldera.io.files import PathLike, opened
from caldera.io.numpy_files import npz_arrays

ENVIRONMENT = "CALDERA_DATA"
_PIECE = 1 << 20


def cache_folder() -> Path:
    """The folder for data that was downloaded or decoded.

    >>> cache_folder().name
    'data'
    """
    return settings.cache_dir / "data"


def search_paths(folder: PathLike | None, name: str) -> list[Path]:
    """Where to look for a data set, in this order; each place may hold it in a folder of its name.

    A folder that is given is the only place.

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
    """The error for a data set that is nowhere.

    >>> print(missing_dataset("data.mnist", "/data", "mnist", "four files", "https://example.org"))
    data.mnist: expected four files in /data/mnist or /data, got none of them; ...
    """
    looked = " or ".join(map(str, search_paths(folder, name)))
    return DataError.build(
        where,
        expected=f"{files} in {looked}",
        got="none of them",
        hint=f"get them from {url} and give their folder as folder= (--data-folder) or "
        f"{ENVIRONMENT}",
    )


def file_hash(path: PathLike, where: str) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with opened(path, "rb", where) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def cached_arrays(key: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """The arrays that `make` gives, from the cache if they were made before.

    `key` must name all they depend on. A cache that is damaged is made again; one that cannot be
    written is done without.
    """
    path = cache_folder() / f"{checked_file_name(key, 'data cache')}.npz"
    if path.is_file():
        try:
            return npz_arrays(path)
        except DataError:
            pass
    made = make()
    try:
        with atomic_write(path, durable=True) as unfinished:
            io.save_npz(unfinished, made)
    except (OSError, DataError):
        pass
    return made
