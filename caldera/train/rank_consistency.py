"""What has to be the same on all ranks, in words: else each would train a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caldera.configurable import Configurable
from caldera.errors import ConfigError
from caldera.nn.config import to_config

if TYPE_CHECKING:
    from caldera.train.model import Model


def training_config(model: Model) -> dict[str, Any]:
    """The layers, losses and optimizer of a model with all that they were made with.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.rank_consistency import training_config
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dropout(0.5)], loss="mse", optimizer="sgd")
    >>> training_config(model)["layer 1-Dropout"]["rate"]
    0.5
    """
    rules = [_described(each) for each in model.between_epochs]
    found: dict[str, Any] = {"optimizer": _described(model.optimizer), "batch sizes": rules}
    for name, loss in model.objective.losses.items():
        found[f"loss {name}".strip()] = [_described(loss), model.objective.weights.get(name, 1.0)]
    for name, layer in model.children():
        try:
            found[f"layer {name}"] = to_config(layer)
        except ConfigError:
            found[f"layer {name}"] = type(layer).__name__
    return found


def _described(given: Configurable) -> Any:
    """What files would say of it; of what they cannot hold, only the class."""
    try:
        return given.config()
    except ConfigError:
        return type(given).__name__
