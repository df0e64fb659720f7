"""The settings of a process: a single typed object that rejects unknown names and wrong values.

Each field has a check in `_CHECKS`. It is applied to every value: from an assignment, from `update`
or `override`, or from the environment.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caldera.base.machine import usable_cores
from caldera.base.registry import nearest
from caldera.errors import ConfigError

ACCELERATORS = ("auto", "cpu", "loopback", "cuda")


ACCURACIES = ("strict", "fast")
PLACEMENTS = ("auto", "cpu", "cuda", "loopback")


Check = Callable[[str, object], Any]
"""From the name of a setting and its new value to the value that it gets."""


def _one_of(names: Sequence[str], hint: str = "") -> Check:
    def check(where: str, value: object) -> str:
        if isinstance(value, str) and value in names:
            return value
        close = difflib.get_close_matches(str(value), names, n=1)
        raise ConfigError.build(
            where,
            expected="one of " + ", ".join(names),
            got=repr(value),
            hint=f"did you mean {close[0]!r}?" if close else hint,
        )

    return check


def _whole_number(least: int, *, or_none: bool = False) -> Check:
    def check(where: str, value: object) -> int | None:
        # bool is an int to Python, but `threads=True` is a mistake.
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        if value is None and or_none:
            return None
        raise ConfigError.build(where, expected=f"an integer >= {least}", got=repr(value))

    return check


def _number(words: str, most: float) -> Check:
    def check(where: str, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
            return float(value)
        raise ConfigError.build(where, expected=words, got=repr(value))

    return check


def _check_flag(where: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError.build(where, expected="True or False", got=repr(value))


def _check_folder(where: str, value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError.build(where, expected="the path of a folder", got=repr(value))
    folder = Path(value).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ConfigError.build(
            where, expected="a folder", got=f"the file {folder}", hint="name a folder or a new path"
        )
    return folder


_CHECKS: dict[str, Check] = {
    "accelerator": _one_of(ACCELERATORS),
    "accuracy": _one_of(ACCURACIES, "'fast' admits kernels that round more than a plain sum does"),
    "placement": _one_of(
        PLACEMENTS, "pin a single layer with device=, as in nn.Embedding(..., device='cpu')"
    ),
    "threads": _whole_number(1),
    "cache_dir": _check_folder,
    "tune_budget_s": _number("seconds, 0 or more", sys.float_info.max),
    "deterministic": _check_flag,
    "workspace_limit": _whole_number(0),
    "workspace_total": _whole_number(0, or_none=True),
    "memory_limit": _whole_number(1, or_none=True),
    "file_limit": _whole_number(1),
    "resident_fraction": _number("a part from 0 to 1", 1.0),
    "stall_s": _number("seconds, 0 or more", sys.float_info.max),
}


def _number_from(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    value = int(text) if text.strip().isdecimal() else text
    return _whole_number(1)(f"environment variable {name}", value)


_CACHES = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
"""By system: the variable that names the folder of caches, and its path in the home folder."""


def _cache_dir_from(environment: Mapping[str, str]) -> Path:
    text = environment.get("CALDERA_CACHE")
    if text is not None:
        return _check_folder("environment variable CALDERA_CACHE", text)
    name, usual = _CACHES.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    return Path(environment.get(name) or Path.home() / usual) / "caldera"


def _threads_from(environment: Mapping[str, str]) -> int:
    """Return the number of usable cores, limited by OMP_NUM_THREADS.

    That list has a number for each level of nesting; errors in it are left to OpenMP to report.
    """
    outermost = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    cores = usable_cores()
    return min(cores, int(outermost)) if outermost.isdecimal() and int(outermost) else cores


DEFAULT_WORKSPACE = 1 << 30
"""Default bytes of workspace for a kernel."""


class Settings:
    """Settings of the process; `caldera.settings` is the only instance.

    - `accelerator`: device family of an integer device id: "cpu", "loopback", "cuda", or "auto" for
      the best one of this machine.
    - `accuracy`: "strict" uses only kernels that are as accurate as the plain sum; "fast" admits
      faster kernels that round more, such as Winograd's F(4x4, 3x3).
    - `placement`: device for operations without a pin: "cpu", "cuda" or "loopback", or "auto" for
      the device of the variables. With variables on several devices, "auto" takes the device with
      the earliest predicted end, copies included.
    - `threads`: workers of the thread pool (`CALDERA_THREADS`, or the usable cores, within affinity,
      a container's quota and `OMP_NUM_THREADS`).
    - `cache_dir`: folder of tuned choices and compiled kernels (`CALDERA_CACHE`).
    - `tune_budget_s`: seconds available for measuring kernels; it refills at a tenth of real time.
    - `deterministic`: never change a kernel choice during a run.
    - `workspace_limit`: bytes of scratch memory for a kernel. A convolution that needs more processes
      the batch in slices.
    - `workspace_total`: bytes of scratch memory for all convolutions of a plan together, assigned to
      the convolutions that gain most; None if only `workspace_limit` counts.
    - `memory_limit`: bytes each device's pool may hold; None for all memory of the device. A plan
      that would take more drops values and computes them again, or moves them to the host.
    - `file_limit`: bytes of memory that a small file may expand to. A file is refused if it needs
      more than that and more than a hundred times its size (`CALDERA_FILE_LIMIT`, or 1 GiB).
    - `resident_fraction`: the part of a device's memory that training data may take. Data that
      fit are copied there once; larger data are fed batch by batch.
    - `stall_s`: seconds until a waiting rank reports the missing ranks. After twice as long (two
      minutes) a rank that does not answer ends all ranks, since it was stopped or its machine is
      gone. A rank that answers but is busy has ten times as long.

    Changes hold for the whole process, all threads included.

    >>> import caldera as cd
    >>> with cd.settings.override(deterministic=True):
    ...     cd.settings.deterministic
    True
    >>> cd.settings.update(tune_budget=1.0)
    Traceback (most recent call last):
    caldera.errors.ConfigError: settings: got unknown name 'tune_budget'; did you mean 'tune_budget_s'?
    """  # noqa: E501

    accelerator: str = "auto"
    accuracy: str = "strict"
    placement: str = "auto"
    threads: int
    cache_dir: Path
    tune_budget_s: float = 5.0
    deterministic: bool = False
    workspace_limit: int = DEFAULT_WORKSPACE
    workspace_total: int | None = None
    memory_limit: int | None = None
    file_limit: int
    resident_fraction: float = 0.25
    stall_s: float = 60.0

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.threads = _number_from(environment, "CALDERA_THREADS") or _threads_from(environment)
        self.cache_dir = _cache_dir_from(environment)
        self.file_limit = _number_from(environment, "CALDERA_FILE_LIMIT") or 1 << 30

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, _checked(name, value))

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={getattr(self, name)!r}' for name in _CHECKS)})"

    def update(self, **values: Any) -> None:
        """Change several settings; if any value is invalid, none is changed.

        >>> import caldera as cd
        >>> cd.settings.update(workspace_limit=1 << 30, deterministic=False)
        """
        checked = {name: _checked(name, value) for name, value in values.items()}
        vars(self).update(checked)

    @contextmanager
    def override(self, **values: Any) -> Iterator[Settings]:
        """Settings that hold inside a `with` block, and are put back after it.

        >>> import caldera as cd
        >>> with cd.settings.override(workspace_limit=0) as settings:
        ...     settings.workspace_limit
        0
        """
        before = {name: getattr(self, name) for name in values if name in _CHECKS}
        self.update(**values)
        try:
            yield self
        finally:
            vars(self).update(before)


def _checked(name: str, value: object) -> Any:
    check = _CHECKS.get(name)
    if check is None:
        raise ConfigError.build(
            "settings", got=f"unknown name {name!r}", hint=nearest(name, _CHECKS)
        )
    return check(f"settings.{name}", value)


settings = Settings()
