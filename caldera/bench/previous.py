"""The code of a run before, out of the history of this clone."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import caldera
from caldera.bench.machine import sources_digest

_COMMIT = re.compile(r"[0-9a-f]{40}")
_GIT_SECONDS = 60


def previous_sources(
    code: Mapping[str, Any], folder: Path, package: Path | None = None
) -> Path | None:
    """Write the code that a file names into a folder, if it is the very code that was measured.

    Only a commit of this clone's own history, with the digest that the file has, is believed: a
    file of results says which code to compare with, not which code to run. None where git, the
    commit or the digest is missing, as after changes that were measured before they were committed.
    """
    package = package or Path(caldera.__file__).parent
    commit, digest = code.get("commit"), code.get("sources")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        return None
    try:
        _git(package, "merge-base", "--is-ancestor", commit, "HEAD")
        archive = _git(package, "archive", "--format=tar", commit, "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    found = folder / package.name
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        # As an attribute: Python before 3.11.4 knows no such argument.
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(found)
    return folder if sources_digest(found) == digest else None


def _git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, timeout=_GIT_SECONDS, check=True
    )
    return done.stdout
