"""One layer and one gradient as the planner sees them."""

from __future__ import annotations

from dataclasses import dataclass

_DENSE = ("Dense",)
_WEIGHTED = (*_DENSE, "Conv1D", "Conv2D", "MultiHeadAttention")


@dataclass(frozen=True)
class LayerCost:
    """One layer, for one sample.

    - `block`: the part of the model it belongs to; a pipeline is cut between those.
    - `weight`: its part of the time of a step; those of all layers add up to 1. `operations` is
      its part of those of the forward pass.
    - `parameters`, `trained`: bytes; `output`, `given`: bytes of what it makes and of its input.
    - `units`: over how many ranks it can be split at the most; 1 if it cannot.
    - `synchronised`: channels whose statistics are summed over ranks, for batch normalisation.
    """

    path: str
    kind: str
    block: str
    weight: float
    operations: float
    parameters: float
    trained: float
    output: float
    given: float
    units: int = 1
    synchronised: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether it has many parameters for the work it does."""
        return self.kind in _DENSE

    @property
    def narrows(self) -> bool:
        """Whether to sum what it gives costs less than to gather what it takes."""
        return self.kind in _WEIGHTED and 2 * self.output <= self.given


@dataclass(frozen=True)
class Gradient:
    """The gradient of a parameter, which belongs to the layer of that number."""

    shape: tuple[int, ...]
    nbytes: float
    layer: int
    dtype: str = "float32"
