"""The frame of every page: head, style sheet, theme, index, script.

A page is one file that needs nothing else. Nothing is loaded from anywhere, and no script runs but
the one that is meant.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from caldera.draw.html import Safe, join, tag
from caldera.draw.palette import DARK, LIGHT
from caldera.draw.svg import MONO, SANS


def document(title: str, index: Mapping[str, str], content: Iterable[Safe]) -> str:
    """The text of a page; `index` has the title of each part by its anchor."""
    script = _file("page.js")
    body = join([_header(index), tag("main", *content), Safe(f"<script>{script}</script>")])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', title)}<style>{_style()}</style></head>"
        f"<body>{body}</body></html>\n"
    )


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """The colours of both themes and the fonts, then the rules that use them."""
    light = f"color-scheme:light;{_variables(LIGHT)}"
    dark = f"color-scheme:dark;{_variables(DARK)}"
    return (
        f":root{{{_variables({'sans': SANS, 'mono': MONO})}{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}:root[data-theme=light]{{{light}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
        f"{_file('page.css')}"
    )


def _variables(values: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in values.items())


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _header(index: Mapping[str, str]) -> Safe:
    links = [tag("a", title, href=f"#{anchor}") for anchor, title in index.items()]
    inside = [
        tag("span", "Caldera", class_="brand"),
        tag("nav", *links, aria_label="parts of this page"),
        tag("button", "Dark", type="button", id="theme", hidden="hidden"),
    ]
    return tag("header", tag("div", *inside))
