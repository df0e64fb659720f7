"""Which ops take complex numbers, and how the gradient of each is to be read for them.

The gradient of a real loss L with respect to z = x + iy is dL/dx + i dL/dy, as PyTorch has it: a
step against it makes the loss smaller. All ops that are not named here refuse complex numbers.
"""

from __future__ import annotations

LINEAR = frozenset(
    {
        "add",
        "sub",
        "neg",
        "where",
        "stop_gradient",
        "sum",
        "cumsum",
        "mean",
        "broadcast_to",
        "reshape",
        "transpose",
        "slice",
        "unslice",
        "pad",
        "flip",
        "concat",
        "split",
        "arrange",
        "tile",
        "repeat",
        "gather",
        "scatter_add",
        "take_along_axis",
        "put_along_axis_add",
        "tril",
        "triu",
    }
)
"""Linear with real coefficients: the two parts go the same way, and the gradient rule is right."""

HOLOMORPHIC = frozenset(
    {
        "mul",
        "div",
        "pow",
        "square",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "prod",
        "matmul",
    }
)
"""With a complex derivative f'. The rule of an op gives g f', and what is wanted is g conj(f'),
which is the conjugate of the rule's answer to the conjugate of g."""

OWN_RULE = frozenset(
    {
        "abs",
        "sign",
        "cast",
        "conj",
        "real",
        "imag",
        "complex",
        "view_as_real",
        "view_as_complex",
        "equal",
        "not_equal",
        "isfinite",
        "isnan",
        "var",
        "norm",
        "inverse",
        "solve",
        "slogdet",
        "determinant",
        "cholesky",
        "qr",
        "svd",
        "eigh",
        "eig",
        "pinv",
        "expm",
        "scan",
        "fused",
        "assign",
        "spmd",
        "largest_singular",
        "place",
    }
)
"""The gradient rule, or that of each part, knows of complex numbers; or there is no gradient."""

TAKES_COMPLEX = LINEAR | HOLOMORPHIC | OWN_RULE
