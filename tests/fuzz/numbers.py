"""Writes numbers as people do, and compares what tables, files and services read with what was
written: each column is read as equal, or refused.

    python -m tests.fuzz.numbers --count 2000
    python -m tests.fuzz.numbers --seed 17 --count 1 --shown

A column in one convention is trained on. One in another convention is then given to its model: as
a file, a list of rows or a dict of columns, and as a request of CSV or JSON, of one row and of
several. A text such as 41.548 that is also how the training column would write another number
cannot be told from it, and is counted apart.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from caldera import data
from caldera.data import Schema
from caldera.errors import CalderaError
from caldera.serve.http import Limits, Refusal
from caldera.serve.samples import RequestReader
from caldera.serve.signature import Contract

THIN, NARROW, WIDE, APOSTROPHE = "\u2009", "\u202f", "\u00a0", "\u2019"
CONVENTIONS: dict[str, dict[str, Any]] = {
    "point": {"decimal": "."},
    "comma": {"decimal": ","},
    "american": {"decimal": ".", "group": ","},
    "german": {"decimal": ",", "group": "."},
    "french": {"decimal": ",", "group": NARROW},
    "french of old": {"decimal": ",", "group": WIDE},
    "space": {"decimal": ".", "group": " "},
    "thin space": {"decimal": ".", "group": THIN},
    "swiss": {"decimal": ".", "group": "'"},
    "swiss in print": {"decimal": ".", "group": APOSTROPHE},
    "indian": {"decimal": ".", "group": ",", "sizes": (3, 2)},
    "exponent": {"decimal": ".", "exponent": True},
    "comma and exponent": {"decimal": ",", "exponent": True},
    "per cent": {"decimal": ",", "around": "{} %", "hundred": True},
    "per cent, american": {"decimal": ".", "group": ",", "around": "{}%", "hundred": True},
    "kilograms": {"decimal": ".", "around": "{} kg"},
    "square metres": {"decimal": ",", "group": ".", "around": "{} m\u00b2"},
    "degrees": {"decimal": ".", "around": "{} \u00b0C"},
    "euro": {"decimal": ",", "group": ".", "around": "{} \u20ac"},
    "dollar": {"decimal": ".", "group": ",", "around": "${}"},
    "dollar in parentheses": {"decimal": ".", "group": ",", "around": "${}", "minus": "({})"},
    "minus sign": {"decimal": ".", "minus": "\u2212{}"},
    "minus sign and comma": {"decimal": ",", "minus": "\u2212{}"},
    "parentheses": {"decimal": ".", "group": ",", "minus": "({})"},
    "parentheses and comma": {"decimal": ",", "group": ".", "minus": "({})"},
    "minus after": {"decimal": ",", "group": ".", "minus": "{}-"},
    "minus after and point": {"decimal": ".", "minus": "{}-"},
    "plus": {"decimal": ",", "plus": "+{}"},
    "padded": {"decimal": ".", "around": "  {} "},
}


def written(
    value: Decimal,
    decimal: str,
    group: str = "",
    *,
    sizes: tuple[int, int] = (3, 3),
    around: str = "{}",
    minus: str = "-{}",
    plus: str = "{}",
    hundred: bool = False,
    exponent: bool = False,
) -> str:
    """A number in a convention: its groups have `sizes` digits, the last one and those before."""
    size = value.copy_abs().scaleb(2 if hundred else 0)
    if exponent:
        text = f"{size:e}".replace(".", decimal)
    else:
        whole, _, fraction = f"{size:f}".partition(".")
        parts = [whole[-sizes[0] :]] if group else [whole]
        whole = whole[: -sizes[0]] if group else ""
        while whole:
            parts.insert(0, whole[-sizes[1] :])
            whole = whole[: -sizes[1]]
        text = group.join(parts) + (decimal + fraction if fraction else "")
    text = around.format(text)
    return (minus if value < 0 else plus).format(text)


def drawn(random: Random, count: int) -> list[Decimal]:
    """Numbers of one size, with as many or with different decimals."""
    largest, places = random.choice([2.0, 10.0, 1e3, 1e6, 1e9]), random.randrange(6)
    varies, signs = random.random() < 0.3, random.choice([(1,), (1, 1, -1)])
    found = []
    for _ in range(count):
        step = Decimal(1).scaleb(-random.randint(0, places) if varies else -places)
        size = largest ** random.uniform(-0.5, 1)
        value = Decimal(repr(random.choice(signs) * size)).quantize(step)
        found.append(value if value else abs(value))
    return found


class Case(NamedTuple):
    """What became of one way to give numbers."""

    seed: int
    what: str
    """equal, refused, as in training, or wrong."""
    count: int
    """Numbers."""
    detail: str = ""


def _source(random: Random, rows: list[dict[str, str]], folder: Path) -> Any:
    """The rows as a file with some delimiter, a list of rows, or a dict of columns."""
    how = random.choice([",", ";", "\t", "|", "rows", "dict"])
    if how == "rows":
        return rows
    if how == "dict":
        return {name: [row[name] for row in rows] for name in rows[0]}
    path = folder / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=how)
        writer.writerows([list(rows[0]), *(row.values() for row in rows)])
    return path


def or_refused(read: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except (CalderaError, Refusal):
        return None


def reader_of(schema: Schema, *, strict: bool = False) -> RequestReader:
    """A service's reader of requests for a model of a schema."""
    contract = Contract("m", "table", (len(schema.features),), "float32", schema, (), (1,))
    return RequestReader(contract, Limits(strict=strict))


