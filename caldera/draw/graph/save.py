"""Writing pictures to files."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from caldera.draw.graph.render import picture
from caldera.errors import ConfigError
from caldera.graph.program import Program


def save(path: str | PathLike[str], panels: Mapping[str, Program]) -> Path:
    """Write the picture of these programs, side by side, to an .svg file; its path."""
    return write_svg(path, picture(panels), "draw")


def write_svg(path: str | PathLike[str], text: str, where: str) -> Path:
    """Write the text of an SVG file for `where`, which a mistake in the path is blamed on."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ConfigError.build(
            where, expected="a file name that ends in .svg", got=repr(str(path)),
            hint=f"write to {str(target.with_suffix('.svg'))!r}, which every browser opens"
            if target.name else "",
        )  # fmt: skip
    if not target.parent.is_dir():
        raise ConfigError.build(
            where, expected="a folder that exists", got=repr(str(target.parent)),
            hint="make it first, for example with Path.mkdir(parents=True)",
        )  # fmt: skip
    target.write_text(text, encoding="utf-8")
    return target
