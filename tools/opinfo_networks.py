"""PyTorch's `nn.functional` written with Caldera's operations, as in `tools/opinfo_forms.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from caldera import op
from tools.opinfo_forms import NotExpressed, cast, only


def batched(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """A function of images that also takes one without the axis of the batch, as PyTorch's do."""

    @wraps(function)
    def lifted(x: Any, *rest: Any, **more: Any) -> Any:
        if x.ndim == axes + 2:
            return function(x, *rest, **more)
        if x.ndim != axes + 1:
            raise NotExpressed(f"{x.ndim} axes in place of {axes + 2}")
        return op.squeeze(function(op.unsqueeze(x, 0), *rest, **more), 0)

    return lifted


def pairs(padding: Any, axes: int) -> Any:
    """PyTorch's padding, one number an axis, as Caldera's (before, after) an axis."""
    if isinstance(padding, str):
        return padding
    each = [padding] * axes if isinstance(padding, int) else list(padding)
    each = each * axes if len(each) == 1 else each
    return [(n, n) for n in each] if axes > 1 else (each[0], each[0])


def steps(value: Any, axes: int) -> Any:
    """A number for each axis, or the only number."""
    each = [value] * axes if isinstance(value, int) else list(value)
    each = each * axes if len(each) == 1 else each
    return tuple(each) if axes > 1 else each[0]


