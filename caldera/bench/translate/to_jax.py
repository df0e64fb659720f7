"""A Caldera network in JAX: a pure function of parameters, state and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.base.optional import optional_import
from caldera.bench.translate._jax_layers import JaxLayers, JaxState, Run
from caldera.bench.translate._walk import Function
from caldera.errors import ConfigError
from caldera.train.model import Model


@dataclass(frozen=True)
class JaxNetwork:
    """The network in JAX; arrays come and go in the order and shapes of `model.parameters()`.

    Inside, parameters may have another order of axes, so use `variables` and `arrays` to go from
    one to the other; `arrays` takes gradients as well.
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
        """The results and the state after the step; `training` is static under `jax.jit`.

        x is what the Caldera model takes: images (N, C, H, W) whatever the `data_format`, or whole
        numbers. With `narrow`, a dtype of half precision, products are computed in it and what
        lies between them is stored in it; parameters, statistics and sums stay as they are.
        """
        framework = self._framework
        run = Run(params, state, training, narrow)
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
        """Parameters, or gradients of them, as arrays in Caldera's shapes."""
        return [
            self._framework.ours(variable, np.asarray(value))
            for variable, value in zip(self._framework.model.parameters(), params, strict=True)
        ]

    def states(self, state: JaxState) -> list[np.ndarray]:
        """The running statistics, in the order of `model.states()`."""
        return [np.asarray(each) for each in state.statistics]


def to_jax(model: Model, data_format: str = "NHWC", *, cudnn_attention: bool = False) -> JaxNetwork:
    """The identical network in JAX.

    `data_format` is the order of axes in which images are computed with, "NHWC" or "NCHW".
    `cudnn_attention` takes cuDNN's fused attention, which a card has in half precision.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.bench.translate import to_jax
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, "relu")])
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
