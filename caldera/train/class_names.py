"""The names of a model's classes, in a file beside the model: one name a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_class_names(model: Path, names: Sequence[str]) -> None:
    """Write the names, if they say more than the numbers of the classes do."""
    path = _beside(model)
    if list(names) == [str(number) for number in range(len(names))]:
        # Names that an earlier model of this name has left would be wrong.
        path.unlink(missing_ok=True)
        return
    # A name is one line, whatever is in it.
    path.write_text("".join(" ".join(name.split()) + "\n" for name in names), encoding="utf-8")


def read_class_names(model: Path) -> list[str]:
    """The names beside a model file; none if there is no such file.

    >>> import tempfile
    >>> model = Path(tempfile.mkdtemp()) / "flowers.caldera"
    >>> write_class_names(model, ["iris", "rose"])
    >>> read_class_names(model)
    ['iris', 'rose']
    """
    path = _beside(model)
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _beside(model: Path) -> Path:
    return model.with_suffix(".classes.txt")
