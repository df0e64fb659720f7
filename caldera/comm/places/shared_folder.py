"""Proof that processes on other machines see the same folder.

The owner of the folder writes a file with random content; the remaining processes read it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_NONCE_BYTES = 16


class FolderProof:
    """A file with a random content in a folder, for the time of a `with` block.

    >>> import tempfile
    >>> with FolderProof(Path(tempfile.mkdtemp())) as proof:
    ...     unseen(proof.offered), unseen({**proof.offered, "nonce": "0"})
    ('', 'another folder of this name')
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder.resolve() / f".caldera-{secrets.token_hex(8)}"
        self.offered = {"path": str(self._path), "nonce": secrets.token_hex(_NONCE_BYTES)}
        folder.mkdir(parents=True, exist_ok=True)
        self._path.write_text(self.offered["nonce"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)


def unseen(offered: Mapping[str, str]) -> str:
    """Return the reason why this process does not see the folder of a proof, or an empty text."""
    path = Path(offered["path"])
    try:
        with path.open() as file:
            found = file.read(2 * _NONCE_BYTES + 1)
    except OSError as error:
        here = "a folder without the file" if path.parent.is_dir() else "no such folder"
        return f"{here} ({error.strerror})"
    return "" if secrets.compare_digest(found, offered["nonce"]) else "another folder of this name"
