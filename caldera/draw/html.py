"""Pieces of HTML: elements, tables, lists of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from caldera.draw.palette import named
from caldera.draw.svg import SANS, element, number, safe


class Safe(str):
    """Text that is HTML already."""


def tag(name: str, *children: str, **attributes: object) -> Safe:
    """An element; its children are escaped unless they are HTML.

    >>> tag("p", "a < b", tag("b", "c"), class_="note")
    '<p class="note">a &lt; b<b>c</b></p>'
    """
    inside = [child if isinstance(child, Safe) else safe(child) for child in children]
    # An element of HTML without content still has two ends.
    return Safe(element(name, *(inside or [""]), **attributes))


def image(address: str, label: str) -> Safe:
    """A picture that is not SVG; `label` is for those who do not see it.

    >>> image("data:image/png;base64,", "a cat")
    '<img src="data:image/png;base64," alt="a cat"/>'
    """
    return Safe(element("img", src=address, alt=label))


def join(parts: Iterable[Safe]) -> Safe:
    """Pieces one after the other."""
    return Safe("".join(parts))


def table(
    head: Sequence[str] | None,
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    foot: Iterable[Sequence[str]] = (),
) -> Safe:
    """A table; columns whose index is in `numbers` are set to the right.

    What is wider than its place is scrolled there, with the keyboard as well.
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
    """Something that may be wider than its place."""
    return tag("div", content, class_=class_, tabindex="0", role="group", aria_label=label)


def facts(values: Mapping[str, object]) -> Safe:
    """Names with their values."""
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", str(v))) for name, v in values.items()
    ]
    return tag("table", tag("tbody", *rows), class_="facts")


def card(title: str, *content: Safe, note: str = "", class_: str = "") -> Safe:
    """A box with a title."""
    head = [tag("h3", title)] + ([tag("p", note, class_="quiet")] if note else [])
    return tag("div", *head, *content, class_=f"card {class_}".strip())


def section(anchor: str, title: str, *content: Safe, note: str = "") -> Safe:
    """A part of the page that its index leads to."""
    head = [tag("h2", title)] + ([tag("p", note, class_="quiet")] if note else [])
    return tag("section", *head, *content, id=anchor)


def folded(title: str, content: Safe) -> Safe:
    """Something that is seen only when asked for."""
    return tag("details", tag("summary", title), content)


def tiles(values: Iterable[tuple[str, str]]) -> Safe:
    """Names with values that are seen first."""
    each = [tag("div", tag("b", value), tag("span", name), class_="tile") for name, value in values]
    return tag("div", *each, class_="tiles")


def inline_svg(
    width: float, height: float, *content: str, class_: str, label: str, **more: object
) -> Safe:
    """A picture of the page, as wide as the style sheet says, in the page's own colours."""
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
