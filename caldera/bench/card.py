"""The card as its driver describes it: name, memory, and how much of that is in use."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

_ASKED = ("name", "driver_version", "compute_cap", "memory.total", "memory.used")
_SECONDS = 30.0
"""The driver may have to wake the card up."""


@dataclass(frozen=True)
class CardState:
    """The first card of this machine at one moment; sizes are in bytes.

    >>> CardState("example", "1", "9.0", total=100, used=30).free
    70
    """

    name: str
    driver: str
    capability: str
    total: int
    used: int

    @property
    def free(self) -> int:
        """Bytes that nobody uses."""
        return self.total - self.used


def card_state() -> CardState | None:
    """The card as it is now; None if there is none, or no driver that answers."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = f"--query-gpu={','.join(_ASKED)}"
    command = [program, "--id=0", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return state_from(done.stdout)


def state_from(text: str) -> CardState | None:
    """The answer of nvidia-smi as a state; None if it is no answer.

    >>> state_from("NVIDIA H200, 580.159.04, 9.0, 143771, 10").name
    'NVIDIA H200'
    """
    parts = [part.strip() for part in text.strip().split(",")]
    if len(parts) != len(_ASKED) or not (parts[3].isdigit() and parts[4].isdigit()):
        return None
    name, driver, capability, total, used = parts
    return CardState(name, driver, capability, int(total) << 20, int(used) << 20)
