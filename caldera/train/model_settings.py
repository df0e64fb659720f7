"""Training settings of a model, checked at construction and at assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from caldera import optim
from caldera.base.arguments import require, shown
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.precision import NAMES as PRECISIONS
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.core.tensor.dtype import canonical, is_float
from caldera.core.tensor.random import checked_seed
from caldera.data.schema import Schema
from caldera.data.series import TargetScale
from caldera.errors import ConfigError, DeviceError
from caldera.nn.layer import Layer
from caldera.nn.losses import REGRESSION, SEQUENCE, Loss, as_loss
from caldera.nn.metrics import Metric
from caldera.nn.metrics import metrics as metric_names
from caldera.nn.tracing import LayerWatch
from caldera.optim import Optimizer
from caldera.train.arguments import whole_number
from caldera.train.predictors import Predictors
from caldera.train.step import KeptSteps, StepPlans
from caldera.train.step_graph import MAIN, TrainingObjective

OneLoss = str | Loss | Callable[[Expr, Expr], Expr]
GivenLoss = OneLoss | Mapping[str, OneLoss]


class ModelSettings(Layer):
    """The settings of a model, each of which takes another value later as it does at first."""

    settled = frozenset()
    untraced = frozenset(
        {
            "loss",
            "metrics",
            "optimizer",
            "learning_rate",
            "batch_size",
            "epochs",
            "precision",
            "seed",
            "device",
            "schema",
            "epochs_done",
            "steps_done",
        }
    )

    def _set(
        self,
        loss: GivenLoss,
        optimizer: str | Optimizer,
        learning_rate: float | optim.Schedule | None,
        batch_size: int | optim.EpochRule,
        epochs: int,
        metrics: Sequence[str | Metric] | None,
        loss_weights: Mapping[str, float] | None,
        dtype: Any,
        precision: str | None,
        seed: int,
        device: Device | str | int | None,
    ) -> None:
        self._predictors = Predictors()
        self._evaluator: StepPlans | None = None
        self._trainer = KeptSteps()
        self._watch: LayerWatch | None = None
        self._schema: Schema | None = None
        require(
            is_float(canonical(dtype)),
            self._where,
            "dtype= a float, such as 'float32'",
            repr(dtype),
            "inputs may be integers: nn.Input(shape, dtype='int64')",
        )
        self._dtype = dtype
        self._device = find_device(device)
        self.token = uuid4().hex
        self._optimizer = _optimizer(optimizer, learning_rate).owned_by(self.token)
        self._objective = _objective(loss, loss_weights or {})
        self.metrics = metrics
        self.batch_size = batch_size
        self.epochs = epochs
        self.precision = precision
        self.seed = seed

    @property
    def _where(self) -> str:
        return type(self).__name__

    def _forget_plans(self) -> None:
        """Drop the plans, which were compiled for earlier settings."""
        self._predictors.clear()
        self._evaluator = None
        self._trainer.clear()

    def _check_plans(self) -> None:
        """Drop the plans if the layers have changed since they were built."""
        if self._watch is None:
            self._watch = LayerWatch(self)
        elif self._watch.saw_change(self):
            self._forget_plans()

    @property
    def kept_steps(self) -> KeptSteps:
        """The plans of the last run, for `fit`."""
        return self._trainer

    # --- what is learned

    @property
    def schema(self) -> Schema | None:
        """Schema of the training data: columns, their encodings and classes.

        None if the data have none and none was assigned. Assign None to train on other data.
        """
        return self._schema

    @schema.setter
    def schema(self, given: Schema | None) -> None:
        fits = given is None or isinstance(given, Schema)
        require(fits, type(self).__name__, "schema= a data.Schema or None", shown(given))
        before = self.target_scale
        self._schema = given
        if self.target_scale != before:
            self._forget_plans()

    @property
    def target_scale(self) -> TargetScale | None:
        """Mean and deviation of the predicted values, if these are from a table or a series.

        The network itself computes values of mean 0 and deviation 1, and its loss is in these
        units; predictions and metrics are in the units of the data.
        """
        task = self._objective.task
        if self._schema is None or task is None or task.kind != REGRESSION:
            return None
        return self._schema.target_scale

    @property
    def objective(self) -> TrainingObjective:
        """The losses of the outputs, and their weights."""
        return self._objective

    @property
    def loss(self) -> Loss | dict[str, Loss]:
        """Loss, or a dict of losses by output name; assign a name or a loss to change it.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> model.loss = "mse"
        >>> model.loss, model.metrics
        (MeanSquared(), (MeanAbsoluteError(),))
        """
        known = dict(self._objective.losses)
        return known[MAIN] if list(known) == [MAIN] else known

    @loss.setter
    def loss(self, given: GivenLoss) -> None:
        made = _objective(given, {})
        kept = {name: w for name, w in self._objective.weights.items() if name in made.losses}
        objective = TrainingObjective(made.losses, kept)
        if self._chosen_metrics is not None:
            # Metrics unsuitable for the loss raise before any change.
            objective.judged_by(self._chosen_metrics)
        self._objective = objective
        self._forget_plans()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics in addition to the loss; assign a list, or None for the default.

        The default is accuracy for classes and labels, and the mean absolute error for values.
        """
        if self._chosen_metrics is not None:
            return self._chosen_metrics
        return tuple(metric_names.make(each) for each in _usual_metrics(self._objective))

    @metrics.setter
    def metrics(self, given: Sequence[str | Metric] | None) -> None:
        chosen: tuple[Metric, ...] | None = None
        if given is not None:
            require(
                isinstance(given, Sequence) and not isinstance(given, str),
                self._where,
                "metrics= a list",
                repr(given),
                f"write metrics=[{given!r}]",
            )
            chosen = tuple(metric_names.make(each) for each in given)
            self._objective.judged_by(chosen)
        self._chosen_metrics = chosen
        self._forget_plans()

    # --- how

    @property
    def optimizer(self) -> Optimizer:
        """Optimizer; assign a name or an optimizer to start with a new one.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> model.optimizer = "sgd"
        >>> model.optimizer
        SGD()
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, given: str | Optimizer) -> None:
        if given is not self._optimizer:
            self._optimizer = _optimizer(given, None).owned_by(self.token)

    @property
    def learning_rate(self) -> Any:
        """The rate or schedule that the optimizer was made with; to change it, see there."""
        return self._optimizer.arguments().get("learning_rate")

    @learning_rate.setter
    def learning_rate(self, given: Any) -> None:
        kind = type(self._optimizer).__name__
        raise ConfigError.build(
            self._where,
            expected="a learning rate that is given to the optimizer",
            got=f"learning_rate = {given!r}",
            hint=f"write model.optimizer = optim.{kind}({given!r}), or "
            f"model.optimizer.learning_rate.assign({given!r}) to keep its state",
        )

    @property
    def batch_size(self) -> int:
        """Samples of a step, over all ranks."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, given: int | optim.EpochRule) -> None:
        rules = [given.owned_by(self.token)] if isinstance(given, optim.EpochRule) else []
        require(
            not rules or rules[0].controls == "batch_size",
            self._where,
            "batch_size= a number or a rule for it",
            repr(given),
            "such as optim.GrowingBatch",
        )
        size = int(rules[0].value) if rules else given
        self._batch_size = whole_number(size, "batch_size", 1, self._where)
        self.between_epochs: list[optim.EpochRule] = rules

    @property
    def epochs(self) -> int:
        """Default number of epochs of `fit`."""
        return self._epochs

    @epochs.setter
    def epochs(self, given: int) -> None:
        self._epochs = whole_number(given, "epochs", 0, self._where)

    @property
    def seed(self) -> int:
        """Seed of the initial parameters, the order of samples and all random numbers."""
        return self._seed

    @seed.setter
    def seed(self, given: int) -> None:
        self._seed = checked_seed(given, f"{self._where} seed")

    # --- in what numbers, and where

    @property
    def dtype(self) -> Any:
        """Dtype of parameters and of floating-point inputs; fixed when the model is created."""
        return self._dtype

    @property
    def precision(self) -> str | None:
        """In what products are computed, if not in the dtype itself."""
        return self._precision

    @precision.setter
    def precision(self, given: str | None) -> None:
        require(
            given is None or given in PRECISIONS,
            "precision",
            "one of " + ", ".join(PRECISIONS),
            repr(given),
            "None computes in the dtype of the model",
        )
        self._precision = given
        self._forget_plans()

    @property
    def device(self) -> Device:
        """Device of the model; assigning moves the model, as `to` does."""
        return self._device

    @device.setter
    def device(self, given: Device | str | int) -> None:
        place = find_device(given)
        if place is self._device:
            return
        # An optimizer has variables once a step has been written down.
        kept = self.optimizer.variables() if self.optimizer.state else []
        stays = self.pinned_variables()
        stays |= {each for variable in stays for each in self.optimizer.kept_for(variable)}
        if self.optimizer.apart is not None:
            stays.update(kept)
        for variable in (*self.parameters(), *self.states(), *kept):
            if variable not in stays:
                variable.move(place)
        self._device = place
        self._forget_plans()

    @property
    def pin(self) -> str | None:
        """None: its device is a setting, and not where its own layers are pinned."""
        return None

    # --- copies that Python makes

    def __getstate__(self) -> dict[str, Any]:
        # Plans are rebuilt after loading, and a device is saved by name.
        kept = {
            "_predictors": None,
            "_evaluator": None,
            "_trainer": None,
            "_watch": None,
            "_device": self._device.name,
        }
        return super().__getstate__() | kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        made = {
            "_predictors": Predictors(),
            "_trainer": KeptSteps(),
            "_device": _device_here(state["_device"]),
        }
        super().__setstate__(state | made)


