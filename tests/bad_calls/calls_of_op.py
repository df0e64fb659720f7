"""A valid call of each function of `caldera.op`."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from tests.bad_calls.damage import Given


def x(*shape: int) -> np.ndarray:
    return np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def labels(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape) % 2


def square() -> np.ndarray:
    return x(3, 3) + 3 * np.eye(3, dtype=np.float32)


def variable() -> Any:
    return op.var("v", (2, 3), fill=x(2, 3))


UNARY = """
abs acos acosh angle asin asinh atan atanh ceil conj cos cosh digamma elu erf erfc erfinv exp exp2
expm1 flatten flip floor gelu hard_sigmoid hard_swish imag isfinite isinf isnan leaky_relu lgamma
log log1p log2 log10 log_softmax mish nan_to_num neg positive rbf real reciprocal relu round rsqrt
selu sigmoid sign signbit silu sin sinh softmax softplus softsign sort argsort sqrt square squeeze
stop_gradient tan tanh transpose trunc tril triu diagonal trace rfft rfft2 fft fft2 fftn ifft
ifft2 ifftn irfft irfft2 dropout permutation rms_norm
""".split()  # noqa: SIM905 - a table of names
BINARY = """
add atan2 complex copysign div equal floor_div greater greater_equal hypot less less_equal logaddexp
maximum minimum mod mul not_equal pow sub isclose mean_absolute_error mean_squared_error huber hinge
binary_cross_entropy kl_divergence cross_entropy_epsilon kron
""".split()  # noqa: SIM905 - a table of names
REDUCED = """
all any argmax argmin logsumexp max mean median min norm prod std sum variance
""".split()  # noqa: SIM905 - a table of names
ALONG = """
cummax cummin cumprod cumsum
""".split()  # noqa: SIM905 - a table of names
SQUARE = """
cholesky determinant eig eigh eigvals expm inverse pinv qr slogdet svd
""".split()  # noqa: SIM905 - a table of names
LOGICAL = """
logical_and logical_or logical_xor
""".split()  # noqa: SIM905 - a table of names
BITWISE = """
bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor
""".split()  # noqa: SIM905 - a table of names


def _grad(f: Any) -> Any:
    v = op.var("v", (2,), fill=x(2))
    return f(op.sum(v * v), v)


CALLS: dict[str, Given] = {
    **{name: lambda f: f(x(3, 4)) for name in UNARY},
    **{name: lambda f: f(x(2, 3), x(2, 3)) for name in BINARY},
    **{name: lambda f: f(x(2, 3), axis=1) for name in REDUCED},
    **{name: lambda f: f(x(2, 3), 1) for name in ALONG},
    **{name: lambda f: f(square() @ square().T) for name in SQUARE},
    **{name: lambda f: f(x(2) > 0.5, x(2) > 0.2) for name in LOGICAL},
    "logical_not": lambda f: f(x(2) > 0.5),
    "bitwise_invert": lambda f: f(labels(2)),
    **{name: lambda f: f(labels(2), labels(2)) for name in BITWISE},
    "all_gather": lambda f: f(x(2, 3), [2, 2], 0, dim=0, axis="model"),
    "sum_scatter": lambda f: f(x(4, 3), [2, 2], 0, dim=0, axis="model"),
    "all_sum": lambda f: f(x(2, 3), axis="data"),
    "arange": lambda f: f(0, 5, 2),
    "assign": lambda f: f(variable(), x(2, 3)),
    "avg_pool1d": lambda f: f(x(1, 2, 6), 2),
    "avg_pool2d": lambda f: f(x(1, 2, 6, 6), 2),
    "avg_pool3d": lambda f: f(x(1, 1, 4, 4, 4), 2),
    "max_pool1d": lambda f: f(x(1, 2, 6), 2),
    "max_pool2d": lambda f: f(x(1, 2, 6, 6), 2),
    "max_pool3d": lambda f: f(x(1, 1, 4, 4, 4), 2),
    "batch_norm": lambda f: f(x(4, 3), x(3), x(3)),
    "batch_norm_over_ranks": lambda f: f(x(4, 3), x(3), x(3)),
    "bernoulli": lambda f: f((2, 3), 0.5),
    "bias_add": lambda f: f(x(2, 3), x(3)),
    "bincount": lambda f: f(labels(5), 3, x(5)),
    "broadcast": lambda f: f(x(3), (2, 3)),
    "cast": lambda f: f(x(3), "float64"),
    "cdist": lambda f: f(x(2, 3), x(4, 3)),
    "clip": lambda f: f(x(3), 0.2, 0.5),
    "concat": lambda f: f([x(2, 3), x(1, 3)], axis=0),
    "cond": lambda f: f(True, lambda a: a + 1, lambda a: a - 1, x(2)),
    "conv1d": lambda f: f(x(1, 2, 6), x(3, 2, 3)),
    "conv2d": lambda f: f(x(1, 2, 6, 6), x(3, 2, 3, 3)),
    "conv3d": lambda f: f(x(1, 2, 4, 4, 4), x(3, 2, 3, 3, 3)),
    "conv_transpose1d": lambda f: f(x(1, 2, 6), x(2, 3, 3)),
    "conv_transpose2d": lambda f: f(x(1, 2, 6, 6), x(2, 3, 3, 3)),
    "conv_transpose3d": lambda f: f(x(1, 2, 6, 6, 6), x(2, 3, 3, 3, 3)),
    "cross": lambda f: f(x(2, 3), x(2, 3)),
    "cross_entropy": lambda f: f(x(2, 3), labels(2)),
    "ctc_loss": lambda f: f(x(2, 4, 3), labels(2, 1) + 1, [4, 4], [1, 1]),
    "diagonal_matrix": lambda f: f(x(3)),
    "dot": lambda f: f(x(3), x(3)),
    "einsum": lambda f: f("ij,jk->ik", x(2, 3), x(3, 2)),
    "embedding": lambda f: f(x(4, 3), labels(5)),
    "eye": lambda f: f(3, 4, 1),
    "full": lambda f: f((2, 3), 1.5),
    "gather": lambda f: f(x(4, 3), labels(5)),
    "global_average_pool": lambda f: f(x(1, 2, 3, 3)),
    "grad": _grad,
    "group_norm": lambda f: f(x(2, 4, 3), 2, x(4), x(4)),
    "view_as_real": lambda f: f(x(3, 4) + 1j),
    "view_as_complex": lambda f: f(x(3, 2)),
    "input": lambda f: f("x", (2, 3)),
    "instance_norm": lambda f: f(x(2, 4, 3), x(4), x(4)),
    "interpolate": lambda f: f(x(1, 2, 3, 3), size=(4, 5)),
    "layer_norm": lambda f: f(x(2, 3), x(3), x(3)),
    "linear": lambda f: f(x(2, 3), x(3, 4), x(4)),
    "linspace": lambda f: f(0.0, 1.0, 5),
    "local_response_norm": lambda f: f(x(1, 4, 3, 3)),
    "lstsq": lambda f: f(x(4, 2) ** 2, x(4)),
    "matmul": lambda f: f(x(2, 3), x(3, 2)),
    "meshgrid": lambda f: f(x(2), x(3)),
    "moveaxis": lambda f: f(x(2, 3, 4), 0, 2),
    "multinomial": lambda f: f(x(2, 3), 2),
    "nonzero": lambda f: f(x(2, 3), 4),
    "one_hot": lambda f: f(labels(3), 2),
    "ones": lambda f: f((2, 3)),
    "outer": lambda f: f(x(2), x(3)),
    "pad": lambda f: f(x(2, 3), 1),
    "pixel_shuffle": lambda f: f(x(1, 4, 2, 2), 2),
    "pixel_unshuffle": lambda f: f(x(1, 1, 4, 4), 2),
    "prelu": lambda f: f(x(2, 3), x(3)),
    "put_along_axis": lambda f: f(x(2, 3), labels(2, 1), x(2, 1), 1),
    "put_along_axis_add": lambda f: f(x(2, 3), labels(2, 1), x(2, 1), 1),
    "quantile": lambda f: f(x(2, 3), 0.5, 1),
    "random_normal": lambda f: f((2, 3)),
    "random_uniform": lambda f: f((2, 3)),
    "repeat": lambda f: f(x(2, 3), 2, 0),
    "reshape": lambda f: f(x(2, 3), (3, 2)),
    "roll": lambda f: f(x(2, 3), 1, 0),
    "scaled_dot_product_attention": lambda f: f(x(1, 2, 3, 4), x(1, 2, 3, 4), x(1, 2, 3, 4)),
    "associative_scan": lambda f: f(op.add, x(4)),
    "custom_gradient": lambda f: f(op.exp, lambda g, y, a: g, x(4)),
    "grid_sample": lambda f: f(x(1, 2, 3, 4), x(1, 2, 2, 2)),
    "scan": lambda f: f(lambda c, t: (c + t, c), np.float32(0), x(4)),
    "scatter": lambda f: f(x(4, 3), labels(2), x(2, 3)),
    "scatter_add": lambda f: f(x(4, 3), labels(2), x(2, 3)),
    "searchsorted": lambda f: f(x(4), x(2)),
    "skip_gram": lambda f: f(x(2, 4, 3), labels(2), labels(2, 3), 0.1),
    "seed": lambda f: f(3),
    "slice": lambda f: f(x(4, 3), 0, 2, 1),
    "solve": lambda f: f(square(), x(3)),
    "split": lambda f: f(x(4, 3), 2),
    "stack": lambda f: f([x(2), x(2)], axis=0),
    "swapaxes": lambda f: f(x(2, 3), 0, 1),
    "take_along_axis": lambda f: f(x(2, 3), labels(2, 1), 1),
    "tensordot": lambda f: f(x(2, 3), x(3, 2), 1),
    "tile": lambda f: f(x(2, 3), (2, 1)),
    "top_k": lambda f: f(x(2, 3), 2),
    "triangular_solve": lambda f: f(square(), x(3)),
    "unfold": lambda f: f(x(1, 2, 5, 5), 2),
    "unique": lambda f: f(x(4), 4),
    "unsqueeze": lambda f: f(x(2, 3), 1),
    "var": lambda f: f("v", (2, 3), x(2, 3)),
    "where": lambda f: f(x(3) > 0.5, x(3), x(3)),
    "while_loop": lambda f: f(lambda c: c < 3, lambda c: c + 1, np.float32(0), 5),
    "zeros": lambda f: f((2, 3)),
}
