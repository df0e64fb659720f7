"""Matrix products, Einstein sums, and other operations that are written as products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift_all
from caldera.core.graph.node import Node
from caldera.core.graph.ops import (
    Axes,
    broadcast_to,
    concat,
    elementwise,
    matmul_any,
    mul,
    narrow,
    reshape,
    slice_,
    sum_,
    transpose,
)
from caldera.core.graph.ops import matmul as product_of
from caldera.core.tensor import as_list, broadcast_shapes, normalise_axis, size
from caldera.errors import ShapeError
from caldera.op.arguments import place
from caldera.op.reduction import norm

__all__ = ["cdist", "cross", "dot", "einsum", "kron", "matmul", "outer", "tensordot"]

ELLIPSIS = "..."
HINT = 'write one letter an axis, as in "ij,jk->ik"'


@dataclass(frozen=True)
class _Term:
    """A factor: a node and the label of each of its axes."""

    node: Node
    labels: tuple[str, ...]

    def ordered(self, labels: Sequence[str]) -> Node:
        """Return the node with its axes in this order."""
        return transpose(self.node, tuple(self.labels.index(label) for label in labels))


def contract(subscripts: str, operands: Sequence[Node]) -> Node:
    """Return the value of an Einstein sum."""
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
    require(
        len(written) == len(operands) and operands,
        where,
        f"{len(written)} operands for {subscripts!r}",
        len(operands),
    )
    terms = [
        _Term(node, _labels(text, len(node.shape), where))
        for text, node in zip(written, operands, strict=True)
    ]
    for text, term in zip(written, terms, strict=True):
        require(
            len(term.labels) == len(term.node.shape),
            where,
            f"{len(term.node.shape)} axes for {term.node.shape}",
            repr(text),
            hint=HINT,
            error=ShapeError,
        )
    known = [label for term in terms for label in term.labels]
    broadcast = sorted({label for label in known if len(label) > 1}, key=len, reverse=True)
    if arrow:
        result = _labels(right, len(right.replace(ELLIPSIS, "")) + len(broadcast), where)
    else:
        once = sorted(label for label in known if len(label) == 1 and known.count(label) == 1)
        result = (*broadcast, *once)
    require(
        len(set(result)) == len(result) and set(result) <= set(known),
        where,
        "a result of different letters from the operands, or their ...",
        repr(subscripts),
        hint=HINT,
    )
    return [_diagonal(term, where) for term in terms], result


def _diagonal(term: _Term, where: str) -> _Term:
    """Return a term in which each label occurs once; repeated labels select the diagonal."""
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
    """Return a label for each axis: a letter, or dots for the axes that "..." represents.

    These are counted from the right, as they broadcast: the last has two dots, the second last
    three, and so on.
    """
    before, dots, after = text.partition(ELLIPSIS)
    require(
        all(letter.isascii() and letter.isalpha() for letter in before + after),
        where,
        "letters and one ...",
        repr(text),
        hint=HINT,
    )
    count = rank - len(before) - len(after) if dots else 0
    return (*before, *["." * (i + 1) for i in range(count, 0, -1)], *after)


def _sizes(terms: Sequence[_Term], where: str) -> dict[str, int]:
    """Return the size of each label; a size of 1 yields to any size, as in broadcasting."""
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
    """Return the term without unused labels, its remaining axes broadcast to their full size."""
    dropped = tuple(i for i, label in enumerate(term.labels) if label not in needed)
    kept = tuple(label for label in term.labels if label in needed)
    return _Term(broadcast_to(sum_(term.node, dropped), tuple(sizes[k] for k in kept)), kept)


def _cheapest_pair(terms: Sequence[_Term], sizes: dict[str, int]) -> tuple[_Term, _Term]:
    """Return the two factors whose joint loop is smallest."""

    def loop(pair: tuple[_Term, _Term]) -> int:
        return size(tuple(sizes[label] for label in _labels_of(pair)))

    return min(combinations(terms, 2), key=loop)


def _product(a: _Term, b: _Term, needed: set[str], sizes: dict[str, int]) -> _Term:
    """Return the product of two factors, summed over the labels not used elsewhere."""
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows = [label for label in a.labels if label not in shared]
    columns = [label for label in b.labels if label not in shared]
    labels = (*batch, *rows, *columns)
    if inner:
        left, ta = _matrices(a, batch, rows, inner)
        right, tb = _matrices(b, batch, inner, columns)
        product = product_of(left, right, ta=ta, tb=tb)
        return _Term(reshape(product, tuple(sizes[label] for label in labels)), labels)
    aligned = (*labels, *inner)
    summed = tuple(range(len(labels), len(aligned)))
    return _Term(sum_(mul(_aligned(a, aligned), _aligned(b, aligned)), summed), labels)


def _matrices(
    term: _Term, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> tuple[Node, bool]:
    """Return the term as a batch of matrices, and whether a product has to read them transposed."""
    transposed = term.labels == (*batch, *columns, *rows) and bool(rows)
    first, second = (columns, rows) if transposed else (rows, columns)
    ordered = term.ordered([*batch, *first, *second])
    split = len(batch), len(batch) + len(first)
    shape = ordered.shape
    matrix = (size(shape[split[0] : split[1]]), size(shape[split[1] :]))
    return reshape(ordered, (*shape[: split[0]], *matrix)), transposed


def _aligned(term: _Term, labels: Sequence[str]) -> Node:
    """Return the term with all these axes, those it does not have of size 1."""
    ordered = term.ordered([label for label in labels if label in term.labels])
    sizes = iter(ordered.shape)
    return reshape(ordered, tuple(next(sizes) if k in term.labels else 1 for k in labels))


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Expr:
    """Return the matrix product, as `a @ b`: of matrices, of batches of matrices, and of vectors.

    `transpose_a` and `transpose_b` exchange the last two axes first, at no cost. A vector is a row
    on the left and a column on the right; axes before the last two broadcast.

    >>> import caldera as cd
    >>> from caldera import op
    >>> a = cd.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> op.matmul(a, cd.tensor([1.0, 1.0])).tolist()
    [3.0, 7.0]
    >>> op.matmul(a, a, transpose_a=True).tolist()
    [[10.0, 14.0], [14.0, 20.0]]
    """
    left, right = lift_all(a, b)
    return Expr(matmul_any(left, right, ta=transpose_a, tb=transpose_b))


def dot(a: Any, b: Any) -> Expr:
    """Return the inner product of two vectors; with matrices it is the matrix product, as in NumPy.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.dot(cd.tensor([1.0, 2.0]), cd.tensor([3.0, 4.0])).item()
    11.0
    """
    left, right = lift_all(a, b)
    _check_ranks("dot", (left, right), (1, 2), "vectors or matrices", "use op.matmul or op.einsum")
    return Expr(matmul_any(left, right))


def outer(a: Any, b: Any) -> Expr:
    """Return the products of all pairs of elements of two vectors.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.outer(cd.tensor([1.0, 2.0]), cd.tensor([3.0, 4.0])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    left, right = lift_all(a, b)
    _check_ranks("outer", (left, right), (1,), "two vectors", "flatten them with op.flatten")
    return Expr(elementwise.mul(reshape(left, (*left.shape, 1)), right))


def tensordot(a: Any, b: Any, axes: int | Sequence[Any] = 2) -> Expr:
    """Return products summed over axes of both.

    `axes` is the number of last axes of `a` and of first axes of `b`, or a pair (axes of `a`, axes
    of `b`), each an int or several. An axis of size 1 broadcasts. It is one matrix product.

    >>> import caldera as cd
    >>> from caldera import op
    >>> a, b = cd.Tensor((2, 3, 4)), cd.Tensor((4, 3, 5))
    >>> op.tensordot(a, b, axes=((1, 2), (1, 0))).shape, op.tensordot(a, b, axes=1).shape
    ((2, 5), (2, 3, 3, 5))
    """
    left, right = lift_all(a, b)
    first, second = _summed_axes(left, right, axes)
    left, right = _alone(left, right, first, second), _alone(right, left, second, first)
    kept = [
        tuple(i for i in range(len(node.shape)) if i not in summed)
        for node, summed in ((left, first), (right, second))
    ]
    inner = size(tuple(left.shape[i] for i in first))
    outer = [tuple(left.shape[i] for i in kept[0]), tuple(right.shape[i] for i in kept[1])]
    rows = reshape(transpose(left, (*kept[0], *first)), (size(outer[0]), inner))
    columns = reshape(transpose(right, (*second, *kept[1])), (inner, size(outer[1])))
    return Expr(reshape(matmul_any(rows, columns), (*outer[0], *outer[1])))


def _summed_axes(left: Node, right: Node, axes: int | Sequence[Any]) -> tuple[Axes, Axes]:
    where = place("tensordot", left, right)
    ranks = len(left.shape), len(right.shape)
    if isinstance(axes, int):
        if not 0 <= axes <= min(ranks):
            expected = f"a number of axes from 0 to {min(ranks)}"
            raise ShapeError.build(where, expected=expected, got=str(axes))
        first, second = tuple(range(ranks[0] - axes, ranks[0])), tuple(range(axes))
    else:
        given = [tuple(as_list(each)) for each in axes]
        if len(given) != 2 or len(given[0]) != len(given[1]):
            expected = "axes= a number, or equally many axes of a and b"
            raise ShapeError.build(where, expected=expected, got=repr(axes))
        first, second = (
            tuple(normalise_axis(axis, rank, where) for axis in each)
            for each, rank in zip(given, ranks, strict=True)
        )
    sizes = [left.shape[i] for i in first], [right.shape[i] for i in second]
    equal = all(1 in pair or pair[0] == pair[1] for pair in zip(*sizes, strict=True))
    if not equal or len(set(first)) < len(first) or len(set(second)) < len(second):
        raise ShapeError.build(
            where,
            expected="different axes of equal sizes to sum over",
            got=f"axes {first} and {second} of sizes {sizes[0]} and {sizes[1]}",
        )
    return first, second


def _alone(node: Node, other: Node, summed: Axes, others: Axes) -> Node:
    """Sum the node over the axes along which the second operand has a single element."""
    axes = [
        axis
        for axis, beside in zip(summed, others, strict=True)
        if other.shape[beside] == 1 != node.shape[axis]
    ]
    return sum_(node, tuple(sorted(axes)), True) if axes else node


def kron(a: Any, b: Any) -> Expr:
    """Return the Kronecker product: `b` times each element of `a`, laid out as `a` is.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.kron(cd.tensor([1.0, 10.0]), cd.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0, 10.0, 20.0]
    """
    left, right = lift_all(a, b)
    rank = max(len(left.shape), len(right.shape))
    first, second = ((1,) * (rank - len(node.shape)) + node.shape for node in (left, right))
    outer = reshape(left, tuple(n for each in first for n in (each, 1)))
    inner = reshape(right, tuple(n for each in second for n in (1, each)))
    shape = tuple(m * n for m, n in zip(first, second, strict=True))
    return Expr(reshape(elementwise.mul(outer, inner), shape))


def cross(a: Any, b: Any, axis: int = -1) -> Expr:
    """Return the cross product of vectors of three components along `axis`; the rest broadcast.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.cross(cd.tensor([1.0, 0.0, 0.0]), cd.tensor([0.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    left, right = lift_all(a, b)
    where = place("cross", left, right)
    shape = broadcast_shapes(left.shape, right.shape, where=where)
    which = normalise_axis(axis, len(shape), where)
    left, right = broadcast_to(left, shape), broadcast_to(right, shape)
    require(shape[which] == 3, where, f"3 components along axis {axis}", shape, error=ShapeError)

    def turned(node: Node, by: int) -> Node:
        """Return the components i + by, for i = 0, 1, 2."""
        return concat((narrow(node, which, by, 3 - by), narrow(node, which, 0, by)), which)

    ahead = elementwise.mul(turned(left, 1), turned(right, 2))
    behind = elementwise.mul(turned(left, 2), turned(right, 1))
    return Expr(elementwise.sub(ahead, behind))


def cdist(a: Any, b: Any, order: float = 2) -> Expr:
    """Return the distances of rows of `a` (..., m, d) to rows of `b` (..., n, d): (..., m, n).

    `order` is as for `op.norm`: 1, 2 or infinity. The derivative of a distance of 0 is taken as 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.cdist(cd.tensor([[0.0, 0.0], [3.0, 0.0]]), cd.tensor([[3.0, 4.0]])).tolist()
    [[5.0], [4.0]]
    """
    left, right = (as_float(each) for each in lift_all(a, b))
    if min(len(left.shape), len(right.shape)) < 2 or left.shape[-1] != right.shape[-1]:
        raise ShapeError.build(
            place("cdist", left, right),
            expected="rows of equal length: (..., m, d) and (..., n, d)",
            got=f"{left.shape} and {right.shape}",
        )
    *batch, rows, length = left.shape
    one = reshape(left, (*batch, rows, 1, length))
    *batch, rows, length = right.shape
    other = reshape(right, (*batch, 1, rows, length))
    return norm(Expr(elementwise.sub(one, other)), order, axis=-1)


def _check_ranks(
    name: str, nodes: tuple[Node, ...], ranks: tuple[int, ...], expected: str, hint: str
) -> None:
    if any(len(node.shape) not in ranks for node in nodes):
        shapes = " and ".join(str(node.shape) for node in nodes)
        raise ShapeError.build(place(name, *nodes), expected=expected, got=shapes, hint=hint)


def einsum(subscripts: str, *operands: Any) -> Expr:
    """Return products summed over the axes that share a letter, as "ij,jk->ik" (matrix product).

    As in NumPy: each operand has one letter per axis, and the result has the letters after "->"
    (without it, the letters that occur once, in alphabetical order). The remaining letters are
    summed over. "..." represents further axes, which broadcast. A letter twice in one operand is
    its diagonal: "ii->i". Sums of products become matrix products if possible.

    >>> import caldera as cd
    >>> from caldera import op
    >>> a = cd.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> op.einsum("ij,jk->ik", a, a).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
    >>> op.einsum("ij->j", a).tolist()
    [4.0, 6.0]
    """
    return Expr(contract(subscripts, lift_all(*operands)))