def _device_here(name: str) -> Device:
    """Return the device of this name, or the default one if it does not exist."""
    try:
        return find_device(name)
    except DeviceError:
        return find_device(None)


def _optimizer(given: str | Optimizer, rate: float | optim.Schedule | None) -> Optimizer:
    if isinstance(given, Optimizer):
        require(
            rate is None,
            "optimizer",
            "the learning rate in one place",
            "an optimizer object and learning_rate=",
            "pass it only to the optimizer",
        )
        return given
    return optim.get(given) if rate is None else optim.get(given, learning_rate=rate)


def _objective(given: GivenLoss, weights: Mapping[str, float]) -> TrainingObjective:
    if not isinstance(given, Mapping):
        given = {MAIN: given}
    require(given, "loss", "a loss for an output")
    require(
        isinstance(weights, Mapping),
        "loss_weights",
        "a dict from outputs to weights",
        repr(weights),
    )
    unknown = sorted(set(weights) - set(given))
    require(
        not unknown, "loss_weights", "weights for " + ", ".join(given), ", ".join(map(str, unknown))
    )
    for name, weight in weights.items():
        # Below 0 an output would learn to be wrong.
        require(
            not isinstance(weight, bool | str) and 0 <= weight < np.inf,
            "loss_weights",
            f"a number of at least 0 for {name}",
            repr(weight),
        )
    return TrainingObjective({name: as_loss(each) for name, each in given.items()}, dict(weights))


def _usual_metrics(objective: TrainingObjective) -> list[str]:
    """Return the names of the default metrics for the losses.

    Accuracy for classes and labels, the error rate for sequences, the mean absolute error for the
    rest; none if a loss defines its own form of targets.
    """
    task = objective.task
    own = [type(each).target_spec is not Loss.target_spec for each in objective.losses.values()]
    if task is None and own[:1] == [True]:
        return []
    if task is not None and task.kind == SEQUENCE:
        return ["cer"]
    return ["mae"] if task is None or task.kind == REGRESSION else ["accuracy"]
