"""Samples that are images, as small pictures."""

from __future__ import annotations

import base64
import io

import numpy as np

from caldera.base.optional import optional_import

SIZE = 96


def thumbnail(sample: np.ndarray) -> str:
    """An image of one or three channels as the base64 text of a PNG file; empty for all else.

    >>> thumbnail(np.zeros((1, 8, 8), "float32"))[:11], thumbnail(np.zeros(5))
    ('iVBORw0KGgo', '')
    """
    if sample.ndim != 3 or sample.shape[0] not in (1, 3) or min(sample.shape[1:]) < 2:
        return ""
    values = np.nan_to_num(sample.astype(np.float64))
    low, high = min(values.min(), 0.0), max(values.max(), 1.0)
    # Bytes, and what has been normalised, fill the range that they have.
    grey = np.round(255 * (values - low) / (high - low)).astype(np.uint8)
    pillow = optional_import("PIL.Image", "pillow", "thumbnail")
    image = pillow.fromarray(grey[0] if len(grey) == 1 else grey.transpose(1, 2, 0))
    image.thumbnail((SIZE, SIZE))
    written = io.BytesIO()
    image.save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()