def cases(seed: int, folder: Path) -> Iterator[Case]:
    """One column to train on, and several in another convention for its model."""
    random = Random(seed)
    known, other = random.choices(list(CONVENTIONS), k=2)
    other = known if random.random() < 0.3 else other
    values = drawn(random, random.choice([2, 4, 9, 30]))
    texts = [written(each, **CONVENTIONS[known]) for each in values]
    pairs = [{"x": text, "y": "ab"[n % 2]} for n, text in enumerate(texts)]
    more = {"kinds": {"x": "number"}, "test": 0, "scale": random.random() < 0.5}
    source = _source(random, pairs, folder)
    found = or_refused(lambda: data.table(source, "y", **more))
    if found is None:
        yield Case(seed, "refused", len(texts), f"training on {known}: {texts[:3]}")
        return
    column = found.schema.columns[0]
    mean, scale = (column.number.mean, column.number.scale) if column.number else (0.0, 1.0)
    wanted = _features(values, mean, scale)
    yield _compared(seed, found.train.x[:, 0], wanted, f"training on {known}: {texts[:3]}")
    plain = json.loads(json.dumps(found.schema.to_plain()))
    schema = Schema.from_plain(plain, "m")
    reader = reader_of(schema)
    fresh = drawn(random, 3) if random.random() < 0.3 else random.choices(values, k=3)
    if random.random() < 0.5:
        fresh = [each * random.choice([1, Decimal("0.5"), 2]) for each in fresh]
    for count in (1, len(fresh)):
        given, rows = fresh[:count], [written(each, **CONVENTIONS[other]) for each in fresh[:count]]
        wanted = _features(given, mean, scale)
        source = _source(random, [{"x": text} for text in rows], folder)
        text = io.StringIO()
        csv.writer(text).writerows([["x"], *([each] for each in rows)])
        body = text.getvalue().encode()
        lists = json.dumps({"samples": [{"x": each} for each in rows]}).encode()
        mixed = json.dumps(
            {
                "samples": [
                    [float(each) if random.random() < 0.5 else text]
                    for each, text in zip(given, rows, strict=True)
                ]
            }
        ).encode()
        ways = {
            "table": lambda source=source: data.table_inputs(source, schema),
            "CSV": lambda body=body: reader.read("text/csv", body).x,
            "JSON": lambda body=lists: reader.read("application/json", body).x,
            "numbers and texts of JSON": lambda body=mixed: reader.read("application/json", body).x,
        }
        for way, read in ways.items():
            detail = f"{known} {texts[:4]}, then {other} {rows} ({way})"
            again = or_refused(read)
            if again is None:
                yield Case(seed, "refused", count, detail)
                continue
            case = _compared(seed, again[:, 0], wanted, detail)
            meant = [_as_in_training(each, **CONVENTIONS[known]) for each in rows]
            if way.startswith("numbers"):
                # Those that were no texts are what they are.
                read = again[:, 0] * scale + mean
                pairs_of_two = zip(meant, given, read, strict=True)
                meant = [
                    b if a is None or abs(float(b) - c) < 1e-6 else a for a, b, c in pairs_of_two
                ]
            if case.what == "wrong" and None not in meant:
                as_known = _compared(seed, again[:, 0], _features(meant, mean, scale), detail)
                case = case._replace(what="as in training") if as_known.what == "equal" else case
            yield case


def _as_in_training(text: str, decimal: str, group: str = "", **more: Any) -> Decimal | None:
    """The number that the convention would have written as this text."""
    with suppress(InvalidOperation):
        value = Decimal((text.replace(group, "") if group else text).replace(decimal, "."))
        return value if written(value, decimal, group, **more) == text else None
    return None


def _features(values: Sequence[Any], mean: float, scale: float) -> Any:
    return (np.array([float(each) for each in values]) - mean) / scale


def _compared(seed: int, found: Any, wanted: Any, detail: str) -> Case:
    close = np.allclose(found, wanted, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(wanted).max() / 1e3))
    return Case(seed, "equal" if close else "wrong", len(wanted), detail)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any number is read as another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="columns to train on")
    parser.add_argument("--seed", type=int, default=0, help="of the first column")
    parser.add_argument("--shown", action="store_true", help="print what was refused too")
    options = parser.parse_args(arguments)
    numbers: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.count):
            for case in cases(seed, Path(folder)):
                numbers[case.what] += case.count
                if case.what == "wrong" or options.shown:
                    print(f"seed {seed}: {case.what}: {case.detail}", flush=True)
    print(", ".join(f"{count} numbers {what}" for what, count in sorted(numbers.items())))
    return int(numbers["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
