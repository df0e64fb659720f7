"""Writing a picture to a file."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from caldera.errors import ConfigError
from caldera.graph.picture.page import picture
from caldera.graph.program import Program


def save(path: str | PathLike[str], panels: Mapping[str, Program]) -> Path:
    """Write the picture of these programs, side by side, to an .svg file; its path."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ConfigError.build(
            "draw", expected="a file name that ends in .svg", got=repr(str(path)),
            hint=f"write to {str(target.with_suffix('.svg'))!r}, which every browser opens"
            if target.name else "",
        )  # fmt: skip
    if not target.parent.is_dir():
        raise ConfigError.build(
            "draw", expected="a folder that exists", got=repr(str(target.parent)),
            hint="make it first, for example with Path.mkdir(parents=True)",
        )  # fmt: skip
    target.write_text(picture(panels), encoding="utf-8")
    return target
