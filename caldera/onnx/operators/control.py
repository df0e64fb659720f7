"""Branches, loops, sequences of tensors, optional values and strings.

Shapes are fixed in a plan, so a branch or the number of iterations of a loop is decided while the
model is traced; the value that decides it must be known then. `Scan` has a fixed number of
iterations and becomes `op.scan`, one body for any length. Sequences are lists, and a missing
optional value is None. Caldera has no dtype for strings, so string operators are Python functions
of NumPy object arrays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, DataError
from caldera.onnx.library import STRING
from caldera.onnx.operators.movement import concat
from caldera.onnx.operators.registry import (
    Value,
    axis_moved,
    axis_of,
    check_size,
    evaluated,
    integer,
    integers,
    is_known,
    known,
    known_if_possible,
    operator,
)
from caldera.onnx.reading import Graph

MOST_TURNS = 10_000
"""A loop that is longer than this while the model is written down is taken for an endless one."""


def _truth(value: Value) -> bool:
    return value is None or bool(known(value, "a condition").reshape(()))


@operator("If", foreign=True)
def if_(
    condition: Value, *, then_branch: Graph, else_branch: Graph, scope: Any
) -> tuple[Value, ...]:
    """Return one of two graphs.

    Both, if what decides is fed and their results have the same shapes.
    """
    if is_known(condition):
        return tuple(scope.run(then_branch if _truth(condition) else else_branch, []))
    yes, no = scope.run(then_branch, []), scope.run(else_branch, [])
    if not all(_are_alike(a, b) for a, b in zip(yes, no, strict=True)):
        known(condition, "a condition")
    return tuple(op.where(condition, a, b) for a, b in zip(yes, no, strict=True))


def _are_alike(a: Value, b: Value) -> bool:
    plain = isinstance(a, Expr | np.ndarray) and isinstance(b, Expr | np.ndarray)
    return plain and a.shape == b.shape and a.dtype == b.dtype


def _stacked(parts: Sequence[Value], axis: int = 0) -> Value:
    if all(is_known(each) for each in parts):
        return np.stack(parts, axis)
    return op.stack(parts, axis)


@operator("Loop", foreign=True)
def loop(
    trips: Value = None, condition: Value = None, *carried: Value, body: Graph, scope: Any
) -> tuple[Value, ...]:
    """Return the body again and again, written down once for each turn."""
    most = math.inf if trips is None else int(known(trips, "the number of turns").item())
    values = list(carried)
    collected: list[list[Value]] = [[] for _ in body.outputs[1 + len(values) :]]
    turn = 0
    while turn < most and _truth(condition):
        require(
            turn != MOST_TURNS, "onnx Loop", f"at most {MOST_TURNS} turns", "more", error=DataError
        )
        given = np.array(turn), np.array(True) if condition is None else condition
        condition, *results = scope.run(body, [*given, *values])
        values = results[: len(values)]
        for held, new in zip(collected, results[len(values) :], strict=True):
            held.append(new)
        turn += 1
    rows = [
        _stacked(held) if held else _no_rows(declared)
        for held, declared in zip(collected, body.outputs[1 + len(values) :], strict=True)
    ]
    return (*values, *rows)


def _no_rows(declared: Any) -> np.ndarray:
    sizes = [size if isinstance(size, int) else 0 for size in declared.shape or ()]
    return np.zeros((0, *sizes), declared.dtype or np.float32)


@operator("Scan")
def scan(
    *inputs: Value,
    body: Graph,
    num_scan_inputs: int,
    directions: tuple[int, ...] = (),
    scan_input_axes: tuple[int, ...] = (),
    scan_input_directions: tuple[int, ...] = (),
    scan_output_axes: tuple[int, ...] = (),
    scan_output_directions: tuple[int, ...] = (),
    scope: Any,
    opset: int,
) -> tuple[Value, ...]:
    """Run the body for each index of an axis, with state passed from each index to the next."""
    if opset < 9:
        return _scan_batches(inputs[1:], body, num_scan_inputs, directions, scope)
    states, sequences = inputs[:-num_scan_inputs], list(inputs[-num_scan_inputs:])
    for i, each in enumerate(sequences):
        moved = axis_moved(each, scan_input_axes[i] if scan_input_axes else 0, 0)
        turned = scan_input_directions and scan_input_directions[i]
        sequences[i] = known_if_possible(op.flip(moved, 0) if turned else moved)
    results = _run_scan(states, sequences, body, scope)
    for i, found in enumerate(results[len(states) :]):
        turned = scan_output_directions and scan_output_directions[i]
        axis = scan_output_axes[i] if scan_output_axes else 0
        results[len(states) + i] = axis_moved(op.flip(found, 0) if turned else found, 0, axis)
    return tuple(results)


def _scan_batches(
    inputs: Sequence[Value], body: Graph, count: int, directions: Sequence[int], scope: Any
) -> tuple[Value, ...]:
    """Run version 8 of Scan, which has an axis of samples before the axis of steps."""
    samples = []
    turned = [0] * (len(inputs) - count) + (list(directions) or [0] * count)
    for i in range(inputs[0].shape[0]):
        rows = [op.gather(each, i) for each in inputs]
        flipped = [op.flip(x, 0) if turn else x for x, turn in zip(rows, turned, strict=True)]
        parts = [known_if_possible(each) for each in flipped]
        samples.append(_run_scan(parts[:-count], parts[-count:], body, scope))
    return tuple(_stacked(list(each)) for each in zip(*samples, strict=True))


def _run_scan(
    states: Sequence[Value], sequences: Sequence[Value], body: Graph, scope: Any
) -> list[Value]:
    """Scan axis 0 of the sequences; return the last states, then the collected outputs."""
    if all(is_known(each) for each in (*states, *sequences)):
        return _run_known_scan(list(states), sequences, body, scope)

    def step(carry: tuple[Expr, ...], given: tuple[Expr, ...]) -> tuple[Any, Any]:
        results = scope.run(body, [*carry, *given])
        return tuple(results[: len(states)]), tuple(results[len(states) :])

    last, collected = op.scan(step, tuple(states), tuple(sequences))
    return [*last, *collected]


def _run_known_scan(
    states: list[Value], sequences: Sequence[Value], body: Graph, scope: Any
) -> list[Value]:
    count = len(states)
    rows: list[list[Value]] = []
    for index in range(sequences[0].shape[0]):
        results = scope.run(body, [*states, *[np.asarray(each[index]) for each in sequences]])
        states = results[:count]
        rows.append(results[count:])
    return [*states, *[_stacked(list(column)) for column in zip(*rows, strict=True)]]


@operator("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> list[Value]:
    """Return a sequence without elements."""
    return []


@operator("SequenceConstruct", foreign=True)
def sequence_construct(*values: Value) -> list[Value]:
    """Return a sequence of these values."""
    return list(values)


@operator("SequenceInsert", foreign=True)
def sequence_insert(sequence: list[Value], value: Value, position: Value = None) -> list[Value]:
    """Insert an element at the end or before a position."""
    place = len(sequence) if position is None else integer(position, "a position")
    return [*sequence[:place], value, *sequence[place:]]


@operator("SequenceErase", foreign=True)
def sequence_erase(sequence: list[Value], position: Value = None) -> list[Value]:
    """Remove the last element, or the element at a position."""
    place = -1 if position is None else integer(position, "a position")
    found = list(sequence)
    del found[place]
    return found


@operator("SequenceAt", foreign=True)
def sequence_at(sequence: list[Value], position: Value) -> Value:
    """Return the element at a position."""
    return sequence[integer(position, "a position")]


@operator("SequenceLength", foreign=True)
def sequence_length(sequence: list[Value]) -> np.ndarray:
    """Return the number of elements."""
    return np.array(len(sequence))


@operator("ConcatFromSequence", moves=True)
def concat_from_sequence(sequence: list[Value], *, axis: int, new_axis: int = 0) -> Value:
    """Return the elements joined along an axis, or along a new one."""
    return op.stack(sequence, axis) if new_axis else concat(*sequence, axis=axis)


@operator("SplitToSequence", moves=True)
def split_to_sequence(
    x: Value, split: Value = None, *, axis: int = 0, keepdims: int = 1
) -> list[Value]:
    """Split along an axis into equal pieces (the last may be smaller), or by given sizes."""
    position = axis_of(axis, len(x.shape))
    length = x.shape[position]
    if split is None or not split.shape:
        size = 1 if split is None else integer(split, "a size")
        sizes = [size] * (length // size) + ([length % size] if length % size else [])
    else:
        sizes = list(integers(split, "sizes"))
    parts = list(op.split(x, sizes, position))
    if split is None and not keepdims:
        return [op.squeeze(part, position) for part in parts]
    return parts


@operator("SequenceMap", foreign=True)
def sequence_map(*inputs: Value, body: Graph, scope: Any) -> tuple[list[Value], ...]:
    """A graph applied to each element; tensors are the same for all."""
    results = [
        scope.run(body, [each[i] if isinstance(each, list) else each for each in inputs])
        for i in range(len(inputs[0]))
    ]
    if not results:
        return tuple([] for _ in body.outputs)
    return tuple(list(column) for column in zip(*results, strict=True))


@operator("Optional", foreign=True)
def optional(value: Value = None, *, type: Any = None) -> Value:
    """Return an optional value, which may be missing."""
    return value


@operator("OptionalHasElement", foreign=True)
def optional_has_element(value: Value = None) -> np.ndarray:
    """Return True if the value is present."""
    return np.array(value is not None)


@operator("OptionalGetElement", foreign=True)
def optional_get_element(value: Value = None) -> Value:
    """Return the value of an optional; raise an error if it is missing."""
    require(value is not None, "onnx OptionalGetElement", "an element", error=DataError)
    return value


def _texts(values: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    result = np.empty(len(values), STRING)
    result[:] = values
    return result.reshape(shape)


@evaluated("StringConcat")
def string_concat(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Concatenate strings."""
    return np.asarray(a + b, STRING)


