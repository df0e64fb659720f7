"""Which Python `make` builds .venv with: python3, or the system's if that is a faster one.

    python3 tools/interpreter.py

Most of the tests' time is the interpreter's. One that was built without the profiles of
`--enable-optimizations`, as pyenv builds it unless told otherwise, takes an eighth longer than a
distribution's of the same version.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig

SYSTEM = "/usr/bin/python3"
_ASK = "import ensurepip, sys, venv; print(*sys.version_info[:2])"


def is_optimised() -> bool:
    """Whether this interpreter says that it was built with profiles."""
    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")


def chosen(system: str = SYSTEM) -> str:
    """The path of the interpreter to take."""
    if is_optimised():
        return sys.executable
    try:
        said = subprocess.run(
            [system, "-c", _ASK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        # There is none, or one that makes no virtual environments.
        return sys.executable
    is_same_version = said.split() == [b"%d" % part for part in sys.version_info[:2]]
    return system if is_same_version else sys.executable


if __name__ == "__main__":
    print(chosen())
