"""Einstein sums, written as transposes, sums, broadcast products and matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import broadcast_to, reshape, sum_
from caldera.core.graph.ops.elementwise import mul
from caldera.core.graph.ops.movement import slice_, transpose
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import is_inexact
from caldera.core.tensor.shape import size
from caldera.errors import ConfigError, ShapeError
from caldera.op.arguments import place

ELLIPSIS = "..."
HINT = 'write one letter an axis, as in "ij,jk->ik"'


@dataclass(frozen=True)
class _Term:
    """A factor: a node and the label of each of its axes."""

    node: Node
    labels: tuple[str, ...]

    def ordered(self, labels: Sequence[str]) -> Node:
        """The node with its axes in this order."""
        return transpose(self.node, tuple(self.labels.index(label) for label in labels))


def contract(subscripts: str, operands: Sequence[Node]) -> Node:
    """The value of an Einstein sum."""
    where = place("einsum", *operands) if operands else "op.einsum"
    terms, result = _parsed(subscripts, operands, where)
    sizes = _sizes(terms, where)
    pending = [_summed(term, _needed(terms, result, term), sizes) for term in terms]
    while len(pending) > 1:
        first, second = _cheapest_pair(pending, sizes)
        rest = [term for term in pending if term is not first and term is not second]
        pending = [*rest, _product(first, second, _labels_of(rest) | set(result), sizes)]
    return _summed(pending[0], set(result), sizes).ordered(result)


# --- reading the subscripts


def _parsed(
    subscripts: str, operands: Sequence[Node], where: str
) -> tuple[list[_Term], tuple[str, ...]]:
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    written = left.split(",")
    if len(written) != len(operands) or not operands:
        raise ConfigError.build(
            where, expected=f"{len(written)} operands for {subscripts!r}", got=str(len(operands))
        )
    terms = [
        _Term(node, _labels(text, len(node.shape), where))
        for text, node in zip(written, operands, strict=True)
    ]
    for text, term in zip(written, terms, strict=True):
        if len(term.labels) != len(term.node.shape):
            raise ShapeError.build(
                where,
                expected=f"{len(term.node.shape)} axes for {term.node.shape}",
                got=repr(text),
                hint=HINT,
            )
    known = [label for term in terms for label in term.labels]
    broadcast = sorted({label for label in known if len(label) > 1}, key=len, reverse=True)
    if arrow:
        result = _labels(right, len(right.replace(ELLIPSIS, "")) + len(broadcast), where)
    else:
        once = sorted(label for label in known if len(label) == 1 and known.count(label) == 1)
        result = (*broadcast, *once)
    if len(set(result)) != len(result) or not set(result) <= set(known):
        raise ConfigError.build(
            where,
            expected="a result of different letters from the operands, or their ...",
            got=repr(subscripts),
            hint=HINT,
        )
    return [_diagonal(term, where) for term in terms], result


def _diagonal(term: _Term, where: str) -> _Term:
    """A term in which each label stands once: along several axes of one label, the diagonal."""
    for label in term.labels:
        axes = [axis for axis, each in enumerate(term.labels) if each == label]
        if len(axes) == 1:
            continue
        lengths = [term.node.shape[axis] for axis in axes]
        if len(set(lengths)) > 1:
            raise ShapeError.build(
                where, expected=f"one size for {label!r}", got=" and ".join(map(str, lengths))
            )
        others = [axis for axis in range(len(term.labels)) if axis not in axes]
        node = transpose(term.node, (*others, *axes))
        rest, n = node.shape[: len(others)], lengths[0]
        flat = reshape(node, (*rest, n ** len(axes)))
        # From each element of a diagonal to the next is one step along all of its axes.
        step = sum(n**power for power in range(len(axes)))
        bounds = (*((0, each, 1) for each in rest), (0, n ** len(axes), max(step, 1)))
        labels = (*(term.labels[axis] for axis in others), label)
        return _diagonal(_Term(slice_(flat, bounds), labels), where)
    return term


def _labels(text: str, rank: int, where: str) -> tuple[str, ...]:
    """A label for each axis: a letter, or dots for those that "..." stands for.

    These are counted from the right, as they broadcast: the last has two dots, the one before
    three, and so on.
    """
    before, dots, after = text.partition(ELLIPSIS)
    if not all(letter.isascii() and letter.isalpha() for letter in before + after):
        raise ConfigError.build(where, expected="letters and one ...", got=repr(text), hint=HINT)
    count = rank - len(before) - len(after) if dots else 0
    return (*before, *["." * (i + 1) for i in range(count, 0, -1)], *after)


def _sizes(terms: Sequence[_Term], where: str) -> dict[str, int]:
    """The size of each label; a size of 1 gives way to any other, as in broadcasting."""
    sizes: dict[str, int] = {}
    for term in terms:
        for label, length in zip(term.labels, term.node.shape, strict=True):
            known = sizes.setdefault(label, length)
            if known == 1:
                sizes[label] = length
            elif length not in (1, known):
                raise ShapeError.build(
                    where, expected=f"one size for {label!r}", got=f"{known} and {length}"
                )
    return sizes


# --- computing


def _labels_of(terms: Iterable[_Term]) -> set[str]:
    return {label for term in terms for label in term.labels}


def _needed(terms: Sequence[_Term], result: Sequence[str], term: _Term) -> set[str]:
    return _labels_of(other for other in terms if other is not term) | set(result)


def _summed(term: _Term, needed: set[str], sizes: dict[str, int]) -> _Term:
    """The term without the labels nobody needs, its other axes stretched to their full size."""
    dropped = tuple(i for i, label in enumerate(term.labels) if label not in needed)
    kept = tuple(label for label in term.labels if label in needed)
    return _Term(broadcast_to(sum_(term.node, dropped), tuple(sizes[k] for k in kept)), kept)


def _cheapest_pair(terms: Sequence[_Term], sizes: dict[str, int]) -> tuple[_Term, _Term]:
    """The two factors whose joint loop is smallest."""

    def loop(pair: tuple[_Term, _Term]) -> int:
        return size(tuple(sizes[label] for label in _labels_of(pair)))

    return min(combinations(terms, 2), key=loop)


def _product(a: _Term, b: _Term, needed: set[str], sizes: dict[str, int]) -> _Term:
    """The product of two factors, summed over the labels nobody else needs."""
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows = [label for label in a.labels if label not in shared]
    columns = [label for label in b.labels if label not in shared]
    labels = (*batch, *rows, *columns)
    if inner and is_inexact(a.node.dtype):
        left, ta = _matrices(a, batch, rows, inner)
        right, tb = _matrices(b, batch, inner, columns)
        product = matmul(left, right, ta=ta, tb=tb)
        return _Term(reshape(product, tuple(sizes[label] for label in labels)), labels)
    aligned = (*labels, *inner)
    summed = tuple(range(len(labels), len(aligned)))
    return _Term(sum_(mul(_aligned(a, aligned), _aligned(b, aligned)), summed), labels)


def _matrices(
    term: _Term, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> tuple[Node, bool]:
    """The term as a batch of matrices, and whether a product has to read them transposed."""
    transposed = term.labels == (*batch, *columns, *rows) and bool(rows)
    first, second = (columns, rows) if transposed else (rows, columns)
    ordered = term.ordered([*batch, *first, *second])
    split = len(batch), len(batch) + len(first)
    shape = ordered.shape
    matrix = (size(shape[split[0] : split[1]]), size(shape[split[1] :]))
    return reshape(ordered, (*shape[: split[0]], *matrix)), transposed


def _aligned(term: _Term, labels: Sequence[str]) -> Node:
    """The term with all these axes, those it does not have of size 1."""
    ordered = term.ordered([label for label in labels if label in term.labels])
    sizes = iter(ordered.shape)
    return reshape(ordered, tuple(next(sizes) if k in term.labels else 1 for k in labels))
