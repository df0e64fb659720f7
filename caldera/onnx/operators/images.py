"""Resizing of images, selection of boxes, and decoding of image files.

Each axis is resized separately, as a product with a matrix of weights.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from caldera import op
from caldera.base.registry import optional_import
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float32, is_float
from caldera.errors import ConfigError, DataError
from caldera.onnx.operators.registry import (
    Value,
    axis_moved,
    axis_of,
    check_size,
    evaluated,
    integers,
    numbers,
    operator,
)


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
    """Mapping of new positions to old ones, and the interpolation between them."""

    transformation: str
    mode: str
    nearest: str
    cubic: float
    is_antialiased: bool
    excludes_outside: bool


def _places(given: _Axis, how: str) -> np.ndarray:
    """Return the position of each new element on the old axis."""
    check_size((given.wanted,))
    new = np.arange(given.wanted, dtype=np.float64)
    length, scale = given.length, given.scale
    if how == "asymmetric":
        return new / scale
    if how == "align_corners":
        # The new length according to the scale, which may be fractional.
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


_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
}
"""Rounding functions by mode; all other modes round halves up."""


def _kernel(distance: np.ndarray, mode: str, a: float) -> np.ndarray:
    """Return the weight of an element at this distance."""
    size = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - size, 0)
    near = (a + 2) * size**3 - (a + 3) * size**2 + 1
    far = a * size**3 - 5 * a * size**2 + 8 * a * size - 4 * a
    return np.where(size <= 1, near, np.where(size < 2, far, 0))


def _weights(given: _Axis, places: np.ndarray, rule: _Rule) -> np.ndarray:
    """Return the matrix (wanted, length) by which the axis is multiplied."""
    check_size((given.wanted, given.length))
    stretch = max(1.0, 1 / given.scale) if rule.is_antialiased else 1.0
    reach = math.ceil((1 if rule.mode == "linear" else 2) * stretch)
    check_size((given.wanted, 2 * reach + 1))
    around = np.floor(places).astype(np.int64)[:, None] + np.arange(-reach, reach + 1)
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
        rounded = _ROUNDINGS.get(rule.nearest, lambda places: np.floor(places + 0.5))(places)
        chosen = np.clip(rounded, 0, given.length - 1)
        return op.gather(x, chosen.astype(np.int64), given.axis)
    matrix = _weights(given, places, rule).astype(x.dtype)
    product = op.matmul(axis_moved(x, given.axis, -1), matrix, transpose_b=True)
    return axis_moved(product, -1, given.axis)


def _outside(given: _Axis, rank: int) -> np.ndarray:
    """Return a mask of new elements outside the old ones, in a shape that broadcasts."""
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


_BYTES_A_PIXEL = 10
"""Bytes per pixel for three copies: the file's, in the requested colours, and the array."""


def _corners(boxes: np.ndarray, center_point_box: int) -> np.ndarray:
    """Return boxes (n, 4) as (low, low, high, high)."""
    if center_point_box:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate([middle - half, middle + half], axis=1)
    return np.concatenate(
        [np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1
    )


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of a box with each box in `others`."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    union = np.prod(box[2:] - box[:2]) + areas - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 0)


@evaluated("NonMaxSuppression")
def non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    max_output_boxes_per_class: np.ndarray | None = None,
    iou_threshold: np.ndarray | None = None,
    score_threshold: np.ndarray | None = None,
    *,
    center_point_box: int = 0,
) -> np.ndarray:
    """(sample, class, box) of the best boxes that do not overlap too much with better ones."""
    most = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.item())
    allowed = 0.0 if iou_threshold is None else float(iou_threshold.item())
    found: list[tuple[int, int, int]] = []
    for sample, classes in enumerate(scores):
        corners = _corners(boxes[sample], center_point_box)
        for label, each in enumerate(classes):
            left = np.argsort(-each, kind="stable")
            if score_threshold is not None:
                left = left[each[left] > float(score_threshold.item())]
            end = len(found) + most
            while len(found) < end and len(left):
                best, left = int(left[0]), left[1:]
                found.append((sample, label, best))
                left = left[_overlap(corners[best], corners[left]) <= allowed]
    return np.array(found, np.int64).reshape(-1, 3)


@evaluated("ImageDecoder")
def image_decoder(stream: np.ndarray, *, pixel_format: str = "RGB") -> np.ndarray:
    """Return the picture in a file's bytes, (height, width, channels); empty if there is none."""
    pillow = optional_import("PIL.Image", "pillow", "onnx ImageDecoder")
    channels = 1 if pixel_format == "Grayscale" else 3
    try:
        with pillow.open(io.BytesIO(stream.tobytes())) as picture:
            check_size((picture.height, picture.width, _BYTES_A_PIXEL), np.uint8)
            picture = picture.convert("L" if channels == 1 else "RGB")
            pixels = np.array(picture, np.uint8).reshape(picture.height, picture.width, channels)
    except DataError:
        raise
    # For invalid bytes ONNX requires an empty picture, not an error.
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
        return np.zeros((0, 0, channels), np.uint8)
    return pixels[:, :, ::-1] if pixel_format == "BGR" else pixels
