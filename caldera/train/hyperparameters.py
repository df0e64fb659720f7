"""What a model is trained with, as plain values by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caldera.configurable import Configurable
from caldera.errors import ConfigError
from caldera.nn.config import to_config

if TYPE_CHECKING:
    from caldera.train.model import Model

Setting = bool | int | float | str


def hyper_parameters(model: Model) -> dict[str, Setting]:
    """Loss, optimizer with its arguments, batch size, epochs, precision, seed, device.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], learning_rate=0.5)
    >>> found = hyper_parameters(model)
    >>> found["optimizer"], found["optimizer/learning_rate"], found["batch_size"]
    ('Adam', 0.5, 32)
    """
    found: dict[str, Any] = {
        "model": model.name or type(model).__name__,
        "parameters": sum(each.size for each in model.parameters()),
        "loss": ", ".join(repr(loss) for loss in model.objective.losses.values()),
        "optimizer": type(model.optimizer).__name__,
    }
    found |= {f"optimizer/{k}": v for k, v in model.optimizer.arguments().items() if v is not None}
    found |= {
        "batch_size": model.batch_size,
        "epochs": model.epochs,
        "dtype": str(model.dtype),
        "precision": model.precision or str(model.dtype),
        "seed": model.seed,
        "device": model.device.name,
    }
    return {k: v if isinstance(v, bool | int | float | str) else repr(v) for k, v in found.items()}


def training_config(model: Model) -> dict[str, Any]:
    """The layers, losses and optimizer of a model with all that they were made with: what has to be
    the same on all ranks, or each would train a model of its own.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.hyperparameters import training_config
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
