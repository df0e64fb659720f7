"""The page on which a model can be tried: a row of a table, a text, a drawn digit, an array."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from caldera.data import Column
from caldera.draw.page import Safe, join, tag
from caldera.draw.svg import DARK, LIGHT, MONO, SANS
from caldera.serve.signature import Contract

_LARGEST_DRAWN = 64
"""Pixels of a side, up to which images are small enough to draw them by hand."""


def page(contract: Contract) -> bytes:
    """The page for a model."""
    content = [
        tag("h1", contract.name),
        tag("p", _about(contract), class_="quiet"),
        tag(
            "div",
            tag("section", *_form(contract), class_="card", aria_label="what goes in"),
            _result(),
            class_="columns",
        ),
        _usage(contract),
    ]
    known = json.dumps({"kind": contract.kind, "shape": contract.shape}).replace("<", "\\u003c")
    body = join(
        [
            tag("main", *content),
            Safe(f'<script type="application/json" id="contract">{known}</script>'),
            Safe(f"<script>{_file('page.js')}</script>"),
        ]
    )
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"{tag('title', contract.name + ' · Caldera')}<style>{_style()}</style></head>"
        f"<body>{body}</body></html>\n"
    )
    return text.encode("utf-8", "replace")


@cache
def policy() -> str:
    """What the page may do: run its own script, and ask this service."""
    script, style = _digest(_file("page.js")), _digest(_style())
    return (
        f"default-src 'none'; script-src {script}; style-src {style};"
        " connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _about(contract: Contract) -> str:
    takes = {
        "table": "Takes rows of a table",
        "text": "Takes texts",
        "image": f"Takes images, brought to {'x'.join(map(str, contract.shape[1:]))} pixels",
        "array": f"Takes arrays of shape {list(contract.shape)}",
    }[contract.kind]
    if contract.classes:
        return f"{takes}; says which of {len(contract.classes)} classes each belongs to."
    target = contract.schema.target.name if contract.schema and contract.schema.target else ""
    return f"{takes}; gives {target or 'values'}."


def _form(contract: Contract) -> list[Safe]:
    if contract.kind == "table":
        return _table_form(contract)
    if contract.kind == "image":
        return _image_form(contract)
    if contract.kind == "text":
        return _text_form(contract)
    example = json.dumps(contract.example())
    return [
        tag("h2", "An array"),
        tag(
            "form",
            tag("label", "One sample, as JSON", for_="array"),
            tag("textarea", example, id="array", rows="8", spellcheck="false"),
            tag("button", "Predict", type="submit", class_="strong"),
            id="form",
        ),
    ]


def _text_form(contract: Contract) -> list[Safe]:
    return [
        tag("h2", "A text"),
        tag(
            "form",
            tag("label", contract.text_column, for_="text"),
            tag("textarea", id="text", rows="8"),
            tag("button", "Predict", type="submit", class_="strong"),
            id="form",
        ),
    ]


def _table_form(contract: Contract) -> list[Safe]:
    assert contract.schema is not None
    fields = []
    for number, column in enumerate(contract.schema.columns):
        anchor = f"column{number}"
        label = column.name or f"column {column.position}"
        fields.append(
            tag(
                "div",
                tag("label", label, for_=anchor),
                _field(column, anchor, number),
            )
        )
    button = tag("button", "Predict", type="submit", class_="strong")
    return [
        tag("h2", "A row"),
        tag("form", tag("div", *fields, class_="fields"), button, id="form"),
    ]


def _field(column: Column, anchor: str, number: int) -> Safe:
    """Where a value is written, or chosen among categories; empty is missing, where that may be."""
    if column.category is not None:
        options = [tag("option", each, value=each) for each in column.category.categories]
        return tag(
            "select",
            *options,
            tag("option", "missing", value=""),
            id=anchor,
            data_column=str(number),
        )
    example = column.encoder.example() if column.encoder is not None else 0
    if column.text is not None:
        return tag(
            "textarea", id=anchor, data_column=str(number), rows="4", placeholder=str(example)
        )
    settings = {} if column.encoder is not None else {"required": "required"}
    return tag(
        "input",
        id=anchor,
        data_column=str(number),
        type="text",
        autocomplete="off",
        inputmode="decimal" if column.kind == "number" else "text",
        placeholder=str(example),
        **settings,
    )


def _image_form(contract: Contract) -> list[Safe]:
    parts = []
    channels, height, width = contract.shape
    if channels == 1 and max(height, width) <= _LARGEST_DRAWN:
        parts += [
            tag("h2", "Draw"),
            tag(
                "canvas",
                id="pad",
                width="280",
                height=str(round(280 * height / width)),
                role="img",
                aria_label="a field to draw in, white on black",
                tabindex="0",
            ),
            tag("div", tag("button", "Clear", type="button", id="clear"), class_="tools"),
        ]
    parts += [
        tag("h2", "Or an image" if parts else "An image"),
        tag("label", "A file; drop one anywhere on this page, too", for_="file"),
        Safe('<input id="file" type="file" accept="image/*">'),
    ]
    return parts


def _result() -> Safe:
    return tag(
        "section",
        tag("h2", "Prediction"),
        tag("p", "Nothing yet.", id="said", role="status"),
        Safe('<canvas id="seen" hidden role="img" aria-label="what the model sees"></canvas>'),
        tag("div", id="bars"),
        class_="card",
        aria_label="prediction",
    )


def _usage(contract: Contract) -> Safe:
    """How a program asks for the same."""
    sample = json.dumps({"samples": [contract.example()]})
    if len(sample) > 120:
        sample = '{"samples": [[...], ...]}'
    lines = [f"curl ADDRESS/predict --json '{sample}'"]
    if contract.kind == "image":
        kind = "-H 'content-type: image/png'"
        lines.append(f"curl ADDRESS/predict {kind} --data-binary @image.png")
    else:
        kinds = "-H 'content-type: text/csv' -H 'accept: text/csv'"
        lines.append(f"curl ADDRESS/predict {kinds} --data-binary @rows.csv")
    links = [tag("a", name, href=name) for name in ("/model", "/health", "/metrics")]
    return tag(
        "section",
        tag("h2", "From a program"),
        tag("pre", tag("code", "\n".join(lines)), id="curl", tabindex="0"),
        tag("p", *_between(links), class_="quiet"),
        class_="card",
        aria_label="from a program",
    )


def _between(links: list[Safe]) -> list[str]:
    parts: list[str] = []
    for link in links:
        parts += [link, " "]
    return parts


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    fonts = _variables({"sans": SANS, "mono": MONO})
    return (
        f":root{{color-scheme:light dark;{fonts}{_variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}{_file('page.css')}"
    )


def _variables(values: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in values.items())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
