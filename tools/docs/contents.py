"""What the documentation consists of, in order: `docs/contents.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"


@dataclass(frozen=True)
class Section:
    """A part of the list of contents: pages, or rooms of the package for the reference."""

    title: str
    pages: tuple[str, ...] = ()
    rooms: tuple[str, ...] = ()


def sections() -> list[Section]:
    """All parts, in order; not those whose folder has no pages."""
    listed = [
        Section(
            each["title"],
            _pages_in(each["folder"]) if "folder" in each else tuple(each.get("pages", ())),
            tuple(each.get("rooms", ())),
        )
        for each in tomllib.loads((PAGES / "contents.toml").read_text())["section"]
    ]
    return [section for section in listed if section.pages or section.rooms]


def _pages_in(folder: str) -> tuple[str, ...]:
    """The pages of a folder: the one that begins it, then the others by name."""
    names = [f"{folder}/{path.stem}" for path in (PAGES / folder).glob("*.md")]
    return tuple(sorted(names, key=lambda name: (not name.endswith("/index"), name)))


def page_names() -> list[str]:
    """The names of all pages, which are their paths without the ending."""
    return [name for section in sections() for name in section.pages]


def room_names() -> list[str]:
    """The rooms that the reference describes."""
    return [room for section in sections() for room in section.rooms]


def source_of(page: str) -> Path:
    """The Markdown of a page."""
    return PAGES / f"{page}.md"


def reference_page(room: str) -> str:
    """The name of the page that describes a room."""
    return f"reference/{room.removeprefix('caldera.')}"
