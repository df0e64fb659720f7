"""The machine and the software of a run, for the record beside its times."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import caldera
from caldera.base.machine import CardState, card_state, this_machine
from caldera.bench.contestants import PEERS, has_compiler

_PACKAGES = ("caldera", "numpy", "llvmlite", "scipy", "jaxlib", "triton", *PEERS)
_TIME = "%Y-%m-%d %H:%M:%S %z"


def machine_facts(threads: int, device: str = "cpu") -> dict[str, Any]:
    """What computed: processor, cores, threads, BLAS, Python, operating system, and the card."""
    here = this_machine()
    card = None if device == "cpu" else card_state()
    return {
        "time": time.strftime(_TIME),
        "cpu": here.cpu,
        "architecture": here.architecture,
        "cores": here.cores,
        "threads": threads,
        "load before": _load(),
        "system": here.system,
        "python": here.libraries["python"],
        "blas": here.libraries["blas"],
        "C++ compiler": has_compiler(),
        "device": device,
        **({} if card is None else _card_facts(card)),
    }


def _card_facts(card: CardState) -> dict[str, Any]:
    return {
        "card": card.name,
        "card driver": card.driver,
        "card capability": card.capability,
        "card memory": card.total,
        "card memory in use before": card.used,
    }


def package_versions() -> dict[str, str]:
    """The packages that take part, as far as they are installed.

    >>> "numpy" in package_versions()
    True
    """
    found = {"caldera": caldera.__version__}
    for package in _PACKAGES:
        try:
            found.setdefault(package, version(package))
        except PackageNotFoundError:
            continue
    return found


def code_version() -> dict[str, str]:
    """Caldera's version, a digest of its sources, and the commit if they are a clone of git.

    >>> sorted(code_version())[-2:]
    ['sources', 'version']
    """
    root = Path(caldera.__file__).parent
    found = {"version": caldera.__version__, "sources": sources_digest(root)}
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        found["commit"] = asked.stdout.strip()
    return found


def sources_digest(package: Path) -> str:
    """Of all Python files of a package: equal sources have equal ones."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _load() -> float | None:
    """How busy the machine is already."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
