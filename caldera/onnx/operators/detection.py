"""Choosing among boxes, and images from files: results whose size nobody knows before."""

from __future__ import annotations

import io

import numpy as np

from caldera.base.registry import optional_import
from caldera.errors import DataError
from caldera.onnx.operators.registry import check_size, evaluated

_BYTES_A_PIXEL = 10
"""As it is in the file, in the colours that are wanted, and as an array."""


def _corners(boxes: np.ndarray, center_point_box: int) -> np.ndarray:
    """Boxes (n, 4) as (low, low, high, high)."""
    if center_point_box:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate([middle - half, middle + half], axis=1)
    return np.concatenate(
        [np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1
    )


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union with each of the others."""
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
            taken = 0
            while taken < most and len(left):
                best, left = int(left[0]), left[1:]
                found.append((sample, label, best))
                taken += 1
                left = left[_overlap(corners[best], corners[left]) <= allowed]
    return np.array(found, np.int64).reshape(-1, 3)


@evaluated("ImageDecoder")
def image_decoder(stream: np.ndarray, *, pixel_format: str = "RGB") -> np.ndarray:
    """The picture in a file's bytes, (height, width, channels); empty if there is none."""
    pillow = optional_import("PIL.Image", "pillow", "onnx ImageDecoder")
    channels = 1 if pixel_format == "Grayscale" else 3
    try:
        with pillow.open(io.BytesIO(stream.tobytes())) as picture:
            check_size((picture.height, picture.width, _BYTES_A_PIXEL), np.uint8)
            picture = picture.convert("L" if channels == 1 else "RGB")
            pixels = np.array(picture, np.uint8).reshape(picture.height, picture.width, channels)
    except DataError:
        raise
    # Whatever is wrong with the bytes: ONNX wants an empty picture, not an error.
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
        return np.zeros((0, 0, channels), np.uint8)
    return pixels[:, :, ::-1] if pixel_format == "BGR" else pixels
