"""What every page has around its content: head, style sheet, index, script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping

from caldera.draw.html import Safe, join, tag
from caldera.draw.script import SCRIPT
from caldera.draw.stylesheet import STYLE


def document(title: str, index: Mapping[str, str], content: Iterable[Safe]) -> str:
    """The text of a page; `index` has the title of each part by its anchor."""
    body = join([_header(index), tag("main", *content), Safe(f"<script>{SCRIPT}</script>")])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', title)}<style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _policy() -> str:
    """Nothing is loaded from anywhere, and no script runs but the one that is meant."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _header(index: Mapping[str, str]) -> Safe:
    links = [tag("a", title, href=f"#{anchor}") for anchor, title in index.items()]
    inside = [
        tag("span", "Caldera", class_="brand"),
        tag("nav", *links, aria_label="parts of this page"),
        tag("button", "Dark", type="button", id="theme", hidden="hidden"),
    ]
    return tag("header", tag("div", *inside))
