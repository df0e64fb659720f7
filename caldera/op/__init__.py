"""Operations on lazy values: each gives an expression that is computed when asked for."""

from __future__ import annotations

from caldera.lazy import grad, input, var
from caldera.op.activation import (
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log_softmax,
    rbf,
    relu,
    selu,
    silu,
    softmax,
    softplus,
)
from caldera.op.arithmetic import (
    add,
    clip,
    div,
    floor_div,
    maximum,
    minimum,
    mod,
    mul,
    neg,
    pow,
    sub,
)
from caldera.op.attention import scaled_dot_product_attention
from caldera.op.collective import all_sum
from caldera.op.comparison import (
    equal,
    greater,
    greater_equal,
    isfinite,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    where,
)
from caldera.op.control import scan
from caldera.op.convolution import conv1d, conv2d, conv_transpose2d
from caldera.op.fourier import complex_mul, fft, fft2, ifft, ifft2, irfft, irfft2, rfft, rfft2
from caldera.op.functions import (
    abs,
    cast,
    ceil,
    cos,
    erf,
    exp,
    expm1,
    floor,
    log,
    log1p,
    reciprocal,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    stop_gradient,
    tanh,
)
from caldera.op.indexing import (
    argsort,
    gather,
    one_hot,
    put_along_axis_add,
    scatter_add,
    sort,
    take_along_axis,
    top_k,
)
from caldera.op.linalg import (
    cholesky,
    determinant,
    diagonal,
    diagonal_matrix,
    eigh,
    inverse,
    qr,
    slogdet,
    solve,
    svd,
    trace,
    tril,
    triu,
)
from caldera.op.linear import bias_add, embedding, linear
from caldera.op.loss import (
    binary_cross_entropy,
    cross_entropy,
    cross_entropy_epsilon,
    hinge,
    huber,
    kl_divergence,
    mean_absolute_error,
    mean_squared_error,
)
from caldera.op.movement import (
    broadcast,
    concat,
    flatten,
    flip,
    pad,
    repeat,
    reshape,
    slice,
    split,
    squeeze,
    stack,
    tile,
    transpose,
    unsqueeze,
)
from caldera.op.normalisation import batch_norm, group_norm, layer_norm, local_response_norm
from caldera.op.pooling import avg_pool2d, global_average_pool, max_pool2d
from caldera.op.product import dot, einsum, matmul, outer
from caldera.op.random import (
    bernoulli,
    dropout,
    next_step,
    random_normal,
    random_state,
    random_uniform,
    seed,
)
from caldera.op.reduction import (
    all,
    any,
    argmax,
    argmin,
    cumsum,
    logsumexp,
    max,
    mean,
    min,
    norm,
    prod,
    sum,
    variance,
)
from caldera.op.state import assign
