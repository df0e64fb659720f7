"""What a model is trained with, as plain values by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