@evaluated("StringSplit")
def string_split(
    x: np.ndarray, *, delimiter: str = "", maxsplit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of each string, padded with empty strings, and their number."""
    most = -1 if maxsplit is None else maxsplit
    parts = [text.split(delimiter or None, most) for text in x.reshape(-1)]
    counts = np.array([len(each) for each in parts], np.int64).reshape(x.shape)
    width = max((len(each) for each in parts), default=0)
    flat = [text for each in parts for text in [*each, *[""] * (width - len(each))]]
    return _texts(flat, (*x.shape, width)), counts


@evaluated("StringNormalizer")
def string_normalizer(
    x: np.ndarray,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: tuple[str, ...] = (),
) -> np.ndarray:
    """Return texts without some words, in another case."""
    change: Callable[[str], str] = {"LOWER": str.lower, "UPPER": str.upper}.get(
        case_change_action, str
    )
    compare: Callable[[str], str] = str if is_case_sensitive else str.lower
    dropped = {compare(word) for word in stopwords}
    kept = [change(text) for text in x.reshape(-1) if compare(text) not in dropped] or [""]
    return _texts(kept, (*x.shape[:-1], len(kept)))


# What RE2 understands and Python's expressions understand in the same way. Python's can take
# exponential time, so a pattern from a file must also be simple: no group is repeated.
_PLAIN = re.compile(r"[^\\()]*(?:\\[.bwdsBWDS\-+*?|\[\]{}^$@/][^\\()]*)*")
_LONGEST_PATTERN = 1000


@evaluated("RegexFullMatch")
def regex_full_match(x: np.ndarray, *, pattern: str) -> np.ndarray:
    """Return True for each string that fully matches a pattern."""
    _check_pattern(pattern)
    compiled = re.compile(pattern, re.ASCII)
    found = [compiled.fullmatch(text) is not None for text in x.reshape(-1)]
    return np.array(found, np.bool_).reshape(x.shape)


def _check_pattern(pattern: str) -> None:
    # Flags at the beginning and groups that are not repeated are plain as well.
    bare = re.sub(r"^\(\?[ims]+\)", "", pattern)
    bare = re.sub(r"\((?!\?)([^()]*)\)(?![*+?{])", r"\1", bare)
    if len(pattern) > _LONGEST_PATTERN or not _PLAIN.fullmatch(bare):
        raise ConfigError.build(
            "onnx RegexFullMatch", expected="a pattern without groups that repeat", got=pattern[:80]
        )


@evaluated("TfIdfVectorizer")
def tfidf_vectorizer(
    x: np.ndarray,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...],
    pool_int64s: tuple[int, ...] = (),
    pool_strings: tuple[str, ...] = (),
    weights: tuple[float, ...] = (),
) -> np.ndarray:
    """Return the weighted number of occurrences of each n-gram in a pool."""
    pool = _pool(pool_int64s or pool_strings, ngram_counts)
    check_size((*x.shape[:-1], max(ngram_indexes) + 1), np.float32)
    result = np.zeros((*x.shape[:-1], max(ngram_indexes) + 1), np.float32)
    rows = x.reshape(-1, x.shape[-1]) if x.size else x.reshape(0, 0)
    for row, counts in zip(rows, result.reshape(-1, result.shape[-1]), strict=False):
        words = [each.item() if isinstance(each, np.generic) else each for each in row]
        for length in range(min_gram_length, max_gram_length + 1):
            # One word has no gaps: it is counted once, not once a width of the gap.
            for skip in range(max_skip_count + 1 if length > 1 else 1):
                span = (length - 1) * (skip + 1) + 1
                for start in range(len(words) - span + 1):
                    gram = tuple(words[start : start + span : skip + 1])
                    if gram in pool:
                        counts[ngram_indexes[pool[gram]]] += 1
    if mode == "TF":
        return result
    scales = np.ones(result.shape[-1], np.float32)
    if weights:
        scales[list(ngram_indexes)] = weights
    return (result > 0) * scales if mode == "IDF" else result * scales


def _pool(words: tuple[Any, ...], starts: tuple[int, ...]) -> dict[tuple[Any, ...], int]:
    """Number the n-grams, ordered by length: single words first, then pairs, ..."""
    found: dict[tuple[Any, ...], int] = {}
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < len(starts) else len(words)
        for first in range(start, end, i + 1):
            found[words[first : first + i + 1]] = len(found)
    return found
