"""HTML pages and their elements: style sheet, theme, index, tables and lists.

A page is one self-contained file. It requires no network access, and its content security policy
permits only the script of the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from caldera.draw.svg import DARK, LIGHT, MONO, SANS, element, named, number, safe

_WITHOUT_CONTENT = ("br", "hr", "img", "input")


class Safe(str):
    """Text that is HTML already."""


def tag(name: str, *children: str, **attributes: object) -> Safe:
    """Return an element; its children are escaped unless they are HTML.

    >>> tag("p", "a < b", tag("b", "c"), class_="note")
    '<p class="note">a &lt; b<b>c</b></p>'
    """
    inside = [child if isinstance(child, Safe) else safe(child) for child in children]
    # An element of HTML without content still has two ends, unless it can have no content.
    ends = [] if name in _WITHOUT_CONTENT else [""]
    return Safe(element(name, *(inside or ends), **attributes))


def image(address: str, label: str) -> Safe:
    """Return a picture that is not SVG; `label` is its alternative text.

    >>> image("data:image/png;base64,", "a cat")
    '<img src="data:image/png;base64," alt="a cat"/>'
    """
    return Safe(element("img", src=address, alt=label))


def join(parts: Iterable[Safe]) -> Safe:
    """Concatenate the parts."""
    return Safe("".join(parts))


def table(
    head: Sequence[str] | None,
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    foot: Iterable[Sequence[str]] = (),
) -> Safe:
    """Return a table; columns whose index is in `numbers` are aligned to the right.

    A table wider than its container can be scrolled, also with the keyboard.
    """

    def cell(kind: str, index: int, content: str, **more: str) -> Safe:
        return tag(kind, content, **more, **({"class_": "number"} if index in numbers else {}))

    def line(row: Sequence[str]) -> Safe:
        return tag("tr", *[cell("td", i, each) for i, each in enumerate(row)])

    parts = []
    if head is not None:
        names = [cell("th", i, each, scope="col") for i, each in enumerate(head)]
        parts.append(tag("thead", tag("tr", *names)))
    parts.append(tag("tbody", *map(line, rows)))
    last = [line(row) for row in foot]
    if last:
        parts.append(tag("tfoot", *last))
    return scrolled(tag("table", *parts), f"table of {', '.join(filter(None, head or ()))}")


def scrolled(content: Safe, label: str, class_: str = "scroll") -> Safe:
    """Return an element that scrolls if it is wider than the page."""
    return tag("div", content, class_=class_, tabindex="0", role="group", aria_label=label)


def facts(values: Mapping[str, object]) -> Safe:
    """Return names with their values."""
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", str(v))) for name, v in values.items()
    ]
    return tag("table", tag("tbody", *rows), class_="facts")


def card(title: str, *content: Safe, note: str = "", class_: str = "") -> Safe:
    """Return a box with a title."""
    return tag("div", *_headed("h3", title, note), *content, class_=f"card {class_}".strip())


def section(anchor: str, title: str, *content: Safe, note: str = "") -> Safe:
    """Return a part of the page that its index leads to."""
    return tag("section", *_headed("h2", title, note), *content, id=anchor)


def _headed(name: str, title: str, note: str) -> list[Safe]:
    return [tag(name, title)] + ([tag("p", note, class_="quiet")] if note else [])


def folded(title: str, content: Safe) -> Safe:
    """Return content that is collapsed until its title is clicked."""
    return tag("details", tag("summary", title), content)


def share_bar(share: float, title: str, class_: str = "share") -> Safe:
    """Return a bar as long as a share of its cell."""
    bar = tag("i", style=f"width:{100 * share:.1f}%")
    return tag("span", bar, class_=class_, title=title)


def tiles(values: Iterable[tuple[str, str]]) -> Safe:
    """Return tiles with the most important values and their names."""
    each = [tag("div", tag("b", value), tag("span", name), class_="tile") for name, value in values]
    return tag("div", *each, class_="tiles")


def inline_svg(
    width: float, height: float, *content: str, class_: str, label: str, **more: object
) -> Safe:
    """Return a picture for the page, in its colours and with the width of the style sheet."""
    return Safe(
        named(
            element(
                "svg",
                *content,
                viewBox=f"0 0 {number(width)} {number(height)}",
                class_=class_,
                font_family=SANS,
                role="img",
                aria_label=label,
                **more,
            )
        )
    )


def document(title: str, index: Mapping[str, str], content: Iterable[Safe]) -> str:
    """Return the text of a page; `index` has the title of each part by its anchor."""
    script = file_beside(__file__, "page.js")
    body = join([_header(index), tag("main", *content), Safe(f"<script>{script}</script>")])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', title)}<style>{_style()}</style></head>"
        f"<body>{body}</body></html>\n"
    )


@cache
def file_beside(module: str, name: str) -> str:
    """Read a text file in the folder of a module."""
    return (Path(module).parent / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """Return the colours of both themes and the fonts, then the rules that use them."""
    light = f"color-scheme:light;{variables(LIGHT)}"
    dark = f"color-scheme:dark;{variables(DARK)}"
    return (
        f":root{{{variables(FONTS)}{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}:root[data-theme=light]{{{light}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
        f"{file_beside(__file__, 'page.css')}"
    )


FONTS = {"sans": SANS, "mono": MONO}


def variables(values: Mapping[str, str]) -> str:
    """Return values as variables of a style sheet."""
    return "".join(f"--{name}:{value};" for name, value in values.items())


def _policy(script: str) -> str:
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """Return the checksum of a script or style by which a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _header(index: Mapping[str, str]) -> Safe:
    links = [tag("a", title, href=f"#{anchor}") for anchor, title in index.items()]
    inside = [
        tag("span", "Caldera", class_="brand"),
        tag("nav", *links, aria_label="parts of this page"),
        tag("button", "Dark", type="button", id="theme", hidden="hidden"),
    ]
    return tag("header", tag("div", *inside))