def convolution(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """conv1d, conv2d and conv3d, with their bias."""

    def convolve(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        y = function(
            x, weight, steps(stride, axes), pairs(padding, axes), steps(dilation, axes), groups
        )
        return y if bias is None else op.bias_add(y, bias, 1)

    return batched(convolve, axes)


def transposed(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """conv_transpose1d and conv_transpose2d, with their bias."""

    def convolve(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        y = function(
            x,
            weight,
            steps(stride, axes),
            pairs(padding, axes),
            steps(output_padding, axes),
            steps(dilation, axes),
            groups,
        )
        return y if bias is None else op.bias_add(y, bias, 1)

    return batched(convolve, axes)


def max_pool(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """max_pool1d and its like."""

    def pool(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        only(return_indices, False, "return_indices")
        step = None if stride is None or stride == () else steps(stride, axes)
        return function(
            x,
            steps(kernel_size, axes),
            step,
            pairs(padding, axes),
            steps(dilation, axes),
            ceil_mode,
        )

    return batched(pool, axes)


def avg_pool(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """avg_pool1d and its like."""

    def pool(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        only(divisor_override, None, "divisor_override")
        step = None if stride is None or stride == () else steps(stride, axes)
        return function(
            x, steps(kernel_size, axes), step, pairs(padding, axes), count_include_pad, ceil_mode
        )

    return batched(pool, axes)


def adaptive_average(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """Windows of one size alone."""

    def pool(x: Any, output_size: Any) -> Any:
        wanted = steps(output_size, axes)
        each = wanted if isinstance(wanted, tuple) else (wanted,)
        lengths = list(zip(x.shape[2:], each, strict=True))
        if any(new is None or new == 0 or n % new for n, new in lengths):
            raise NotExpressed("windows of different sizes")
        size = tuple(n // new for n, new in lengths)
        return function(x, size if axes > 1 else size[0])

    return batched(pool, axes)


def padded(mode: str) -> Callable[..., Any]:
    """`pad`: PyTorch names the last axis first."""

    def pad(x: Any, pad: Any, mode: str = mode, value: Any = None) -> Any:
        given = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
        widths = [(0, 0)] * (x.ndim - len(given)) + given
        if any(n < 0 for pair in widths for n in pair):
            raise NotExpressed("negative padding")
        return op.pad(x, widths, 0 if value is None else value, mode)

    return pad


def resized(mode: str, corners: bool = False) -> Callable[..., Any]:
    """`interpolate` of images."""

    def resize(
        x: Any,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = mode,
        align_corners: Any = corners,
        recompute_scale_factor: Any = None,
    ) -> Any:
        if x.ndim != 4:
            raise NotExpressed(f"{x.ndim} axes: images have 4")
        if recompute_scale_factor:
            raise NotExpressed("recompute_scale_factor")
        wanted = size if size is None or isinstance(size, int) else tuple(size)
        return op.interpolate(x, wanted, scale_factor, mode, bool(align_corners))

    return resize


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """With the statistics of the batch, or with those that are given."""
    if x.ndim < 2:
        raise NotExpressed("an input without channels")
    scale, shift = affine(weight, bias, (x.shape[1],), x)
    if training:
        return op.batch_norm(x, scale, shift, eps=eps)[0]
    return op.batch_norm(x, scale, shift, running_mean, running_var, eps)


def affine(weight: Any, bias: Any, shape: Any, x: Any) -> tuple[Any, Any]:
    """The scale and the shift, 1 and 0 if they are not given."""
    scale = op.ones(shape, str(x.dtype)) if weight is None else weight
    return scale, op.zeros(shape, str(x.dtype)) if bias is None else bias


def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Over the last axes."""
    scale, shift = affine(weight, bias, tuple(shape), x)
    return op.layer_norm(x, scale, shift, tuple(range(-len(shape), 0)), eps)


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """Over the last axes; PyTorch's eps is the precision of the dtype."""
    small = float(np.finfo(str(x.dtype)).eps) if eps is None else eps
    return op.rms_norm(x, weight, tuple(range(-len(shape), 0)), small)


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Over groups of channels."""
    scale, shift = affine(weight, bias, (x.shape[1],), x)
    return op.group_norm(x, groups, scale, shift, eps)


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Over each channel of each sample."""
    if not use_input_stats:
        raise NotExpressed("use_input_stats=False")
    return op.instance_norm(x, weight, bias, eps)


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Classes on axis 1; a weight by class is gathered by the labels."""
    only(label_smoothing, 0.0, "label_smoothing")
    axis = 1 if x.ndim > 1 else 0
    if target.ndim == x.ndim:
        return soft_cross_entropy(x, target, weight, reduction, axis)
    weights = None if weight is None else op.gather(weight, target)
    if (target == ignore_index).any():
        seen = op.cast(target != ignore_index, str(x.dtype))
        weights = seen if weights is None else op.mul(weights, seen)
    return op.cross_entropy(x, target, reduction, weights, axis)


def soft_cross_entropy(x: Any, target: Any, weight: Any, reduction: str, axis: int) -> Any:
    """Of probabilities; PyTorch divides the mean by the number of samples, whatever the weights."""
    if weight is not None:
        raise NotExpressed("weights by class together with probabilities")
    return op.cross_entropy(x, target, reduction, None, axis)


def nll(
    x: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Of log-probabilities, which need not be normalised."""
    axis = 1 if x.ndim > 1 else 0
    known = np.where(target == ignore_index, 0, target)
    losses = op.squeeze(op.neg(op.take_along_axis(x, np.expand_dims(known, axis), axis)), axis)
    weights = op.ones(known.shape, str(x.dtype)) if weight is None else op.gather(weight, known)
    weights = op.mul(weights, op.cast(target != ignore_index, str(x.dtype)))
    losses = op.mul(losses, weights)
    if reduction == "none":
        return losses
    return op.sum(losses) if reduction == "sum" else op.div(op.sum(losses), op.sum(weights))


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of predictions and targets of one shape."""

    def compare(
        x: Any,
        target: Any,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        weight: Any = None,
        delta: Any = None,
    ) -> Any:
        if weight is not None:
            raise NotExpressed("weight")
        if tuple(x.shape) != tuple(target.shape):
            raise NotExpressed("targets that broadcast")
        more = {} if delta is None else {"delta": delta}
        return function(x, target, reduction=reduction, **more)

    return compare


def smooth_l1(
    x: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    """Huber's loss divided by beta."""
    if tuple(x.shape) != tuple(target.shape):
        raise NotExpressed("targets that broadcast")
    if beta == 0:
        return op.mean_absolute_error(x, target, reduction)
    return op.div(op.huber(x, target, beta, reduction), beta)


def kl(
    x: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    """PyTorch's is one number an element; Caldera's is summed along an axis: of size 1 here."""
    if tuple(x.shape) != tuple(target.shape):
        raise NotExpressed("targets that broadcast")
    known = op.exp(target) if log_target else target
    parts = op.kl_divergence(op.unsqueeze(x, -1), op.unsqueeze(known, -1), "none")
    if reduction == "batchmean":
        return op.div(op.sum(parts), x.shape[0] if x.ndim else 1)
    return parts if reduction == "none" else getattr(op, reduction)(parts)


def attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """PyTorch's causal mask begins with the first key, Caldera's ends with the last."""
    only(dropout_p, 0.0, "dropout_p")
    if enable_gqa:
        k, v = (op.repeat(each, q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    if is_causal and q.shape[-2] != k.shape[-2]:
        attn_mask, is_causal = np.tri(q.shape[-2], k.shape[-2], dtype=bool), False
    return op.scaled_dot_product_attention(q, k, v, attn_mask, is_causal, scale)


def embedding(
    table: Any,
    indices: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows of a table; a row of padding gets no gradient."""
    only(max_norm, None, "max_norm")
    only(scale_grad_by_freq, False, "scale_grad_by_freq")
    rows = op.embedding(table, indices)
    if padding_idx is None:
        return rows
    padding = np.expand_dims(indices == padding_idx % table.shape[0], -1)
    return op.where(padding, op.stop_gradient(rows), rows)


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    """PyTorch's is x itself above the threshold; at 20 that is 2e-9 less."""
    only(threshold, 20, "threshold")
    return op.div(op.softplus(op.mul(x, beta)), beta)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """PyTorch's weights are (outputs, inputs)."""
    y = op.matmul(x, op.transpose(weight))
    return y if bias is None else op.add(y, bias)


NETWORKS: dict[str, Callable[..., Any]] = {
    "nn.functional.relu": lambda x, inplace=False: op.relu(x),
    "nn.functional.relu6": lambda x, inplace=False: op.clip(x, 0.0, 6.0),
    "nn.functional.silu": lambda x, inplace=False: op.silu(x),
    "nn.functional.selu": lambda x, inplace=False: op.selu(x),
    "nn.functional.hardswish": lambda x, inplace=False: op.hard_swish(x),
    "nn.functional.leaky_relu": lambda x, negative_slope=0.01, inplace=False: op.leaky_relu(
        x, negative_slope
    ),
    "nn.functional.elu": lambda x, alpha=1.0, inplace=False: op.elu(x, alpha),
    "nn.functional.celu": lambda x, alpha=1.0, inplace=False: op.mul(
        op.elu(op.div(x, alpha)), alpha
    ),
    "nn.functional.gelu": lambda x, *, approximate="none": op.gelu(x, approximate == "tanh"),
    "nn.functional.softplus": softplus,
    "nn.functional.hardtanh": lambda x, min_val=-1.0, max_val=1.0, inplace=False: op.clip(
        x, min_val, max_val
    ),
    "nn.functional.logsigmoid": lambda x: op.neg(op.softplus(op.neg(x))),
    "nn.functional.tanhshrink": lambda x: op.sub(x, op.tanh(x)),
    "nn.functional.threshold": lambda x, threshold, value, inplace=False: op.where(
        op.greater(x, threshold), x, value
    ),
    "nn.functional.softshrink": lambda x, lambd=0.5: op.sub(x, op.clip(x, -lambd, lambd)),
    "nn.functional.hardshrink": lambda x, lambd=0.5: op.where(op.greater(op.abs(x), lambd), x, 0.0),
    "nn.functional.glu": lambda x, dim=-1: (lambda a, b: op.mul(a, op.sigmoid(b)))(
        *op.split(x, 2, dim)
    ),
    "nn.functional.prelu": lambda x, weight: op.prelu(
        x, op.reshape(weight, () if weight.size == 1 else (-1, *[1] * max(x.ndim - 2, 0)))
    ),
    "softmax": lambda x, dim, *, dtype=None: op.softmax(cast(x, dtype), dim),
    "softmax.with_dtype": lambda x, dim, *, dtype=None: op.softmax(cast(x, dtype), dim),
    "log_softmax": lambda x, dim, *, dtype=None: op.log_softmax(cast(x, dtype), dim),
    "log_softmax.with_dtype": lambda x, dim, *, dtype=None: op.log_softmax(cast(x, dtype), dim),
    "nn.functional.softmin": lambda x, dim, *, dtype=None: op.softmax(op.neg(cast(x, dtype)), dim),
    "nn.functional.softmin.with_dtype": lambda x, dim, *, dtype=None: op.softmax(
        op.neg(cast(x, dtype)), dim
    ),
    "nn.functional.linear": linear,
    "nn.functional.conv1d": convolution(op.conv1d, 1),
    "nn.functional.conv2d": convolution(op.conv2d, 2),
    "nn.functional.conv3d": convolution(op.conv3d, 3),
    "nn.functional.conv_transpose1d": transposed(op.conv_transpose1d, 1),
    "nn.functional.conv_transpose2d": transposed(op.conv_transpose2d, 2),
    "nn.functional.conv_transpose3d": transposed(op.conv_transpose3d, 3),
    "nn.functional.max_pool1d": max_pool(op.max_pool1d, 1),
    "nn.functional.max_pool2d": max_pool(op.max_pool2d, 2),
    "nn.functional.max_pool3d": max_pool(op.max_pool3d, 3),
    "nn.functional.avg_pool1d": avg_pool(op.avg_pool1d, 1),
    "nn.functional.avg_pool2d": avg_pool(op.avg_pool2d, 2),
    "nn.functional.avg_pool3d": avg_pool(op.avg_pool3d, 3),
    "nn.functional.adaptive_avg_pool1d": adaptive_average(op.avg_pool1d, 1),
    "nn.functional.adaptive_avg_pool2d": adaptive_average(op.avg_pool2d, 2),
    "nn.functional.adaptive_avg_pool3d": adaptive_average(op.avg_pool3d, 3),
    "constant_pad_nd": lambda x, pad, value=0: padded("constant")(x, pad, value=value),
    "nn.functional.pad.constant": padded("constant"),
    "nn.functional.pad.reflect": padded("reflect"),
    "nn.functional.pad.replicate": padded("replicate"),
    "nn.functional.pad.replicate_negative": padded("replicate"),
    "nn.functional.pad.circular": padded("circular"),
    "nn.functional.interpolate.nearest": resized("nearest"),
    "nn.functional.interpolate.bilinear": resized("bilinear"),
    "nn.functional.interpolate.bicubic": resized("bicubic"),
    "nn.functional.upsample_nearest": resized("nearest"),
    "nn.functional.upsample_bilinear": resized("bilinear", corners=True),
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.local_response_norm": lambda x, size, alpha=1e-4, beta=0.75, k=1.0: (
        op.local_response_norm(x, size, alpha, beta, k)
    ),
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.nll_loss": nll,
    "nn.functional.mse_loss": loss(op.mean_squared_error),
    "nn.functional.l1_loss": loss(op.mean_absolute_error),
    "nn.functional.huber_loss": loss(op.huber),
    "nn.functional.smooth_l1_loss": smooth_l1,
    "nn.functional.binary_cross_entropy_with_logits": loss(op.binary_cross_entropy),
    "nn.functional.kl_div": kl,
    "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.pixel_shuffle": lambda x, upscale_factor: op.pixel_shuffle(x, upscale_factor),
    "nn.functional.pixel_unshuffle": lambda x, downscale_factor: op.pixel_unshuffle(
        x, downscale_factor
    ),
    "nn.functional.unfold": lambda x, kernel_size, dilation=1, padding=0, stride=1: op.unfold(
        x, steps(kernel_size, 2), steps(stride, 2), pairs(padding, 2), steps(dilation, 2)
    ),
}
