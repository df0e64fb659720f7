"""Random arguments for NumPy's functions, by the names of their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from caldera import dmath as dm

DTYPES = (
    *("float64",) * 8,
    *("complex128",) * 3,
    *("int64",) * 3,
    *("float32", "bool", "complex64") * 2,
    *("int32", "uint8", "float16", "int8", "uint64", "int16"),
)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0)
LAYOUTS = (dm.Rows(), dm.Columns(), dm.Replicated(), dm.Axis(-1), dm.Rows(ranks=[1]), None)
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7)


@dataclass(frozen=True, eq=False)
class Leaf:
    """An array of an argument: spread over ranks, NumPy's own, or a list."""

    values: np.ndarray
    kind: str
    layout: Any

    def numpy(self) -> Any:
        """What NumPy is given."""
        return self.values.tolist() if self.kind == "list" else self.values

    def spread(self) -> Any:
        """What dmath is given."""
        if self.kind != "spread":
            return self.numpy()
        layout = self.layout if self.values.ndim else None
        return dm.array(self.values, layout=layout)

    def __repr__(self) -> str:
        text = np.array2string(self.values, separator=", ", threshold=12)
        return f"{self.kind}({' '.join(text.split())}, {self.values.dtype}{self.values.shape})"


class Draw:
    """Random choices of one call."""

    def __init__(self, random: Random, seed: int, name: str) -> None:
        self.random = random
        self.rng = np.random.default_rng(seed)
        self.name = name
        self.dtype = random.choice(DTYPES)
        self.shape = self.any_shape()
        self.is_special = random.random() < 0.25
        self.first = True

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return self.random.random() < share

    def any_shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        """A shape that is no cube."""
        ndim = self.random.choices((0, 1, 2, 3, 4), (1, 6, 8, 5, 2))[0]
        ndim = min(max(ndim, least), most)
        return tuple(self.random.choice(SIZES) for _ in range(ndim))

    def values(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Random numbers; special ones among them in a quarter of the cases."""
        kind = np.dtype(dtype).kind
        numbers = self.rng.normal(size=shape) * self.random.choice((1.0, 3.0))
        if kind == "b":
            return np.asarray(numbers > 0)
        if kind in "iu":
            # The differences of NumPy's quantiles overflow.
            if self.chance(0.08) and not self.name.endswith(("quantile", "percentile")):
                info = np.iinfo(dtype)
                return self.rng.integers(info.min, info.max, shape, dtype, endpoint=True)
            whole = np.rint(numbers * 2)
            return np.asarray(np.abs(whole) if kind == "u" else whole).astype(dtype)
        if self.is_special and np.size(numbers):
            places = self.rng.random(shape) < 0.3
            numbers = np.where(places, self.rng.choice(SPECIAL, shape), np.round(numbers))
        elif self.chance(0.2):
            numbers = np.round(numbers)
        if kind == "c":
            numbers = numbers + 1j * self.rng.normal(size=shape)
        return np.asarray(numbers).astype(dtype)

    def leaf(self, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Leaf:
        """An array; the first of a call is spread over ranks."""
        values = self.values(
            self.shape if shape is None else shape, self.dtype if dtype is None else dtype
        )
        kind = "spread" if self.first else self.random.choice(("spread", "spread", "array", "list"))
        self.first = False
        if kind == "list" and not values.size:
            # A list of nothing has no dtype.
            kind = "array"
        return Leaf(values, kind, self.random.choice(LAYOUTS))

    def other(self) -> Any:
        """An operand that broadcasts to the first, most often."""
        if self.chance(0.2):
            return self.random.choice((2, -1, 0, 1.5, True, 2.5j, np.float32(1.5), np.int64(3), 1))
        shape = self.shape[self.random.randint(0, len(self.shape)) :]
        shape = tuple(1 if self.chance(0.15) else n for n in shape)
        if self.chance(0.05):
            shape = self.any_shape()
        return self.leaf(shape, self.dtype if self.chance(0.5) else self.random.choice(DTYPES))

    def axis(self) -> Any:
        """An axis, seldom one that is not there."""
        n = len(self.shape)
        if self.chance(0.04):
            return self.random.choice((n, -n - 1, 1.5))
        return self.random.randint(-n, n - 1) if n else 0

    def axes(self) -> Any:
        """None, an axis or several."""
        n = len(self.shape)
        if self.chance(0.6) or not n:
            return self.axis()
        count = self.random.randint(0, n)
        chosen = self.random.sample(range(n), count)
        return tuple(i - n if self.chance(0.3) else i for i in chosen)


def _pair_for_product(draw: Draw) -> tuple[Leaf, Leaf]:
    first = draw.any_shape(1, 3)
    inner = first[-1] if first else 1
    rest = draw.random.choice(((inner,), (inner, 3), (inner, 2)))
    if draw.chance(0.1):
        rest = draw.any_shape(1, 3)
    if draw.chance(0.2) and len(first) == 3:
        rest = (first[0], inner, 2)
    second = draw.dtype if draw.chance(0.6) else draw.random.choice(DTYPES)
    return draw.leaf(first), draw.leaf(rest, second)


def _matrix(draw: Draw, square: bool = False) -> Leaf:
    shape = draw.any_shape(2, 3)
    if square and not draw.chance(0.08):
        shape = (*shape[:-1], shape[-2])
    draw.shape = shape
    return draw.leaf(shape)


def _positive(draw: Draw) -> Leaf:
    """A matrix one of whose triangles is that of a positive definite one."""
    leaf = _matrix(draw, square=True)
    x = leaf.values
    if x.shape[-1] == x.shape[-2] and x.dtype.kind in "fc" and x.dtype.itemsize > 2:
        whole = x @ np.conj(np.swapaxes(x, -1, -2)) + 3 * np.eye(x.shape[-1], dtype=x.dtype)
        noise = np.triu(x, 1) if draw.chance(0.5) else np.tril(x, -1)
        return Leaf((whole + noise).astype(x.dtype), leaf.kind, leaf.layout)
    return leaf


def _several(draw: Draw) -> list[Leaf]:
    """Arrays that differ along one axis at most."""
    axis = draw.random.randint(0, max(len(draw.shape) - 1, 0))
    found = []
    for _ in range(draw.random.randint(1, 3)):
        shape = tuple(
            draw.random.choice(SIZES) if i == axis and draw.chance(0.4) else n
            for i, n in enumerate(draw.shape)
        )
        dtype = draw.dtype if draw.chance(0.6) else draw.random.choice(DTYPES)
        found.append(draw.leaf(shape, dtype))
    return found


def _operands(draw: Draw) -> list[Any]:
    text, *shapes = draw.random.choice(
        (
            ("ij,jk->ik", (3, 4), (4, 2)),
            ("ij,jk", (3, 4), (4, 2)),
            ("ij->ji", (3, 4)),
            ("ii->i", (3, 3)),
            ("ii", (4, 4)),
            ("ij->", (3, 4)),
            ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
            ("i,i", (5,), (5,)),
            ("ij,kj->ik", (3, 4), (2, 4)),
            ("...i,...i->...", (2, 3), (2, 3)),
            ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
            ("ij,jk->ik", (3, 4), (3, 2)),
        )
    )
    return [text, *[draw.leaf(shape) for shape in shapes]]


def _shape_of_size(draw: Draw) -> Any:
    size = int(np.prod(draw.shape))
    n = draw.random.randint(1, 7)
    choices: list[Any] = [size, -1, (size,), (-1,), (size, 1), (1, -1), draw.shape[::-1], (2, -1)]
    if size and size % n == 0:
        choices += [(n, -1), (size // n, n), (n, size // n)]
    return draw.random.choice(choices)


def _s(draw: Draw) -> Any:
    return tuple(draw.random.randint(1, 6) for _ in range(draw.random.randint(1, 3)))


def _mask(draw: Draw) -> Leaf:
    return draw.leaf(draw.shape, "bool")


def _indices(draw: Draw) -> Any:
    n = max(int(np.prod(draw.shape)) if draw.chance(0.3) else min(draw.shape or (1,)), 1)
    shape = draw.any_shape(0, 2)
    places = draw.rng.integers(-n, n, shape)
    return places if draw.chance(0.8) else places.tolist()


_ARRAYS = "a x v m ar arr ary array z val A prototype x1 a1 element condition"
ARRAYS: dict[str, Callable[[Draw], Any]] = dict.fromkeys(_ARRAYS.split(), Draw.leaf)
"""What parameters without a default are given, by name."""
ARRAYS |= {
    "b": Draw.other,
    "x2": Draw.other,
    "a2": lambda draw: draw.leaf() if draw.chance(0.5) else draw.other(),
    "values": lambda draw: draw.leaf(),
    "arrays": _several,
    "tup": _several,
    "arys": _several,
    "args": lambda draw: [draw.leaf(), draw.leaf(draw.shape[1:])],
    "operands": _operands,
    "fill_value": lambda draw: draw.random.choice((0, 2, 1.5, -1, True, np.nan)),
    "shape": _shape_of_size,
    "newshape": _shape_of_size,
    "dtype": lambda draw: draw.random.choice(("float64", "int32", "complex64", "bool", "uint8")),
    "axis": Draw.axis,
    "axis1": Draw.axis,
    "axis2": Draw.axis,
    "source": Draw.axis,
    "destination": Draw.axis,
    "shift": lambda draw: draw.random.choice((0, 1, -2, 9, (1, 2))),
    "reps": lambda draw: draw.random.choice((1, 2, 0, (2, 1), (1, 3, 2), (2,))),
    "repeats": lambda draw: draw.random.choice((0, 1, 3, [2], [1, 0, 2], -1)),
    "indices_or_sections": lambda draw: draw.random.choice((1, 2, 3, [1], [0, 2], [2, 9], [-1])),
    "indices": _indices,
    "q": lambda draw: draw.random.choice((0, 0.5, 1, 0.25, [0.1, 0.9], 50, [25, 75], 2, -1)),
    "n": lambda draw: draw.random.choice((0, 1, 2, 3, 5, -1, -2)),
    "pad_width": lambda draw: draw.random.choice((0, 1, 2, (1, 2), ((1, 0),), -1)),
    "arrays_and_dtypes": lambda draw: [draw.leaf(), draw.random.choice((np.float32, np.int8))],
}
OPTIONS: dict[str, Callable[[Draw], Any]] = {
    "axis": Draw.axes,
    "axes": Draw.axes,
    "keepdims": lambda draw: draw.chance(0.7),
    "dtype": lambda draw: draw.random.choice(("float64", "float32", "int64", "complex128")),
    "initial": lambda draw: draw.random.choice((0, 2, 1.5, -3)),
    "where": _mask,
    "ddof": lambda draw: draw.random.choice((0, 1, 2, 0.5, 5)),
    "correction": lambda draw: draw.random.choice((0, 1)),
    "weights": lambda draw: draw.leaf(draw.shape, "float64"),
    "returned": lambda draw: True,
    "method": lambda draw: draw.random.choice(("linear", "lower", "higher", "nearest", "midpoint")),
    "decimals": lambda draw: draw.random.choice((0, 1, 3, -1)),
    "k": lambda draw: draw.random.choice((0, 1, -1, 3, -9)),
    "offset": lambda draw: draw.random.choice((0, 1, -1, 3, -9)),
    "axis1": Draw.axis,
    "axis2": Draw.axis,
    "ord": lambda draw: draw.random.choice(
        (None, 1, 2, -1, -2, 0, 3, 0.5, np.inf, -np.inf, "fro", "nuc", "bad")
    ),
    "p": lambda draw: draw.random.choice((None, 1, 2, -2, -1, np.inf, -np.inf, "fro", "bad")),
    "n": lambda draw: draw.random.choice((1, 2, 3, 4, 5, 8, 0, -1)),
    "s": _s,
    "norm": lambda draw: draw.random.choice((None, "ortho", "forward", "backward", "bad")),
    "UPLO": lambda draw: draw.random.choice(("L", "U", "l", "x")),
    "upper": lambda draw: True,
    "mode": lambda draw: draw.random.choice(
        ("reduced", "complete", "r", "raw", "raise", "wrap", "clip", "edge", "reflect", "constant")
    ),
    "full_matrices": lambda draw: draw.chance(0.5),
    "compute_uv": lambda draw: draw.chance(0.3),
    "hermitian": lambda draw: draw.chance(0.7),
    "rtol": lambda draw: draw.random.choice((1e-3, 0.1, 1e-10)),
    "rcond": lambda draw: draw.random.choice((None, 1e-3, 0.5, -1)),
    "tol": lambda draw: draw.random.choice((None, 1e-3, 0.5)),
    "atol": lambda draw: draw.random.choice((0.0, 1.0)),
    "equal_nan": lambda draw: True,
    "order": lambda draw: draw.random.choice(("C", "F", "A", "K")),
    "kind": lambda draw: draw.random.choice(("stable", "quicksort")),
    "stable": lambda draw: True,
    "casting": lambda draw: draw.random.choice(("same_kind", "unsafe", "safe", "no")),
    "return_index": lambda draw: True,
    "return_inverse": lambda draw: True,
    "return_counts": lambda draw: True,
    "minlength": lambda draw: draw.random.choice((0, 3, 20)),
    "bins": lambda draw: draw.random.choice((1, 4, [-1.0, 0.0, 2.0], [0, 1, 1, 4], [2, 1], "auto")),
    "range": lambda draw: draw.random.choice(((-1, 2), (0, 5), (2, 1), (1, 1))),
    "density": lambda draw: True,
    "rowvar": lambda draw: False,
    "bias": lambda draw: True,
    "y": lambda draw: draw.leaf(draw.shape),
    "fweights": lambda draw: draw.rng.integers(0, 4, draw.shape[-1:] or (1,)),
    "aweights": lambda draw: draw.rng.random(draw.shape[-1:] or (1,)),
    "prepend": lambda draw: draw.random.choice((0, 1.5)) if draw.chance(0.5) else draw.leaf(),
    "append": lambda draw: draw.random.choice((0, 1.5)) if draw.chance(0.5) else draw.leaf(),
    "include_initial": lambda draw: True,
    "nan": lambda draw: 3.0,
    "posinf": lambda draw: 7.0,
    "neginf": lambda draw: -7.0,
    "deg": lambda draw: True,
    "start": lambda draw: draw.random.randint(-1, 2),
    "shape": lambda draw: draw.random.choice(((2, 3), 4, ())),
    "side": lambda draw: "right",
    "a_min": lambda draw: draw.random.choice((None, -1, 0.5, 0)),
    "a_max": lambda draw: draw.random.choice((None, 1, 2.5)),
    "min": lambda draw: draw.random.choice((None, -1, 0.5, draw.leaf(draw.shape))),
    "max": lambda draw: draw.random.choice((None, 1, 2.5)),
    "axisa": Draw.axis,
    "axisb": Draw.axis,
    "axisc": Draw.axis,
    "out": lambda draw: np.zeros(draw.shape),
    "copy": lambda draw: draw.chance(0.7),
    "overwrite_input": lambda draw: True,
    "subok": lambda draw: True,
    "sorted": lambda draw: True,
    "constant_values": lambda draw: draw.random.choice((0, 2, 1.5)),
}
"""What parameters with a default are given now and then, by name."""


def _bound(name: str, draw: Draw) -> dict[str, Any]:
    """Arguments that belong together, of some functions."""
    short = name.rsplit(".", 1)[-1]
    if short in ("matmul", "dot", "inner", "vecdot"):
        first, second = _pair_for_product(draw)
        if short in ("inner", "vecdot") and second.values.ndim > 1:
            second = (
                draw.leaf((2, first.values.shape[-1]))
                if short == "inner"
                else draw.leaf(first.values.shape)
            )
        keys = ("x1", "x2") if name.startswith(("matmul", "vecdot", "linalg")) else ("a", "b")
        draw.shape = first.values.shape
        return dict(zip(keys, (first, second), strict=True))
    if short == "tensordot":
        first, second, axes = draw.random.choice(
            (
                ((2, 3, 4), (4, 3, 2), ([1, 2], [1, 0])),
                ((2, 3), (3, 4), 1),
                ((2, 3), (2, 3), 2),
                ((2,), (3,), 0),
                ((2, 3, 4), (3, 4, 5), 2),
                ((2, 3), (4, 3), (1, 1)),
                ((2, 3), (4, 3), (-1, -1)),
                ((2, 3), (4, 3), 1),
            )
        )
        keys = ("x1", "x2") if name.startswith("linalg") else ("a", "b")
        return {keys[0]: draw.leaf(first), keys[1]: draw.leaf(second), "axes": axes}
    if short == "multi_dot":
        return {"arrays": [draw.leaf(shape) for shape in ((2, 3), (3, 4), (4, 2))]}
    if short == "cross":
        draw.shape = (*draw.any_shape(0, 2), 3)
        keys = ("x1", "x2") if name.startswith("linalg") else ("a", "b")
        return {keys[0]: draw.leaf(), keys[1]: draw.leaf(draw.shape[-1:])}
    if short in ("solve", "lstsq"):
        square = short == "solve" or draw.chance(0.2)
        first = _matrix(draw, square)
        rows = first.values.shape[-2]
        batch = first.values.shape[:-2] if short == "solve" else ()
        second = draw.random.choice(((rows,), (*batch, rows, 2), (rows, 1), (*batch, rows)))
        return {"a": first, "b": draw.leaf(second)}
    if short == "cholesky":
        return {"a": _positive(draw)}
    square = ("inv", "det", "slogdet", "eigh", "eigvalsh", "matrix_power", "cond")
    if short in square:
        return {"x" if short == "cond" else "a": _matrix(draw, True)}
    if short in ("svd", "svdvals", "qr", "pinv", "matrix_rank"):
        key = {"matrix_rank": "A", "svdvals": "x"}.get(short, "a")
        return {key: _matrix(draw, draw.chance(0.4))}
    if short == "searchsorted":
        line = draw.leaf((draw.random.choice(SIZES),))
        return {"a": Leaf(np.sort(line.values), "spread", None), "v": draw.other()}
    if short == "take_along_axis":
        leaf = draw.leaf(draw.any_shape(1, 3))
        axis = draw.random.randint(0, leaf.values.ndim - 1)
        n = leaf.values.shape[axis]
        shape = [2 if i == axis else k for i, k in enumerate(leaf.values.shape)]
        places = draw.rng.integers(0, max(n, 1), shape)
        return {"arr": leaf, "indices": places, "axis": axis}
    if short == "bincount":
        line = draw.rng.integers(-1 if draw.chance(0.1) else 0, 6, draw.random.choice(SIZES))
        return {"x": Leaf(line, "spread", None)}
    if short == "where":
        if draw.chance(0.4):
            return {"condition": draw.leaf()}
        return {"condition": draw.leaf(draw.shape, "bool"), "x": draw.other(), "y": draw.other()}
    if short == "broadcast_to":
        shape = (*draw.any_shape(0, 1), *draw.shape)
        return {"shape": shape if draw.chance(0.9) else draw.any_shape()}
    return {}


def arguments(function: Any, name: str, draw: Draw) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a call."""
    if name.endswith((".reduce", ".accumulate")):
        options = {"axis": draw.axis()} if draw.chance(0.7) else {}
        first = draw.leaf()
        if name.endswith(".reduce") and draw.chance(0.4):
            options["keepdims"] = True
        return [first], options
    ufunc = name.endswith(".outer") or isinstance(function, np.ufunc)
    if ufunc:
        count = 2 if name.endswith(".outer") else function.nin
        known = _bound(name, draw)
        args = list(known.values()) or [draw.leaf(), draw.other()][:count]
        if len(args) == 2 and draw.chance(0.3):
            args.reverse()
        options = {"dtype": OPTIONS["dtype"](draw)} if draw.chance(0.06) else {}
        if draw.chance(0.06):
            options["casting"] = OPTIONS["casting"](draw)
        return args, options
    parameters = inspect.signature(function).parameters
    found = _bound(name, draw)
    args, options = [], {}
    names_only = False
    for each, parameter in parameters.items():
        required = parameter.default is parameter.empty
        if each in found:
            value = found[each]
        elif parameter.kind is parameter.VAR_KEYWORD:
            if name == "pad" and draw.chance(0.3):
                options["constant_values"] = OPTIONS["constant_values"](draw)
            continue
        elif required:
            value = ARRAYS[each](draw)
        elif each in OPTIONS and draw.chance(0.04 if each == "out" else 0.3):
            value = OPTIONS[each](draw)
        else:
            names_only = names_only or parameter.kind is not parameter.POSITIONAL_ONLY
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += value
        elif parameter.kind is parameter.KEYWORD_ONLY or (names_only and not required):
            options[each] = value
        elif required or draw.chance(0.5):
            args.append(value)
        else:
            options[each] = value
            names_only = True
    return args, options
