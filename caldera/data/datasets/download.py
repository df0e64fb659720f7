"""Files from the network, kept only if they are exactly what was published."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caldera.base.file_cache import atomic_write
from caldera.base.file_names import checked_file_name
from caldera.errors import DataError

_PIECE = 1 << 20
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
    """The file in `folder`, from the first mirror that has it as published."""
    target = folder / checked_file_name(file.name, where)
    failures = []
    for mirror in mirrors:
        try:
            with atomic_write(target, durable=True) as unfinished:
                _fetch(mirror + file.name, file, unfinished)
            return target
        except Exception as error:
            # Whatever is wrong with this mirror, the next one may have the file.
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
