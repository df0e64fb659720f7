"""What tests make once and keep: compiled code, named after all that it was made of."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CACHE = Path(os.environ.get("CALDERA_TEST_CACHE", Path(__file__).parent.parent / ".test_cache"))
"""The folder, in the repository but not of it. Several clones may share one."""
DAYS = 30
"""What was not used for so long is thrown away."""


def cached_file(file: Path, make: Callable[[Path], object]) -> Path:
    """The file, written by `make` unless it is there. Of several processes one makes it."""
    if file.exists():
        return file
    with open(file.with_name(f"{file.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            fresh = file.with_name(f"{file.name}.new")
            make(fresh)
            os.replace(fresh, file)
    # Whoever waits for it has it open, and will find the file.
    Path(lock.name).unlink(missing_ok=True)
    return file


def link_kernels(folder: Path) -> None:
    """Let a folder that is `CALDERA_CACHE` of some process have the kernels that tests compile."""
    kernels = CACHE / "native"
    kernels.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / "native").symlink_to(kernels, target_is_directory=True)


def evict() -> None:
    """Forget what no run has read in a long time."""
    oldest = time.time() - DAYS * 24 * 3600
    # Tens of thousands of files: each is asked once.
    for folder, _, names in os.walk(CACHE):
        for name in names:
            file = os.path.join(folder, name)
            with suppress(FileNotFoundError):  # another run was faster
                status = os.stat(file)
                if max(status.st_atime, status.st_mtime) < oldest:
                    os.unlink(file)
