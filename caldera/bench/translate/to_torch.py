"""A Caldera network in PyTorch, made of PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.base.optional import optional_import
from caldera.bench.translate._torch_layers import TorchLayers
from caldera.bench.translate._walk import values
from caldera.compiler.lazy import Variable
from caldera.train.model import Model


@dataclass(frozen=True)
class TorchNetwork:
    """The network in PyTorch; arrays come and go in the order and shapes of `model.parameters()`.

    `module` takes what the Caldera model takes, as tensors: images (N, C, H, W), or whole numbers.
    It can be moved and cast (`module.double()`, `module.to("cuda")`) and compiled. To have a second
    one, translate again: a deep copy would go on computing with the weights of the first.
    """

    module: Any
    _framework: TorchLayers

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take these values as parameters."""
        self._framework.fill(self._framework.model.parameters(), self._framework.checked(arrays))

    def reset_states(self) -> None:
        """Take the running statistics that the model has."""
        states = self._framework.model.states()
        self._framework.fill(states, values(states))

    def parameters(self) -> list[np.ndarray]:
        """The values of the parameters."""
        return self._arrays(self._framework.model.parameters(), lambda tensor: tensor)

    def gradients(self) -> list[np.ndarray]:
        """The gradients that `backward` left; zeros for parameters that had no part in it."""
        zeros_like = self._framework.torch.zeros_like
        return self._arrays(
            self._framework.model.parameters(),
            lambda tensor: zeros_like(tensor) if tensor.grad is None else tensor.grad,
        )

    def states(self) -> list[np.ndarray]:
        """The running statistics, in the order of `model.states()`."""
        return self._arrays(self._framework.model.states(), lambda tensor: tensor)

    def _arrays(
        self, variables: Sequence[Variable], wanted: Callable[[Any], Any]
    ) -> list[np.ndarray]:
        framework = self._framework
        return [
            framework.ours(each, wanted(framework.slots[id(each)].tensor).detach().cpu().numpy())
            for each in variables
        ]


def to_torch(model: Model) -> TorchNetwork:
    """The identical network in PyTorch, with the model's weights and statistics as they are now.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.bench.translate import to_torch
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, "relu")])
    >>> network = to_torch(model)  # doctest: +SKIP
    >>> [array.shape for array in network.parameters()]  # doctest: +SKIP
    [(4, 3), (3,)]
    """
    torch = optional_import("torch", "torch", "to_torch")
    framework = TorchLayers(model, torch)
    function = framework.translate(model)

    class Translated(torch.nn.Module):  # type: ignore[name-defined]
        """The whole network."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(framework.parts)

        def forward(self, *inputs: Any) -> Any:
            return function(self, *inputs)

    module = Translated()
    dtypes = {variable.dtype.name for variable in model.parameters()}
    if dtypes == {"float64"}:
        module.double()
    network = TorchNetwork(module, framework)
    network.load(values(model.parameters()))
    network.reset_states()
    return network
