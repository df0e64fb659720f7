"""A training step as a graph: losses, metrics, and targets in their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor.random import seeded
from caldera.data.series import TargetScale
from caldera.errors import ShapeError
from caldera.nn.losses import FunctionLoss, Loss, PredictionKind
from caldera.nn.metrics import Metric
from caldera.nn.sample_means import mean_by_sample, mixing_op
from caldera.nn.tracing import Added, Context, trace
from caldera.optim.sharding import sharded_parameters
from caldera.train.batch_source import Values
from caldera.train.metric_totals import AddedMetric
from caldera.train.strategy import BatchSums, Gradients, StepProgram

if TYPE_CHECKING:
    from caldera.train.step import StepPlans


def in_units(prediction: Expr, scale: TargetScale) -> Expr:
    """Convert predictions of mean 0 and deviation 1 to the units of the targets."""
    mean, deviation = _constants(scale, prediction)
    return prediction * deviation + mean


def on_scale(target: Expr, scale: TargetScale) -> Expr:
    """Return targets in their units, as values of mean 0 and deviation 1."""
    mean, deviation = _constants(scale, target)
    return (target - mean) / deviation


def _constants(scale: TargetScale, like: Expr) -> list[Any]:
    """Return mean and deviation, as numbers or along the last axis of values like these."""
    return [each if isinstance(each, float) else np.asarray(each, like.dtype) for each in scale]


MAIN = "output"
"""The name of the output of a model that has only one."""
AFTER_PARAMETERS = 1 << 24
"""Number of the first random stream for the network's own draws; lower ones are for parameters."""


@dataclass(frozen=True)
class ModelSignature:
    """Shapes and dtypes of a model's inputs and outputs per sample, found by tracing it once."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    outputs: dict[str, tuple[int, ...]]
    last_ops: dict[str, str]
    """Op that computes each output, ignoring later moves and casts."""

    @classmethod
    def of(
        cls, inputs: tuple[tuple[tuple[int, ...], str], ...], outputs: Mapping[str, Expr]
    ) -> ModelSignature:
        """Return the signature of a traced network with these outputs."""
        shapes = {name: each.shape[1:] for name, each in outputs.items()}
        return cls(inputs, shapes, {name: _last_op(each) for name, each in outputs.items()})


@dataclass(frozen=True)
class TrainingObjective:
    """The losses of a model's outputs, each with its weight in the sum."""

    losses: Mapping[str, Loss]
    weights: Mapping[str, float]

    @property
    def task(self) -> PredictionKind | None:
        """The kind of targets of the first loss, by which predictions are judged."""
        return next((loss.task() for loss in self.losses.values()), None)

    def of(self, outputs: Mapping[str, Expr]) -> dict[str, tuple[Loss, float]]:
        """Return the loss and the weight of each output that is trained."""
        unknown = sorted(set(self.losses) - set(outputs))
        require(
            not unknown,
            "loss",
            "losses for " + ", ".join(outputs),
            ", ".join(unknown),
            "use the names of the outputs of forward",
        )
        return {name: (loss, self.weights.get(name, 1.0)) for name, loss in self.losses.items()}

    def judged_by(self, metrics: Sequence[Metric]) -> list[Metric]:
        """Return the metrics set up for the task of the first loss; raise if one is unsuitable."""
        names = [metric.name for metric in metrics]
        for name in names:
            require(
                names.count(name) <= 1 and name != "loss",
                "metrics",
                "metrics with distinct names",
                ", ".join(names),
                "rename the custom metric",
            )
        return [metric.for_task(self.task) for metric in metrics]


