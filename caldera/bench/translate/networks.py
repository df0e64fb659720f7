"""Translated networks: a pure function in JAX, and a module of PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.bench.translate._jax_layers import Interpreter, JaxLayers, JaxState
from caldera.bench.translate._torch_layers import TorchLayers
from caldera.bench.translate._walk import Function, values
from caldera.compiler.lazy import Variable
from caldera.errors import ConfigError
from caldera.train.model import Model


@dataclass(frozen=True)
class JaxNetwork:
    """The network in JAX; arrays have the order and shapes of `model.parameters()`.

    Inside, parameters may have another order of axes, so use `variables` and `arrays` to convert
    between the two; `arrays` also converts gradients.
    """

    _framework: JaxLayers
    _function: Function

    def variables(self, arrays: Sequence[np.ndarray]) -> tuple[list[Any], JaxState]:
        """Parameters with these values, and the state with which the model was translated."""
        framework = self._framework
        asarray = framework.jax.numpy.asarray
        params = [asarray(array) for array in framework.checked(arrays)]
        statistics = [asarray(array) for array in framework.statistics]
        return params, JaxState(statistics, framework.jax.random.PRNGKey(framework.model.seed))

    def apply(
        self, params: Sequence[Any], state: JaxState, x: Any, training: bool, narrow: Any = None
    ) -> tuple[Any, JaxState]:
        """Return the results and the state after the step; `training` is static under `jax.jit`.

        x is an input of the Caldera model: images (N, C, H, W) for every `data_format`, or
        integers. With `narrow`, a dtype of half precision, products are computed in it and values
        between layers are stored in it; parameters, statistics and sums keep their precision.
        """
        framework = self._framework
        run = Interpreter(params, state, training, narrow)
        if narrow is not None and framework.jax.numpy.issubdtype(x.dtype, np.floating):
            x = x.astype(narrow)
        found = self._function(run, framework.from_ours(x))
        output = framework.jax.tree_util.tree_map(framework.to_ours, found)
        statistics = [
            run.new_statistics.get(place, old) for place, old in enumerate(state.statistics)
        ]
        key = framework.jax.random.fold_in(state.key, 0) if run.draws else state.key
        return output, JaxState(statistics, key)

    def arrays(self, params: Sequence[Any]) -> list[np.ndarray]:
        """Convert parameters, or their gradients, to arrays in Caldera's shapes."""
        return [
            self._framework.ours(variable, np.asarray(value))
            for variable, value in zip(self._framework.model.parameters(), params, strict=True)
        ]

    def states(self, state: JaxState) -> list[np.ndarray]:
        """Return the running statistics, in the order of `model.states()`."""
        return [np.asarray(each) for each in state.statistics]


def to_jax(model: Model, data_format: str = "NHWC", *, cudnn_attention: bool = False) -> JaxNetwork:
    """Return the identical network in JAX.

    `data_format` is the order of axes used in computations on images, "NHWC" or "NCHW".
    `cudnn_attention` uses cuDNN's fused attention, available on a GPU in half precision.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.bench.translate import to_jax
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, activation="relu")])
    >>> network = to_jax(model)  # doctest: +SKIP
    >>> params, state = network.variables([p.numpy() for p in model.parameters()])  # doctest: +SKIP
    >>> y, state = network.apply(params, state, np.zeros((5, 4)), training=True)  # doctest: +SKIP
    >>> y.shape  # doctest: +SKIP
    (5, 3)
    """
    if data_format not in ("NCHW", "NHWC"):
        raise ConfigError.build(
            "to_jax", expected='data_format="NCHW" or "NHWC"', got=repr(data_format)
        )
    jax = optional_import("jax", "jax", "to_jax")
    framework = JaxLayers(model, jax, data_format, cudnn_attention)
    return JaxNetwork(framework, framework.translate(model))


@dataclass(frozen=True)
class TorchNetwork:
    """The network in PyTorch; arrays have the order and shapes of `model.parameters()`.

    `module` accepts the inputs of the Caldera model as tensors: images (N, C, H, W), or integers.
    It can be moved and cast (`module.double()`, `module.to("cuda")`) and compiled. To have a second
    network, translate again: a deep copy would continue to compute with the weights of the first.
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
        """Return the values of the parameters."""
        return self._arrays(self._framework.model.parameters(), lambda tensor: tensor)

    def gradients(self) -> list[np.ndarray]:
        """Return the gradients that `backward` left.

        Zeros for parameters that had no part in it.
        """
        zeros_like = self._framework.torch.zeros_like
        return self._arrays(
            self._framework.model.parameters(),
            lambda tensor: zeros_like(tensor) if tensor.grad is None else tensor.grad,
        )

    def states(self) -> list[np.ndarray]:
        """Return the running statistics, in the order of `model.states()`."""
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
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, activation="relu")])
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
