"""Images made larger or smaller: each axis by itself, as a product with a matrix of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float32, is_float
from caldera.errors import ConfigError
from caldera.onnx.operators.registry import Value, axis_of, check_size, integers, numbers, operator


@dataclass(frozen=True)
class _Axis:
    """One axis that changes: its length, the new length, the exact scale, the part of interest."""

    axis: int
    length: int
    wanted: int
    scale: float
    start: float
    end: float


@dataclass(frozen=True)
class _Rule:
    """How new places are found among the old ones, and what is taken there."""

    transformation: str
    mode: str
    nearest: str
    cubic: float
    is_antialiased: bool
    excludes_outside: bool


def _places(given: _Axis, how: str) -> np.ndarray:
    """Where each new element stands on the old axis."""
    check_size((given.wanted,))
    new = np.arange(given.wanted, dtype=np.float64)
    length, scale = given.length, given.scale
    if how == "asymmetric":
        return new / scale
    if how == "align_corners":
        # The new length as the scale has it, which need not be a whole number.
        exact = scale * length
        return new * (length - 1) / (exact - 1) if exact != 1 else new * 0
    if how == "tf_crop_and_resize":
        if given.wanted == 1:
            return np.full(1, 0.5 * (given.start + given.end) * (length - 1))
        step = (given.end - given.start) * (length - 1) / (given.wanted - 1)
        return given.start * (length - 1) + new * step
    if how == "pytorch_half_pixel" and given.wanted == 1:
        return np.zeros(1)
    if how == "half_pixel_symmetric":
        adjusted = given.wanted / (scale * length)
        return length / 2 * (1 - adjusted) + (new + 0.5) / scale - 0.5
    if how in ("half_pixel", "pytorch_half_pixel"):
        return (new + 0.5) / scale - 0.5
    raise ConfigError.build("onnx Resize", expected="a transformation that is known", got=how)


def _nearest(places: np.ndarray, how: str) -> np.ndarray:
    if how == "floor":
        return np.floor(places)
    if how == "ceil":
        return np.ceil(places)
    # Halves go down or up; otherwise it is the nearest.
    return np.ceil(places - 0.5) if how == "round_prefer_floor" else np.floor(places + 0.5)


def _kernel(distance: np.ndarray, mode: str, a: float) -> np.ndarray:
    """The weight of an element at this distance."""
    size = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - size, 0)
    near = (a + 2) * size**3 - (a + 3) * size**2 + 1
    far = a * size**3 - 5 * a * size**2 + 8 * a * size - 4 * a
    return np.where(size <= 1, near, np.where(size < 2, far, 0))


def _weights(given: _Axis, places: np.ndarray, rule: _Rule) -> np.ndarray:
    """The matrix (wanted, length) by which the axis is multiplied."""
    check_size((given.wanted, given.length))
    stretch = max(1.0, 1 / given.scale) if rule.is_antialiased else 1.0
    reach = math.ceil((1 if rule.mode == "linear" else 2) * stretch)
    check_size((given.wanted, 2 * reach + 1))
    base = np.floor(places).astype(np.int64)
    around = base[:, None] + np.arange(-reach, reach + 1)
    weights = _kernel((around - places[:, None]) / stretch, rule.mode, rule.cubic)
    is_inside = (around >= 0) & (around < given.length)
    if rule.excludes_outside:
        weights = np.where(is_inside, weights, 0)
    if rule.excludes_outside or rule.is_antialiased:
        weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((given.wanted, given.length))
    rows = np.broadcast_to(np.arange(given.wanted)[:, None], around.shape)
    # What lies outside counts as the element at the border.
    np.add.at(matrix, (rows, np.clip(around, 0, given.length - 1)), weights)
    return matrix


def _resized(x: Value, given: _Axis, rule: _Rule) -> Value:
    places = _places(given, rule.transformation)
    if rule.mode == "nearest":
        chosen = np.clip(_nearest(places, rule.nearest), 0, given.length - 1)
        return op.gather(x, chosen.astype(np.int64), given.axis)
    matrix = _weights(given, places, rule).astype(x.dtype)
    order = [axis for axis in range(len(x.shape)) if axis != given.axis]
    last = op.transpose(x, (*order, given.axis))
    back = np.argsort([*order, given.axis]).tolist()
    return op.transpose(op.matmul(last, matrix, transpose_b=True), back)


def _outside(given: _Axis, rank: int) -> np.ndarray:
    """Which new elements lie outside of the old ones, in a shape that broadcasts."""
    places = _places(given, "tf_crop_and_resize")
    is_out = (places < 0) | (places > given.length - 1)
    return is_out.reshape([-1 if axis == given.axis else 1 for axis in range(rank)])


def _axes(
    x: Value, roi: Value, scales: Value, sizes: Value, axes: tuple[int, ...] | None, policy: str
) -> list[_Axis]:
    rank = len(x.shape)
    chosen = [axis_of(axis, rank) for axis in (range(rank) if axes is None else axes)]
    lengths = [x.shape[axis] for axis in chosen]
    region = numbers(roi, "a region") if roi is not None and roi.shape[0] else ()
    starts = region[: len(chosen)] or (0.0,) * len(chosen)
    ends = region[len(chosen) :] or (1.0,) * len(chosen)
    if sizes is not None:
        wanted = list(integers(sizes, "sizes"))
        ratios = [want / have for want, have in zip(wanted, lengths, strict=True)]
        if policy != "stretch":
            common = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [common] * len(chosen)
            wanted = [math.floor(common * have + 0.5) for have in lengths]
    else:
        ratios = list(numbers(scales, "scales"))
        wanted = [
            math.floor(have * (end - start) * ratio)
            for have, ratio, start, end in zip(lengths, ratios, starts, ends, strict=True)
        ]
    return [
        _Axis(*each) for each in zip(chosen, lengths, wanted, ratios, starts, ends, strict=True)
    ]


@operator("Resize")
def resize(
    x: Value,
    roi: Value = None,
    scales: Value = None,
    sizes: Value = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    opset: int,
) -> Expr:
    """Elements taken, or weighted, from the places that the new ones have on the old axes."""
    if opset < 11:
        # Its first version had the scales as second input, and places counted from the corner.
        roi, scales, coordinate_transformation_mode = None, roi, "asymmetric"
        nearest_mode = "floor"
    if scales is not None and scales.shape[0] == 0:
        scales = None
    rule = _Rule(
        coordinate_transformation_mode,
        mode,
        nearest_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
    )
    is_cropping = coordinate_transformation_mode == "tf_crop_and_resize"
    found = _axes(x, roi if is_cropping else None, scales, sizes, axes, keep_aspect_ratio_policy)
    y = x if is_float(x.dtype) or mode == "nearest" else op.cast(x, float32)
    for each in found:
        is_same = each.length == each.wanted and each.scale == 1 and not is_cropping
        y = y if is_same else _resized(y, each, rule)
    if is_cropping:
        for each in found:
            y = op.where(_outside(each, len(x.shape)), extrapolation_value, y)
    if y.dtype != x.dtype:
        y = op.round(y)
    return op.cast(y, x.dtype)