class StepGraph:
    """Writes a step down for a part of a batch, whose arrays are `values`.

    `steps` has the model and the variables that all its plans share.
    """

    def __init__(self, steps: StepPlans, values: Values) -> None:
        self._steps = steps
        self._values = values
        self._model, self._strategy = steps.model, steps.strategy
        self._count = len(values.share)
        self._sums: list[BatchSums] = []

    # --- whole programs

    def training(self) -> StepProgram:
        """Return a training step."""
        steps = self._steps
        outputs, traced = self.network(training=True)
        loss, total = self.loss(outputs, steps.objective.of(outputs), traced.losses)
        votes = [steps.votes] if self._strategy.is_distributed else []
        whole, sums, tally = self._batch_totals(loss, outputs, traced.metrics, votes)
        fine = op.logical_and(op.isfinite(whole), steps.bad_step < 0)
        scaled = loss if steps.loss_scale is None else steps.loss_scale.scaled(loss)
        gradients = replace(self._gradients(outputs, scaled), loss=whole)

        def assign() -> list[Expr]:
            updates = self._updates(gradients, fine, total)
            updates += [_only_if(fine, update) for update in traced.updates]
            updates += self._counters(fine)
            updates += [op.assign(steps.tally, each) for each in tally]
            return updates + steps.training_totals.add(whole * total, total, sums)

        return StepProgram(assign, self._values.share, traced, self._sums, scaled, gradients)

    def evaluation(self) -> StepProgram:
        """Return the program that adds the part of a batch to the totals of an evaluation."""
        found, traced = self.network(training=False)
        losses = self._steps.objective.losses
        outputs = self._strategy.predictions(found, losses)
        name = next((name for name in losses if name in outputs), "")
        terms = {name: (losses[name], 1.0)} if losses else {}
        loss, total = self.loss(outputs, terms, traced.losses)
        whole, sums, _ = self._batch_totals(loss, outputs, traced.metrics, [])
        updates = self._steps.evaluation_totals.add(whole * total, total, sums)
        # Recurrent layers may keep their states from batch to batch.
        updates += traced.updates
        return StepProgram(lambda: updates, self._values.share, traced, self._sums)

    # --- parts of them

    def inputs(self) -> list[Expr]:
        """Return the inputs of the network."""
        return [
            self._value(f"x{i}", self._values.shapes.get(f"x{i}", shape), dtype)
            for i, (shape, dtype) in enumerate(self._model.signature.inputs)
        ]

    def network(self, *, training: bool) -> tuple[dict[str, Expr], Context]:
        """Return the outputs of the network, and the trace that made them."""
        inputs = self.inputs()
        model, random = self._model, self._steps.random
        with (
            seeded(model.seed, AFTER_PARAMETERS, random),
            trace(
                training=training,
                dtype=model.dtype,
                device=model.device,
                random=random,
                first=self._values.share.first,
                several_ranks=self._strategy.shares_batches,
                layer_output=self._strategy.layer_output,
            ) as traced,
        ):
            result = model.step_outputs(*inputs)
        return named_outputs(result), traced

    def loss(
        self,
        outputs: Mapping[str, Expr],
        terms: Mapping[str, tuple[Loss, float]],
        added: Sequence[Added] = (),
    ) -> tuple[Expr, Expr]:
        """Return these samples' contribution to the loss of the whole batch, and its weight.

        `added` has the terms that layers have added to the loss.
        """
        weights = self._weights()
        if weights is None:
            samples = self._values.share.count
            total = op.cast(float(samples), self._model.dtype)
            divisor = op.cast(float(samples or 1), self._model.dtype)
        else:
            (total,) = self._sum_over_ranks([op.sum(weights)])
            # If all samples have weight 0, the loss is 0.
            divisor = op.where(total == 0.0, 1.0, total)
        if self._count < self._values.share.count:
            for name, (loss, _) in terms.items():
                self._check_samples_apart(name, loss, outputs[name])
        found = [
            factor * loss(outputs[name], self._scaled(name, outputs[name]), weights, total=divisor)
            for name, (loss, factor) in terms.items()
        ]
        for each in added:
            # The mean over samples is of the weight that all losses are divided by.
            values = op.cast(self._by_sample(each), self._model.dtype)
            if weights is not None:
                values = op.where(weights == 0.0, 0.0, values * weights)
            found.append(op.sum(values) / divisor)
        return sum(found[1:], found[0]), total

    def _check_samples_apart(self, name: str, loss: Loss, prediction: Expr) -> None:
        """Refuse a function whose loss of a sample depends on samples that other ranks have."""
        if not isinstance(loss, FunctionLoss):
            return
        target = self._scaled(name, prediction)
        mixing = mixing_op(loss.per_sample(prediction, target), prediction, target)
        require(
            not mixing,
            f"loss {getattr(loss.function, '__name__', 'function')}",
            "a separate loss for each sample, where a batch is computed in parts",
            f"op.{mixing} over the samples of a part",
            "train in one process, without micro-batches",
        )

    def _by_sample(self, added: Added) -> Expr:
        """A value for each sample: of a scalar the same for all, so that its mean is that."""
        values = added.values
        if not values.ndim:
            return op.broadcast(values, (self._count,))
        require(
            values.shape[0] == self._count,
            added.where,
            f"a scalar, or values for each of {self._count} samples",
            f"shape {values.shape}",
            "their first axis is the sample axis",
            error=ShapeError,
        )
        return mean_by_sample(values)

    def _value(self, name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
        """Return an array of the batch, of which a sample has this shape."""
        return self._values.of(name, (self._count, *shape), dtype)

    def _target(self, output: str, prediction: Expr) -> Expr:
        """Return the targets of an output: its own array, or the only one."""
        losses = self._steps.objective.losses
        shape, dtype = losses[output].target_spec(prediction.shape, prediction.dtype)
        number = list(losses).index(output) if self._steps.targets > 1 else 0
        return self._values.of(f"y{number}", shape, dtype)

    def _scaled(self, output: str, prediction: Expr) -> Expr:
        """Return the targets of an output, on the scale of the network's output."""
        target, scale = self._target(output, prediction), self._model.target_scale
        if scale is None or output != next(iter(self._steps.objective.losses)):
            return target
        return on_scale(target, scale)

    def _weights(self) -> Expr | None:
        return self._value("weights", (), self._model.dtype) if self._steps.weighted else None

    def _sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        totals = self._strategy.sum_over_ranks(values)
        self._sums.append(BatchSums(values, totals))
        return totals

    def _batch_totals(
        self,
        loss: Expr,
        outputs: Mapping[str, Expr],
        added: Mapping[str, Added],
        more: Sequence[Expr],
    ) -> tuple[Expr, list[tuple[Metric, dict[str, Expr]]], list[Expr]]:
        """The loss of the whole batch, the sums of the metrics, and `more` that is to be summed."""
        name, prediction = main_output(outputs, self._steps.objective)
        target, weights = self._target(name, prediction), self._weights()
        prediction = self._steps.objective.losses[name].judged(prediction)
        if self._model.target_scale is not None:
            prediction = in_units(prediction, self._model.target_scale)
        metrics = list(self._steps.metrics)
        here = [metric.sums(prediction, target, weights) for metric in metrics]
        for label, each in added.items():
            metrics.append(_added_metric(label, each, metrics))
            here.append(metrics[-1].sums(self._by_sample(each), None, weights))
        flat = [value for sums in here for value in sums.values()]
        whole, *rest = self._sum_over_ranks([loss, *flat, *more])
        found = iter(rest)
        sums = [{key: next(found) for key in sums} for sums in here]
        return whole, list(zip(metrics, sums, strict=True)), list(found)

    def _gradients(self, outputs: Mapping[str, Expr], loss: Expr) -> Gradients:
        """Return the gradients of the loss, scaled or not, with the variables that they update."""
        return self._strategy.gradients(loss, self._model.trainable(), self._values.share)

    def _updates(self, gradients: Gradients, fine: Expr, weight: Expr) -> list[Expr]:
        """Return the optimizer's assignments, which have no effect unless the step is `fine`."""
        scale = self._steps.loss_scale
        updates: list[Expr] = []
        ok = fine
        with sharded_parameters(gradients.sharding):
            if scale is not None:
                values, finite = scale.unscaled(gradients.values)
                gradients, ok = replace(gradients, values=values), op.logical_and(fine, finite)
                updates += scale.adapted(finite)
            return updates + self._applied(gradients, ok, weight)

    def _applied(self, gradients: Gradients, ok: Expr, weight: Expr) -> list[Expr]:
        optimizer = self._steps.optimizer
        return self._strategy.apply_gradients(optimizer, gradients, ok, weight)

    def _counters(self, fine: Expr) -> list[Expr]:
        """A step was taken, or this is the first that could not be."""
        random, bad_step = self._steps.random, self._steps.bad_step
        return [
            op.assign(random, op.where(fine, random + np.array([0, 1]), random)),
            op.assign(bad_step, op.where(fine | (bad_step >= 0), bad_step, random[1])),
        ]


def _added_metric(name: str, added: Added, others: Sequence[Metric]) -> AddedMetric:
    require(
        name not in ("loss", "seconds", *(metric.name for metric in others)),
        added.where,
        "a metric with a distinct name",
        repr(name),
        "the name is used by every history, or by a metric of the model",
    )
    return AddedMetric(name)


def _last_op(output: Expr) -> str:
    node = output.node
    while node.op.name in ("cast", "reshape", "transpose"):
        node = node.inputs[0]
    return node.op.name


def _only_if(fine: Expr, update: Expr) -> Expr:
    target, value = update.node.inputs
    variable = Variable(target.attrs["symbol"])
    return op.assign(variable, op.where(fine, Expr(value), variable))


def named_outputs(result: Any) -> dict[str, Expr]:
    """Return the results of forward by name: a dict unchanged, a tuple as output0, output1, ..."""
    if isinstance(result, dict):
        return dict(result)
    if isinstance(result, tuple | list):
        return {f"{MAIN}{i}": each for i, each in enumerate(result)}
    return {MAIN: result}


def main_output(outputs: Mapping[str, Expr], objective: TrainingObjective) -> tuple[str, Expr]:
    """Return the output that metrics and predictions are about: the first that has a loss."""
    name = next(name for name in objective.losses if name in outputs)
    return name, outputs[name]
