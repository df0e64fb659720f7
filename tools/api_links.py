"""In the documentation a name such as `op.matmul` or `nn.Dense(10)` leads to its description.

An extension of Python-Markdown, which the generator of the documentation is built on: code that is
a name of the package becomes a cross-reference of `mkdocstrings`, where there is such a name.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

ROOMS = (
    "audio",
    "cd",
    "comm",
    "compress",
    "data",
    "dmath",
    "dm",
    "export",
    "io",
    "nn",
    "onnx",
    "op",
    "optim",
    "parallel",
    "serve",
    "sklearn",
    "testing",
)
_NAME = re.compile(rf"((?:caldera|{'|'.join(ROOMS)})(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?$", re.DOTALL)


def target_of(code: str) -> str | None:
    """The full name of what a piece of code names, if it is a name of the package.

    >>> target_of("nn.Dense(10)"), target_of("cd.fit"), target_of("x + 1")
    ('caldera.nn.Dense', 'caldera.fit', None)
    """
    found = _NAME.match(code)
    if found is None:
        return None
    room, _, rest = found[1].partition(".")
    room = "dmath" if room == "dm" else room
    return f"caldera.{rest}" if room in ("cd", "caldera") else f"caldera.{room}.{rest}"


class _Links(Treeprocessor):
    def run(self, root: Element) -> None:
        for parent in root.iter():
            if parent.tag in ("a", "pre", "autoref"):
                continue
            for place, child in enumerate(parent):
                target = target_of(child.text or "") if child.tag == "code" else None
                if target is not None:
                    parent[place] = _reference(child, target)


def _reference(code: Element, target: str) -> Element:
    link = Element("autoref", identifier=target, optional="")
    link.tail, code.tail = code.tail, None
    SubElement(link, "code").text = code.text
    return link


class ApiLinks(Extension):
    """What the generator asks for."""

    def extendMarkdown(self, md: Markdown) -> None:
        # After the inline patterns (20), which make the elements of code.
        md.treeprocessors.register(_Links(md), "api_links", 15)


def makeExtension(**options: Any) -> ApiLinks:
    return ApiLinks(**options)
