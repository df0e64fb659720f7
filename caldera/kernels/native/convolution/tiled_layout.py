"""What the convolutions that work in tiles of transformed images have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry


@dataclass(frozen=True)
class TiledLayout:
    """Which images of a call are transformed, and which are the others."""

    node: Node

    @cached_property
    def geometry(self) -> Geometry:
        """The shapes of the convolution."""
        return Geometry.of(self.node)

    @cached_property
    def is_gradient(self) -> bool:
        """Whether it is the input gradient: a convolution of the output's gradient."""
        return self.node.op.name == "conv2d_input"

    @cached_property
    def is_sum(self) -> bool:
        """Whether it is the weight gradient: sums over all tiles."""
        return self.node.op.name == "conv2d_weight"

    @property
    def padding(self) -> tuple[int, int]:
        """Rows above and columns left of the images that are transformed."""
        top, left = self.geometry.origin
        rows, columns = self.geometry.taps
        return (rows - 1 - top, columns - 1 - left) if self.is_gradient else (top, left)

    @cached_property
    def inner(self) -> int:
        """Channels of the images that are transformed."""
        return self.geometry.results if self.is_gradient else self.geometry.channels

    @cached_property
    def columns(self) -> int:
        """Channels of the other images: those that are written, or, for the weight gradient, the
        output's gradient."""
        return self.geometry.channels if self.is_gradient else self.geometry.results
