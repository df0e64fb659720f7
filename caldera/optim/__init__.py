"""Optimizers, learning-rate schedules, weight decay, gradient clipping and loss scaling."""

from __future__ import annotations

from typing import Any

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.compiler.lazy import takes_open_sizes as _takes_open_sizes
from caldera.optim.adaptive import (
    LAMB,
    LARS,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Nadam,
    RAdam,
    RMSProp,
)
from caldera.optim.gradients import Clip, ClipNorm, ClipValue, LossScale, clips
from caldera.optim.lbfgs import LBFGS
from caldera.optim.matrix import Adafactor, Muon
from caldera.optim.momentum import ASGD, SGD, GradientDescent, Lion, Rprop
from caldera.optim.optimizer import MinimizeResult, Optimizer, optimizers
from caldera.optim.parameter_groups import L1, L2, Decay, Decoupled, Group, decays
from caldera.optim.schedule import (
    Cosine,
    EpochRule,
    Exponential,
    GrowingBatch,
    LinearWarmUp,
    OneCycle,
    ReduceOnPlateau,
    Schedule,
    StepDecay,
    epoch_rules,
    schedules,
)
from caldera.optim.sharding import length, total


def get(optimizer: str | Optimizer, **arguments: Any) -> Optimizer:
    """Return the optimizer of that name, made with these arguments.

    An optimizer is given back as it is.

    Names are sgd, momentum, nesterov, asgd, adagrad, adadelta, rmsprop, adam, adamw, adamax, nadam,
    radam, lion, rprop, adafactor, muon, lbfgs, lars and
    lamb, and those you register with `optim.optimizers.register`. `optimizers.from_config`
    reads what `config()` wrote.

    >>> from caldera import optim
    >>> optim.get("nesterov", learning_rate=0.1).nesterov
    True
    >>> optim.get("adam", lerning_rate=0.1)
    Traceback (most recent call last):
    caldera.errors.ConfigError: optimizer adam: expected an argument it takes, got 'lerning_rate'; did you mean 'learning_rate'?
    """  # noqa: E501
    return optimizers.make(optimizer, **arguments)


__all__ = [
    "ASGD",
    "L1",
    "L2",
    "LAMB",
    "LARS",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Clip",
    "ClipNorm",
    "ClipValue",
    "Cosine",
    "Decay",
    "Decoupled",
    "EpochRule",
    "Exponential",
    "GradientDescent",
    "Group",
    "GrowingBatch",
    "LinearWarmUp",
    "Lion",
    "LossScale",
    "MinimizeResult",
    "Muon",
    "Nadam",
    "OneCycle",
    "Optimizer",
    "RAdam",
    "RMSProp",
    "ReduceOnPlateau",
    "Rprop",
    "Schedule",
    "StepDecay",
    "clips",
    "decays",
    "epoch_rules",
    "get",
    "length",
    "optimizers",
    "schedules",
    "total",
]

_guard(
    globals(),
    "MinimizeResult",
    methods={"LossScale": "scaled unscaled", "Optimizer": "apply minimize train"},
)
# Outside of its door, as the functions of `op`.
Optimizer.train = _takes_open_sizes(Optimizer.train)  # type: ignore[method-assign]
_answer_foreign(globals())
