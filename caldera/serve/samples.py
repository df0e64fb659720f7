"""Conversion of requests to model inputs, with an error for each invalid part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from caldera.base.plain_data import unique_keys
from caldera.core.tensor.dtype import bool_, canonical, is_float, is_integer
from caldera.data.schema import Features
from caldera.data.sources.base import SCALE, scaled
from caldera.data.tables.table import MARKS, Table, column_of
from caldera.data.tables.text_encoder import TextEncoder
from caldera.data.tables.text_parsing import parse_text
from caldera.data.transforms.decode import Decoder, ImageSize
from caldera.errors import DataError
from caldera.io.csv_files import INTEGER, as_float
from caldera.serve.http import Limits, Refusal, shown
from caldera.serve.signature import Contract

_EXACT = 2.0**53
"""Largest integer up to which float64 represents all integers."""
JSON, CSV, PLAIN = "application/json", "text/csv", "text/plain"


class RequestReader:
    """Reads samples for a model, from the body of a request."""

    def __init__(self, contract: Contract, limits: Limits) -> None:
        self._contract = contract
        self._limits = limits
        self._size = int(np.prod(contract.shape))
        self._decoder = Decoder(contract.shape[0], "image") if contract.kind == "image" else None

    def read(self, content_type: str, body: bytes) -> Features:
        """Return the samples, one per row, and notes about filled values."""
        kind = content_type.partition(";")[0].strip().lower()
        if kind == JSON or kind.endswith("+json"):
            return self._from_json(body)
        if kind == CSV:
            return self._from_csv(body)
        if kind == PLAIN and self._contract.kind == "text":
            return self._from_texts([_utf8(body)])
        if kind.startswith("image/") and self._decoder is not None:
            return Features(self._from_image(body, self._decoder), [])
        raise Refusal.build(
            415,
            "content-type",
            expected=" or ".join(self._contract.content_types),
            got=shown(kind) if kind else "none",
        )

    # --- JSON

    def _from_json(self, body: bytes) -> Features:
        try:
            given = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=unique_keys)
        except RecursionError:
            raise Refusal.build(
                400, "body", expected="JSON", got="lists in lists without end"
            ) from None
        except ValueError as error:
            raise Refusal.build(
                400, "body", expected="JSON", got=str(error)[:200], hint=self._hint()
            ) from None
        samples = given.get("samples") if isinstance(given, dict) else None
        if not isinstance(samples, list) or set(given) != {"samples"}:
            raise self._unreadable("body", '{"samples": [...]}', _kind_of(given))
        self._check_count(len(samples))
        if self._contract.kind == "table":
            return self._from_rows(samples)
        if self._contract.kind == "text":
            name = self._contract.text_column
            return self._from_texts(
                [
                    each[name] if isinstance(each, dict) and list(each) == [name] else each
                    for each in samples
                ]
            )
        return Features(self._checked(self._from_lists(samples)), [])

    def _from_texts(self, texts: list[Any]) -> Features:
        schema = self._contract.schema
        assert schema is not None
        assert schema.text is not None
        for number, each in enumerate(texts):
            if not isinstance(each, str):
                expected = f'a text, or {{"{self._contract.text_column}": a text}}'
                raise self._unreadable(f"sample {number}", expected, _kind_of(each))
        return Features(schema.text.transform(texts).astype(canonical(self._contract.dtype)), [])

    def _from_rows(self, samples: list[Any]) -> Features:
        """Return rows of a table, with the names of columns or in their order."""
        if all(isinstance(each, dict) for each in samples):
            names = list(samples[0])
            for number, each in enumerate(samples):
                if each.keys() != samples[0].keys():
                    raise self._unreadable(
                        f"sample {number}",
                        "the same columns as the first sample has",
                        shown(list(each)),
                    )
            columns = [[each[name] for each in samples] for name in names]
        else:
            names = []
            widths = {len(each) if isinstance(each, list) else -1 for each in samples}
            if len(widths) != 1 or -1 in widths:
                expected = "objects with the names of columns, or lists of equal length"
                raise self._unreadable("samples", expected, shown(samples))
            columns = [list(each) for each in zip(*samples, strict=True)]
            known = self._contract.schema.names if self._contract.schema is not None else ()
            if len(known) == len(columns):
                # The columns are in the schema's order; the names are used in error messages.
                names = list(known)
        found = [
            column_of(each, f"column {shown(place)}")
            for place, each in zip(names or range(len(columns)), columns, strict=True)
        ]
        return self._encoded(
            Table(tuple(names), tuple(found), np.arange(len(samples)), "samples", "sample")
        )

    def _encoded(self, table: Table) -> Features:
        """Encode rows of a table as inputs of the model."""
        schema = self._contract.schema
        assert schema is not None
        places = schema.place(table.names, table.width, "samples").inputs
        x, notes = schema.encode(table, places)
        if notes and self._limits.strict:
            expected = "rows like the training rows of the model"
            raise Refusal.build(422, "samples", expected=expected, got="; ".join(notes))
        return Features(self._checked(x), notes)

    def _from_lists(self, samples: list[Any]) -> np.ndarray:
        try:
            types = _leaf_types(samples)
        except RecursionError:
            raise self._unreadable("samples", self._shape(), "lists in lists") from None
        if wrong := types - {int, float}:
            names = ", ".join(sorted(_JSON_NAMES.get(each, each.__name__) for each in wrong))
            raise self._unreadable("samples", f"numbers in lists, {self._shape()}", names)
        array = self._array(samples, exact=float not in types)
        if array.shape[1:] == self._contract.shape:
            return array
        if array.shape[1:] == (self._size,):
            return array.reshape(-1, *self._contract.shape)
        raise self._unreadable("samples", self._shape(), f"of shape {list(array.shape[1:])}")

    def _array(self, samples: list[Any], *, exact: bool) -> np.ndarray:
        """Return an array of the samples: float64, or the model's integer dtype if `exact`."""
        own = canonical(self._contract.dtype)
        dtype = own if exact and is_integer(own) else canonical("float64")
        try:
            return np.array(samples, dtype)
        except OverflowError:
            expected = f"numbers in the range of {dtype}"
            raise self._unreadable("samples", expected, "others") from None
        except (ValueError, TypeError, RecursionError):
            got = "lists of different lengths"
            raise self._unreadable("samples", self._shape(), got) from None

    # --- CSV and images

    def _from_csv(self, body: bytes) -> Features:
        if not body.strip():
            raise Refusal.build(400, "body", expected="rows of a table", got="an empty body")
        try:
            table = parse_text(body, "body", MARKS, delimiter=",", encoding="utf-8")
        except DataError as error:
            raise Refusal(400, str(error)) from None
        self._check_count(len(table))
        if self._contract.kind == "table":
            if len(set(table.names)) < len(table.names):
                raise Refusal.build(
                    422,
                    "row 0",
                    expected="a distinct name for each column",
                    got=shown(list(table.names)),
                )
            return self._encoded(table)
        if self._contract.kind == "text":
            return self._from_text_column(table)
        texts = zip(*(each.tolist() for each in table.columns), strict=True)
        values = [[_number_or_text(each or "") for each in row] for row in texts]
        return Features(self._checked(self._from_lists(values)), [])

    def _from_text_column(self, table: Table) -> Features:
        name = self._contract.text_column
        if name not in table.names:
            raise Refusal.build(
                422,
                "row 0",
                expected=f"the names of columns, {name!r} among them",
                got=shown(list(table.names)) if table.names else "none",
            )
        texts = TextEncoder.parse(table, table.names.index(name))
        return self._from_texts(["" if each is None else each for each in texts])

    def _from_image(self, body: bytes, decode: Decoder) -> np.ndarray:
        try:
            size = decode.size(body)
            if size.height * size.width > self._limits.pixels:
                raise Refusal.build(
                    413,
                    "image",
                    expected=f"at most {self._limits.pixels} pixels",
                    got=f"{size.height}x{size.width}",
                    hint="make it smaller first",
                )
            pixels = decode(body, ImageSize(*self._contract.shape[1:]), resize=True)[None]
        except DataError as error:
            raise Refusal(422, str(error)) from None
        dtype = canonical(self._contract.dtype)
        return scaled(pixels, SCALE if is_float(dtype) else None).astype(dtype)

    # --- what is common to all of them

    def _check_count(self, count: int) -> None:
        if count > self._limits.samples:
            raise Refusal.build(
                413,
                "body",
                expected=f"at most {self._limits.samples} samples",
                got=f"{count}",
                hint="send them in several requests",
            )
        if count == 0:
            raise Refusal.build(422, "body", expected="at least one sample", got="none")

    def _checked(self, array: np.ndarray) -> np.ndarray:
        """Return the samples in the model's dtype, if that can hold them."""
        dtype = canonical(self._contract.dtype)
        if array.dtype == dtype:
            return array
        if not is_float(dtype):
            # Beyond 2^53 a number with a point has been rounded to another one.
            limits = (0, 1) if dtype == bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            whole = (array == np.floor(array)) & (np.abs(array) < _EXACT)
            if not (whole & (array >= limits[0]) & (array <= limits[1])).all():
                raise self._unreadable("samples", f"integers ({dtype})", "others")
            return array.astype(dtype)
        with np.errstate(over="ignore"):
            found = array.astype(dtype)
        if not np.isfinite(found).all():
            raise self._unreadable("samples", f"finite numbers in the range of {dtype}", "others")
        return found

    def _shape(self) -> str:
        shape = list(self._contract.shape)
        either = f"samples of shape {shape}"
        return either if len(shape) == 1 else f"{either} or lists of {self._size} numbers"

    def _unreadable(self, where: str, expected: str, got: str) -> Refusal:
        return Refusal.build(422, where, expected=expected, got=got, hint=self._hint())

    def _hint(self) -> str:
        text = json.dumps({"samples": [self._contract.example()]})
        if len(text) > 200:
            text = '{"samples": [[...], ...]}'
        return f"send {text}, or see /model"


_JSON_NAMES: dict[type, str] = {
    dict: "objects",
    str: "texts",
    bool: "true or false",
    type(None): "null",
}


def _utf8(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal.build(400, "body", expected="text as UTF-8", got="other bytes") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which JSON does not have")


def _number_or_text(text: str) -> float | str:
    found = as_float(text)
    if found is None:
        return text
    return int(text) if INTEGER.fullmatch(text) and np.isfinite(found) else found


def _kind_of(value: Any) -> str:
    """Return a description of a value for messages."""
    if isinstance(value, dict):
        return f"an object with {shown(list(value))}" if value else "an empty object"
    return {list: "a list", type(None): "null"}.get(type(value)) or shown(value)


def _leaf_types(lists: Sequence[Any]) -> set[type]:
    """Return the types of the leaves of nested lists, with no Python loop at the innermost."""
    found = set(map(type, lists))
    if list not in found:
        return found
    return (found - {list}).union(*(_leaf_types(each) for each in lists if type(each) is list))
