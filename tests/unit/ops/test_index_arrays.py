"""NumPy's indices on expressions: random keys against NumPy, read, set and added to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op, testing
from caldera.compiler.lazy import Expr, Input
from caldera.errors import DataError, DtypeError, IndexingError, ShapeError
from caldera.kernels.reference import interpret

SEEDS = 100


def value_of(expression: Expr, feeds: dict[Input, np.ndarray]) -> np.ndarray:
    """Computed by the references, without compiling anything."""
    leaves = {each.node: array for each, array in feeds.items()}
    stack, seen = [expression.node], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(node.inputs)
        if "symbol" in node.attrs and node not in leaves:
            leaves[node] = node.attrs["symbol"].value.numpy()
    return interpret([expression.node], leaves)[0]


class Keys:
    """Random keys for NumPy, and the same for expressions: some arrays in them are fed later."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.feeds: dict[Input, np.ndarray] = {}

    def choose(self, *items: Any) -> Any:
        return items[self.random.integers(len(items))]

    def key(self, shape: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        theirs: list[Any] = []
        ours: list[Any] = []
        broadcast = self.choose((), (2,), (3,), (2, 3), (1, 3), (0,))
        axis = 0
        while axis < len(shape) and self.random.random() < 0.9:
            kind = self.choose("int", "slice", "array", "list", "fed", "mask", "new", "dots")
            if kind == "dots":
                # It stands for some axes, or none; all that are left follow it.
                axis += int(self.random.integers(0, len(shape) - axis + 1))
                rest = self._tail(shape[axis:], broadcast)
                return (*theirs, ..., *rest[0]), (*ours, ..., *rest[1])
            if kind == "mask":
                count = int(self.random.integers(1, len(shape) - axis + 1))
                mask = self._mask(shape[axis : axis + count], broadcast)
                theirs.append(mask)
                ours.append(
                    self.choose(mask, cd.tensor(mask), mask.tolist() if mask.size else mask)
                )
                axis += count
            elif kind == "new":
                item = self.choose(None, None, True)
                theirs.append(item)
                ours.append(item)
            else:
                one = self._one(kind, shape[axis], broadcast)
                theirs.append(one[0])
                ours.append(one[1])
                axis += 1
        return tuple(theirs), tuple(ours)

    def _tail(self, shape: tuple[int, ...], broadcast: tuple[int, ...]) -> Any:
        kinds = ("int", "slice", "array", "fed")
        pairs = [self._one(self.choose(*kinds), n, broadcast) for n in shape]
        return [a for a, _ in pairs], [b for _, b in pairs]

    def _mask(self, shape: tuple[int, ...], broadcast: tuple[int, ...]) -> np.ndarray:
        """With as many true elements as the other arrays have positions, if there is room."""
        mask = np.zeros(shape, np.bool_)
        wanted = min(broadcast[-1] if broadcast else 1, mask.size)
        places = self.random.permutation(mask.size)[:wanted]
        mask.reshape(-1)[places] = True
        return mask

    def _one(self, kind: str, n: int, broadcast: tuple[int, ...]) -> tuple[Any, Any]:
        if kind == "slice" or n == 0:
            start, stop = (
                self.choose(None, int(self.random.integers(-n - 1, n + 2))) for _ in "ab"
            )
            part = slice(start, stop, self.choose(None, 1, 2, -1, -2))
            return part, part
        if kind == "int":
            number = int(self.random.integers(-n, n))
            return number, self.choose(number, np.int32(number), np.array(number))
        keep = self.random.integers(0, len(broadcast) + 1)
        shape = tuple(1 if self.random.random() < 0.2 else m for m in broadcast[keep:])
        array = self.random.integers(-n, n, shape).astype(self.choose("int64", "int32", "int8"))
        if kind == "fed":
            fed = op.input(f"i{len(self.feeds)}", array.shape, dtype=array.dtype)
            self.feeds[fed] = array
            return array, fed
        return array, array.tolist() if kind == "list" and array.size else array


def compare(seed: int) -> bool:
    """One random key, read, set and added to; whether NumPy took it too."""
    keys = Keys(seed)
    least = keys.choose(*[1] * 9, 0)
    shape = tuple(map(int, keys.random.integers(least, 5, keys.random.integers(0, 5))))
    x = keys.random.normal(size=shape)
    theirs, ours = keys.key(shape)
    given = op.input("x", shape, dtype="float64")
    feeds = {**keys.feeds, given: x}
    try:
        expected = x[theirs]
    except IndexError:
        with pytest.raises((IndexingError, ShapeError)):
            given[ours]
        return False
    found = given[ours]
    assert found.shape == np.shape(expected), (shape, theirs)
    np.testing.assert_array_equal(value_of(found, feeds), expected, err_msg=str((shape, theirs)))
    values = keys.random.normal(size=np.shape(expected))
    if values.ndim and keys.random.random() < 0.3:
        values = values[:1] if keys.random.random() < 0.5 else values[0] if len(values) else 1.0
    changed, added = x.copy(), x.copy()
    changed[theirs] = values
    # NumPy 2.4 adds wrongly at arrays of two axes if the values have fewer.
    np.add.at(added, theirs, np.broadcast_to(values, np.shape(expected)))
    at = given.at[ours]
    for mine, wanted in ((at.set(values), changed), (at.add(values), added)):
        np.testing.assert_allclose(value_of(mine, feeds), wanted, err_msg=str((shape, theirs)))
    return True


def test_random_keys_mean_what_they_mean_in_numpy() -> None:
    assert sum(compare(seed) for seed in range(SEEDS)) > 0.8 * SEEDS


def test_parts_and_new_values_have_derivatives() -> None:
    x, v = np.arange(12.0).reshape(3, 4) / 7, np.array([[0.3, -1.2], [0.7, 2.0], [0.1, 0.9]])
    rows, columns = np.array([2, 0, 2]), cd.tensor([[1], [3]])
    mask = np.array([True, False, True])
    for function, inputs in (
        (lambda x: x[rows, 1:3] * x[mask][:, None, 0, None][[0, 1, 1]], [x]),
        (lambda x: op.square(x[rows[:2], columns]), [x]),
        (lambda x, v: op.square(x.at[rows, 1:3].set(v)), [x, v]),
        (lambda x, v: op.square(x.at[cd.tensor(rows), 1:3].set(v)), [x, v]),
        (lambda x, v: op.square(x.at[rows, 1:3].add(v)), [x, v]),
        (lambda x: op.square(x.at[op.greater(x, 0.5)].set(x[0, 1])), [x]),
    ):
        testing.check_gradients(function, inputs, order=2)


def test_keys_are_compiled_like_any_expression() -> None:
    x = op.var("x", (4, 3), fill=np.arange(12.0).reshape(4, 3))
    index = op.input("index", (3,), dtype="int64")
    plan = cd.compile([x[index, [0, 1, 2]], x.at[index].set(-1.0), x.at[index, 1].add(1.0)])
    array, chosen = x.numpy(), np.array([3, 0, 3])
    read, changed, added = (each.numpy() for each in plan.run({"index": chosen}))
    np.testing.assert_array_equal(read, array[chosen, [0, 1, 2]])
    np.testing.assert_array_equal(changed[[0, 3]], -np.ones((2, 3)))
    np.testing.assert_array_equal(changed[1:3], array[1:3])
    np.testing.assert_array_equal(added[:, 1] - array[:, 1], [1, 0, 0, 2])
    # A row that is not there is not the row after it.
    for wrong in ([4, 0, 0], [-5, 0, 0]):
        with pytest.raises(DataError, match=r"got (12|-5|4) into"):
            plan.run({"index": np.array(wrong)})


def test_of_two_values_for_one_place_the_later_stays() -> None:
    x = op.input("x", (4,), dtype="int32")
    values = np.array([1, 2, 3, 4, 5], np.int32)
    places = np.array([2, 0, 2, 1, -2])
    index = op.input("index", (5,), dtype="int64")
    for key in (places, index):
        found = value_of(x.at[key].set(values), {x: np.zeros(4, np.int32), index: places})
        assert found.tolist() == [2, 4, 5, 0]
    flags = op.input("flags", (3,), dtype="bool")
    turned = flags.at[index[:2] - 1].set([True, False])
    assert value_of(turned, {flags: np.ones(3, bool), index: places}).tolist() == [
        True,
        True,
        False,
    ]


def test_a_mask_that_is_computed_can_be_set_but_not_read() -> None:
    x = op.input("x", (2, 3), dtype="float64")
    array = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])
    assert value_of(x.at[x < 0.0].set(0.0), {x: array}).tolist() == [[1, 0, 3], [0, 5, 0]]
    rows = x[:, 0] > 0.0
    assert value_of(x.at[rows].add([1.0, 2.0, 3.0]), {x: array}).tolist() == [
        [2, 0, 6],
        [-4, 5, -6],
    ]
    with pytest.raises(IndexingError, match=r"known when the expression is written.*op\.where"):
        x[x < 0.0]
    with pytest.raises(IndexingError, match="the only index"):
        x.at[rows, 0].set(1.0)
    with pytest.raises(ShapeError, match=r"broadcast to \(3,\)"):
        x.at[rows].set([1.0, 2.0])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (([0, 2],), "within 2 along axis 0, got 2 into"),
        ((0, [1, -4]), "within 3 along axis 1, got -4 into"),
        (([0.5],), "arrays of ints or bools"),
        (("a",), "arrays of ints or bools"),
        (([True, False, True],), r"a mask of shape \(2,\) from axis 0 on, got shape \(3,\)"),
        (([0, 1], [0, 1, 2]), r"broadcast together, got shapes \(2,\), \(3,\)"),
        (([0], [0], [0]), "at most 2 indices, got 3"),
        ((op.input("f", (2,)),), r"integers as positions.*op\.cast"),
    ],
)
def test_what_is_no_index_is_refused(key: Any, message: str) -> None:
    x = op.input("x", (2, 3))
    with pytest.raises(IndexingError, match=message):
        x[key]
    with pytest.raises(IndexingError, match=message):
        x.at[key].set(0.0)


def test_values_that_do_not_fit_are_refused() -> None:
    x = op.input("x", (4,), dtype="int32")
    with pytest.raises(DtypeError, match=r"values that int32 can hold.*op\.cast"):
        x.at[[0]].set(0.5)
    with pytest.raises(ShapeError, match=r"broadcast to \(2,\)"):
        x.at[[0, 1]].add([1, 2, 3])
