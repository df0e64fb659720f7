"""Cases for complex numbers: their parts, functions and products of them, matrices."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, complex_numbers, numbers

_z, _w = complex_numbers(2, 3), complex_numbers(3, seed=1)
_square = complex_numbers(2, 3, 3) + 3 * np.diag([1, 2, 3])

CASES = [
    Case(
        "complex",
        lambda a, b: op.square(op.complex(a, b)),
        (numbers(2, 3), numbers(3, seed=1)),
        lambda a, b: (a + 1j * b) ** 2,
        order=2,
    ),
    Case("real", lambda z: op.real(z * z), (_z,), lambda z: (z * z).real, order=2),
    Case("imag", lambda z: op.imag(z * z), (_z,), lambda z: (z * z).imag, order=2),
    Case("conj", lambda z: op.conj(z) * z * z, (_z,), lambda z: np.conj(z) * z * z, order=2),
    Case("atan2", lambda z: op.angle(z), (_z,), np.angle, order=2),
    Case(
        "view_as_real",
        lambda z: op.square(op.view_as_real(z)),
        (_z,),
        lambda z: np.stack([z.real, z.imag], -1) ** 2,
        order=2,
    ),
    Case(
        "view_as_complex",
        lambda x: op.square(op.view_as_complex(x)),
        (numbers(3, 2),),
        lambda x: (x[:, 0] + 1j * x[:, 1]) ** 2,
        order=2,
    ),
    Case("abs", lambda z: op.abs(z), (_z,), np.abs, name="complex", order=2),
    Case("sign", lambda z: op.sign(z), (_z,), lambda z: z / np.abs(z), name="complex", order=2),
    Case(
        "cast",
        lambda x: op.cast(x, "complex128") * _w,
        (numbers(2, 3),),
        lambda x: x * _w,
        name="to complex",
        order=2,
    ),
]

_FUNCTIONS = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "rsqrt": lambda z: 1 / np.sqrt(z),
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
CASES += [
    # Several in one plan, which has to be compiled once.
    Case(
        names[0],
        lambda z, names=names: tuple(getattr(op, name)(z) for name in names),
        (_z,),
        lambda z, names=names: tuple(_FUNCTIONS[name](z) for name in names),
        name="complex ...",
    )
    for names in (list(_FUNCTIONS)[:12], list(_FUNCTIONS)[12:])
]

CASES += [
    Case(name, function, (_z, _w), function, name="complex", order=1 if name == "pow" else 2)
    for name, function in (
        ("add", lambda a, b: a * a + b),
        ("sub", lambda a, b: a * a - b),
        ("mul", lambda a, b: a * b),
        ("div", lambda a, b: a / b),
        ("neg", lambda a, b: -a * b),
        ("pow", lambda a, b: a**b),
        ("matmul", lambda a, b: a @ b),
    )
]
CASES += [
    Case(name, function, (_w,), function, name="complex and a number")
    for name, function in (
        ("pow", lambda a: a**3),
        ("pow", lambda a: a**-2.0),
        ("pow", lambda a: a**0.5),
        ("mul", lambda a: (2 - 1j) * a * a),
        ("div", lambda a: (2 + 1j) / a),
        ("pow", lambda a: (0.5 + 2j) ** a),
    )
]
CASES += [
    Case(
        "matmul",
        lambda a, b: op.matmul(a, b, transpose_a=True),
        (_square, _square[:1]),
        lambda a, b: np.swapaxes(a, -1, -2) @ b,
        name="complex transposed",
        order=2,
    ),
    Case(
        "matmul",
        lambda a, b: op.cast(a, "complex128") @ b,
        (numbers(2, 3), _square),
        lambda a, b: a @ b,
        name="real with complex",
    ),
    Case(
        "matmul",
        lambda a, b: op.einsum("bij,jk->bk", a, b),
        (_square, complex_numbers(3, 2)),
        lambda a, b: np.einsum("bij,jk->bk", a, b),
        name="einsum",
    ),
    Case(
        "where",
        lambda a, b: op.where(np.array([True, False, True]), a * a, b),
        (_z, _w),
        lambda a, b: np.where([True, False, True], a * a, b),
        name="complex",
    ),
    Case(
        "pad",
        lambda z: op.pad(z * z, 1, 2 - 1j),
        (_z,),
        lambda z: np.pad(z * z, 1, constant_values=2 - 1j),
        name="complex",
    ),
    Case(
        "gather",
        lambda z: op.gather(z * z, [2, 0, 2], axis=1),
        (_z,),
        lambda z: (z * z)[:, [2, 0, 2]],
        name="complex",
    ),
    Case(
        "concat",
        lambda a, b: op.concat([a * a, op.reshape(b, (1, 3))], 0),
        (_z, _w),
        lambda a, b: np.concatenate([a * a, b[None]], 0),
        name="complex",
    ),
    Case(
        "transpose",
        lambda z: op.transpose(z * z)[::-1],
        (_z,),
        lambda z: (z * z).T[::-1],
        name="complex",
    ),
    Case("sum", lambda z: op.sum(z * z, axis=0), (_z,), lambda z: (z * z).sum(0), name="complex"),
    Case(
        "cumsum",
        lambda z: op.cumsum(z * z, axis=1),
        (_z,),
        lambda z: (z * z).cumsum(1),
        name="complex",
    ),
    Case(
        "mean", lambda z: op.mean(z * z, axis=1), (_z,), lambda z: (z * z).mean(1), name="complex"
    ),
    Case("var", lambda z: op.variance(z, axis=1), (_z,), lambda z: z.var(1), name="complex"),
    Case("tril", lambda z: op.tril(z * z), (_z,), lambda z: np.tril(z * z), name="complex"),
    Case(
        "scan",
        lambda z: op.scan(lambda c, x: (c * x, c + x), 1j * z[0], z)[1],
        (_z,),
        lambda z: np.stack([1j * z[0] + z[0], 1j * z[0] ** 2 + z[1]]),
        name="complex",
        order=2,
    ),
]
CASES += [
    Case(
        "prod",
        lambda z, a=axis: op.prod(z, axis=a),
        (complex_numbers(*shape),),
        lambda z, a=axis: z.prod(axis=a),
        name=f"complex {axis}",
    )
    for shape, axis in (((5,), None), ((2, 2), 1), ((0, 2), 0))
]
CASES += [
    Case(
        "norm",
        lambda z, p=order: op.norm(z, p, axis=1),
        (_z,),
        lambda z, p=order: np.linalg.norm(z, p, axis=1),
        name=f"complex {order}",
    )
    for order in (1, 2, np.inf)
]


# --- matrices


def _hermitian(x: np.ndarray) -> np.ndarray:
    return (x + np.conj(np.swapaxes(x, -1, -2))) / 2


def _directions(vectors: np.ndarray) -> np.ndarray:
    """The direction of each column of one matrix: that of the first of its largest components."""
    found = np.ones(vectors.shape[1], vectors.dtype)
    for column in range(vectors.shape[1]):
        largest = max(abs(vectors[:, column]))
        deciding = next(x for x in vectors[:, column] if abs(x) >= 0.99 * largest)
        found[column] = deciding / abs(deciding)
    return found


def _svd(x: np.ndarray) -> tuple[np.ndarray, ...]:
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    directions = _directions(u)
    return u * directions.conj(), s, vh * directions[:, None]


def _qr(x: np.ndarray) -> tuple[np.ndarray, ...]:
    q, r = np.linalg.qr(x)
    directions = np.diagonal(r) / np.abs(np.diagonal(r))
    return q * directions, r * directions.conj()[:, None]


def _eigh(x: np.ndarray) -> tuple[np.ndarray, ...]:
    w, v = np.linalg.eigh(_hermitian(x))
    return w, v * _directions(v).conj()


def _eig(x: np.ndarray) -> tuple[np.ndarray, ...]:
    w, v = np.linalg.eig(x.astype("complex128"))
    order = np.argsort(w.real)
    return w[order], (v * _directions(v).conj())[:, order]


def _in_order(a: object) -> tuple[object, ...]:
    w, v = op.eig(a)
    order = op.argsort(op.stop_gradient(op.real(w)), axis=0)
    return op.gather(w, order, axis=0), op.gather(v, order, axis=1)


_one = _square[0]
_tall, _wide = complex_numbers(4, 2) + 2 * np.eye(4, 2), complex_numbers(2, 3) + 2 * np.eye(2, 3)
_spread = complex_numbers(3, 3) / 2 + np.diag([1, 5, 9])
_positive = _one @ _one.conj().T + np.eye(3)

CASES += [
    Case("inverse", op.inverse, (_square,), np.linalg.inv, name="complex", order=2),
    Case(
        "solve",
        op.solve,
        (_square, complex_numbers(3, 2)),
        lambda a, b: np.linalg.solve(a, np.broadcast_to(b, (2, 3, 2))),
        name="complex",
        order=2,
    ),
    Case("determinant", op.determinant, (_square,), np.linalg.det, name="complex", order=2),
    Case(
        "slogdet",
        op.slogdet,
        (_square,),
        lambda a: tuple(np.linalg.slogdet(a)),
        name="complex",
        order=2,
    ),
    Case(
        "cholesky",
        op.cholesky,
        (_positive,),
        lambda a: np.linalg.cholesky(_hermitian(a)),
        name="complex",
        order=2,
    ),
    Case("qr", op.qr, (_one,), _qr, name="complex", order=2),
    Case("qr", op.qr, (_tall,), _qr, name="complex"),
    Case("qr", op.qr, (_wide,), _qr, name="complex"),
    Case("svd", op.svd, (_one,), _svd, name="complex", order=2),
    Case("svd", op.svd, (_tall,), _svd, name="complex"),
    Case("svd", op.svd, (_wide,), _svd, name="complex"),
    Case("svd", lambda a: op.svd(a)[2], (_one,), lambda a: _svd(a)[2], name="complex V"),
    Case("eigh", op.eigh, (_spread,), _eigh, name="complex", order=2),
    Case("eig", _in_order, (_spread,), _eig, name="complex", order=2),
    Case("eig", _in_order, (numbers(3, 3) / 2 + np.diag([1, 5, 9]),), _eig, name="real"),
    Case("pinv", op.pinv, (_tall,), np.linalg.pinv, name="complex"),
    Case(
        "expm",
        op.expm,
        (np.array([[1j, 0.5], [-0.5, 2 - 1j]]),),
        lambda a: _exponential(a),
        name="complex",
        differentiable=False,
    ),
]


def _exponential(a: np.ndarray) -> np.ndarray:
    w, v = np.linalg.eig(a)
    result: np.ndarray = v @ np.diag(np.exp(w)) @ np.linalg.inv(v)
    return result
