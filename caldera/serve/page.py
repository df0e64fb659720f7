"""The page on which a model can be tried: a row of a table, a text, a drawn digit, an array."""

from __future__ import annotations

import json
import math
from functools import cache

from caldera.data import Column
from caldera.draw.page import FONTS, Safe, digest, file_beside, join, tag, variables
from caldera.draw.svg import DARK, LIGHT
from caldera.serve.signature import Contract

_LARGEST_DRAWN = 64
"""Pixels of a side, up to which images are small enough to draw them by hand."""
_LONGEST_LINE = 120
"""Letters of an example on one line."""


def page(contract: Contract) -> bytes:
    """Return the page for a model."""
    content = [
        tag("h1", contract.name),
        tag("p", _about(contract), class_="quiet"),
        tag(
            "div",
            tag("section", *_form(contract), class_="card", aria_label="input"),
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
            Safe(f"<script>{file_beside(__file__, 'page.js')}</script>"),
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
    """Return the content security policy of the page.

    It allows the page's own script, and requests to this service.
    """
    script, style = digest(file_beside(__file__, "page.js")), digest(_style())
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
        return f"{takes}; returns one of {len(contract.classes)} classes for each."
    return f"{takes}; returns {contract.target or 'values'}."


def _form(contract: Contract) -> list[Safe]:
    if contract.kind == "image":
        return _image_form(contract)
    if contract.kind == "table":
        title, fields = "A row", [_table_fields(contract)]
    elif contract.kind == "text":
        title = "A text"
        label = tag("label", contract.text_column, for_="text")
        fields = [label, tag("textarea", id="text", rows="8")]
    else:
        title, example = "An array", json.dumps(contract.example())
        label = tag("label", "One sample, as JSON", for_="array")
        fields = [label, tag("textarea", example, id="array", rows="8", spellcheck="false")]
    button = tag("button", "Predict", type="submit", class_="strong")
    return [tag("h2", title), tag("form", *fields, button, id="form")]


def _table_fields(contract: Contract) -> Safe:
    assert contract.schema is not None
    fields = []
    for number, column in enumerate(contract.schema.columns):
        anchor = f"column{number}"
        label = tag("label", column.name or f"column {column.position}", for_=anchor)
        fields.append(tag("div", label, _field(column, anchor, number)))
    return tag("div", *fields, class_="fields")


def _field(column: Column, anchor: str, number: int) -> Safe:
    """Return the input field of a column: a text or a choice of categories; empty is missing."""
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
    slider, value = _slider(column, anchor)
    if slider:
        settings["value"] = value
    box = tag(
        "input",
        id=anchor,
        data_column=str(number),
        type="text",
        autocomplete="off",
        inputmode="decimal" if column.kind == "number" else "text",
        placeholder=str(example),
        **settings,
    )
    return join([box, slider])


def _slider(column: Column, anchor: str) -> tuple[Safe, str]:
    """A slider over the range that training saw, for a number that has one, and the median."""
    if column.kind != "number" or not column.seen or column.seen[0] == column.seen[-1]:
        return Safe(""), ""
    low, high = column.seen[0], column.seen[-1]
    step = 10.0 ** math.floor(math.log10((high - low) / 50))
    if all(each == int(each) for each in column.seen):
        step = max(step, 1.0)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    # Numbers such as times in seconds differ in their last digits only.
    digits = 6 + max(0, math.floor(math.log10(max(-low, high) / (high - low))))
    least, most, median = (f"{each:.{digits}g}" for each in (low, high, column.seen[2]))
    slider = tag(
        "input",
        type="range",
        min=least,
        max=most,
        step=f"{step:.9g}",
        value=median,
        data_for=anchor,
        aria_label=f"{column.title}, from {least} to {most}",
    )
    return slider, median


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
        tag("p", "No prediction yet.", id="said", role="status"),
        Safe('<canvas id="seen" hidden role="img" aria-label="input image of the model"></canvas>'),
        tag("div", id="bars"),
        class_="card",
        aria_label="prediction",
    )


def _usage(contract: Contract) -> Safe:
    """Return examples of requests from programs."""
    sample = json.dumps({"samples": [contract.example()]}, ensure_ascii=False)
    if len(sample) > _LONGEST_LINE and contract.kind != "table":
        sample = '{"samples": [[...], ...]}'
    elif len(sample) > _LONGEST_LINE:
        sample = json.dumps({"samples": [contract.example()]}, ensure_ascii=False, indent=1)
    # As a shell reads an apostrophe between apostrophes.
    sample = sample.replace("'", "'\\''")
    lines = [f"curl ADDRESS/predict --json '{sample}'"]
    if contract.kind == "image":
        kind = "-H 'content-type: image/png'"
        lines.append(f"curl ADDRESS/predict {kind} --data-binary @image.png")
    else:
        kinds = "-H 'content-type: text/csv' -H 'accept: text/csv'"
        lines.append(f"curl ADDRESS/predict {kinds} --data-binary @rows.csv")
    links = [
        tag("a", name, href=name) for name in ("/model", "/openapi.json", "/health", "/metrics")
    ]
    return tag(
        "section",
        tag("h2", "From a program"),
        tag("pre", tag("code", "\n".join(lines)), id="curl", tabindex="0"),
        tag("p", *[part for link in links for part in (link, " ")], class_="quiet"),
        class_="card",
        aria_label="from a program",
    )


@cache
def _style() -> str:
    return (
        f":root{{color-scheme:light dark;{variables(FONTS)}{variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
        f"{file_beside(__file__, 'page.css')}"
    )
