"""All elements of images by factors that the statistics gave: see
include/normalisation/norm_apply.cuh."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.kernels.cuda.codegen.signature import Signature, const_pointer, pointer
from caldera.kernels.cuda.codegen.source import flags
from caldera.kernels.cuda.normalisation.layout import Layout
from caldera.kernels.cuda.normalisation.statistics import over_elements
from caldera.kernels.cuda.runtime.launch import Launch
from caldera.kernels.table import Array


def normalise(
    layout: Layout, arrays: Sequence[Array], factors: Array, apart: int, *, relu: bool = False
) -> Launch:
    """x to y by factors: `arrays` are x, y and what is added, `apart` lies between images."""
    layout = layout.of_elements()
    x, y, *more = arrays
    signature = Signature(
        {
            **images(layout, x, y, more),
            "factors": const_pointer(factors),
            "apart": layout.number(apart),
        }
    )
    kinds = f"{flags(relu, bool(more))}, {layout.options}"
    body = f"normalise<{kinds}>(x, y, more, in, factors, apart);"
    return over_elements(layout, "normalise_images", signature, body)


def images(layout: Layout, x: Array, y: Array, more: Sequence[Array]) -> Signature:
    """What is read and written, and where it lies; without anything to add, `more` is not read."""
    return Signature(
        {
            "x": const_pointer(x),
            "y": pointer(y),
            "more": const_pointer(more[0] if more else x),
            "in": layout.images(*range(2 + len(more))),
        }
    )


def input_gradient(
    layout: Layout, arrays: Sequence[Array], factors: Array, apart: int, *, relu: bool = False
) -> Launch:
    """The gradient of x by factors: `arrays` are x, g and dx."""
    layout = layout.of_elements()
    x, g, dx = arrays
    signature = Signature(
        {
            "x": const_pointer(x),
            "g": const_pointer(g),
            "dx": pointer(dx),
            "in": layout.images(0, 1, 2),
            "factors": const_pointer(factors),
            "apart": layout.number(apart),
        }
    )
    body = f"gradients<{flags(relu)}, {layout.options}>(x, g, dx, in, factors, apart);"
    return over_elements(layout, "image_gradients", signature, body)
