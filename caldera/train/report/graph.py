"""The picture of the training step, taken from its file element by element.

A file could hold anything, scripts included. So only elements and attributes that our own pictures
have are copied, and links lead nowhere but to the same page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from caldera.draw.html import Safe, join, section, tag
from caldera.draw.palette import named
from caldera.draw.svg import element, safe
from caldera.errors import DataError
from caldera.train.tracking.run_record import RunRecord

_SPACE = "{http://www.w3.org/2000/svg}"
_ELEMENTS = frozenset(
    ("svg", "g", "rect", "path", "polygon", "circle", "text", "title", "a", "defs", "marker")
)
_ATTRIBUTES = frozenset(
    (
        "id",
        "class",
        "x",
        "y",
        "width",
        "height",
        "rx",
        "cx",
        "cy",
        "r",
        "d",
        "points",
        "fill",
        "stroke",
        "stroke-width",
        "stroke-opacity",
        "stroke-dasharray",
        "font-size",
        "text-anchor",
        "viewBox",
        "refX",
        "refY",
        "markerWidth",
        "markerHeight",
        "orient",
        "marker-end",
        "href",
    )
)
_PLAIN = re.compile(r"[^()]*|url\(#[\w-]+\)")
_DEEPEST = 100


def graph_section(record: RunRecord, picture: str | None) -> Safe:
    """The graph as it was written and as it runs."""
    if picture is None:
        return section("graph", "Graph", note="The run has no picture of its graph.")
    profile = record.profile
    note = "Forward, loss, gradients and updates: one graph. "
    if profile is not None:
        note += (
            f"{profile.nodes_as_written} operations as written, "
            f"{profile.nodes_optimised} after optimisation, in {len(profile.steps)} kernel calls. "
        )
    panels = ("Both", "As written", "As it runs")
    return section("graph", "Graph", viewer(picture, panels, opened=1), note=note)


def viewer(picture: str, panels: Sequence[str] = (), opened: int | None = None) -> Safe:
    """A picture to move about in; with several panels, buttons for all of them and for each.

    The panel of the number `opened` is seen first.
    """
    tools = [
        tag("button", label, type="button", data_panel=str(number))
        for number, label in enumerate(panels, -1)
    ]
    tools += [
        tag("button", "+", type="button", data_zoom="in", aria_label="closer"),
        tag("button", "\u2212", type="button", data_zoom="out", aria_label="farther"),
    ]
    hint = tag(
        "span",
        "Drag to move, double-click or Ctrl and wheel to come closer; dashed marks lead to "
        "where a value is made.",
        class_="quiet",
    )
    return join(
        [
            tag("div", join(tools), hint, class_="tools", hidden="hidden"),
            tag(
                "div",
                Safe(named(trusted(picture))),
                class_="graph",
                tabindex="0",
                role="group",
                aria_label="graph; arrow keys move it, plus and minus come closer and go farther",
                **({} if opened is None else {"data_open": str(opened)}),
            ),
        ]
    )


def trusted(picture: str) -> str:
    """The picture with nothing in it but what ours have.

    >>> trusted('<svg xmlns="http://www.w3.org/2000/svg"><script>x</script><g onclick="x" id="a"/>'
    ...         '</svg>')
    '<svg><g id="a"/></svg>'
    """
    try:
        root = ElementTree.fromstring(picture)
    except ElementTree.ParseError as problem:
        raise DataError.build("graph.svg", expected="SVG", got=str(problem)) from None
    if root.tag != f"{_SPACE}svg":
        raise DataError.build("graph.svg", expected="SVG", got=root.tag[:80])
    attributes = _attributes(root)
    # The page decides how large it is shown.
    attributes.pop("width", None)
    attributes.pop("height", None)
    return element("svg", *_children(root, 1), **attributes)


def _children(parent: ElementTree.Element, depth: int) -> list[str]:
    if depth > _DEEPEST:
        raise DataError.build(
            "graph.svg", expected=f"at most {_DEEPEST} elements inside each other", got="more"
        )
    found = [safe(parent.text)] if parent.text and parent.text.strip() else []
    for child in parent:
        name = str(child.tag).removeprefix(_SPACE)
        if name in _ELEMENTS:
            found.append(element(name, *_children(child, depth + 1), **_attributes(child)))
    return found


def _attributes(given: ElementTree.Element) -> dict[str, str]:
    return {
        # `element` takes "_" for "-".
        name.replace("-", "_") if name != "class" else "class_": value
        for name, value in given.attrib.items()
        if name in _ATTRIBUTES and _is_harmless(name, value)
    }


def _is_harmless(name: str, value: str) -> bool:
    if name == "href":
        return value.startswith("#")
    return _PLAIN.fullmatch(value) is not None
