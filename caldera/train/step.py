"""The plans of a model: one graph for a training step, one for evaluation, one for prediction.

Shapes are static in a plan, so each batch size has plans of its own; all of them share the model's
variables. A step whose loss is not finite changes nothing, and its number is kept: so the state
that led to it is still there when somebody asks why.

On a device with memory of its own a plan is captured before it runs for the second time, and then
replayed: a step is one launch that nobody waits for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.data import Batch, Loader, Share
from caldera.errors import ConfigError, DataError
from caldera.lazy import Expr, Variable, compile
from caldera.nn.losses import Loss
from caldera.nn.metrics import Metric
from caldera.nn.tracing import Context, trace
from caldera.optim import LossScale, Optimizer
from caldera.plan.plan import Plan
from caldera.strategy import VOTES, SingleProcessStrategy, Strategy
from caldera.train.batch_source import BatchSource, HostSource, Values, drawn
from caldera.train.metric_totals import MetricTotals
from caldera.train.stream_sync import synchronised_stream

if TYPE_CHECKING:
    from caldera.train.model import Model

MAIN = "output"
"""The name of the output of a model that has only one."""
NO_VOTES = (0.0, 0.0)
"""To stop, and to save."""
Votes = Sequence[float]


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives for one sample: found by tracing it once."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    outputs: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Objective:
    """The losses of a model's outputs, each with its weight in the sum."""

    losses: Mapping[str, Loss]
    weights: Mapping[str, float]

    def of(self, outputs: Mapping[str, Expr]) -> dict[str, tuple[Loss, float]]:
        """The loss of each output that counts while training."""
        unknown = sorted(set(self.losses) - set(outputs))
        if unknown:
            raise ConfigError.build(
                "loss", expected="losses for " + ", ".join(outputs), got=", ".join(unknown),
                hint="name them after what forward gives back",
            )  # fmt: skip
        return {name: (loss, self.weights.get(name, 1.0)) for name, loss in self.losses.items()}


@dataclass
class Steps:
    """Makes plans for a model, keeps them by batch size, and runs them."""

    model: Model
    objective: Objective
    optimizer: Optimizer
    metrics: list[Metric]
    strategy: Strategy
    loss_scale: LossScale | None = None
    weighted: bool = False
    targets: int = 1
    source: BatchSource = field(default_factory=HostSource)
    training_totals: MetricTotals = field(init=False)
    evaluation_totals: MetricTotals = field(init=False)

    def __post_init__(self) -> None:
        device = self.model.device
        self.training_totals = MetricTotals("training", self.metrics, device)
        self.evaluation_totals = MetricTotals("evaluation", self.metrics, device)
        self.random = op.var(
            "random state",
            (2,),
            fill=np.array([self.model.seed, self.model.steps_done]),
            dtype="int64",
            device=device,
        )
        self.bad_step = op.var(
            "first bad step", (), fill=np.array(-1), dtype="int64", device=device
        )
        self._plans: dict[tuple[str, Hashable], Plan] = {}
        self._ran: set[Plan] = set()
        self._values: Values | None = None
        self._votes = op.input(VOTES, (len(NO_VOTES),), "float64")
        self.tally = op.var("wishes heard", (len(NO_VOTES),), dtype="float64", device=device)

    def fed(self) -> Steps:
        """The same steps, on the same variables, for batches that are fed to this rank alone."""
        twin = copy.copy(self)
        twin.source, twin.strategy = HostSource(), SingleProcessStrategy()
        twin._plans, twin._ran, twin._values = {}, set(), None
        return twin

    # --- running

    def train(
        self, batch: Batch | Share, weights: np.ndarray | None = None, votes: Votes | None = None
    ) -> None:
        """Launch a training step; nothing is waited for.

        With several ranks, `heard` is how many of them had which wish.
        """
        plan = self.training(batch)
        feeds: dict[str, Any] = {}
        if not isinstance(batch, Share):
            feeds = self.feeds(batch.arrays, weights) | drawn(batch, plan)
        if self.strategy.is_distributed:
            feeds[VOTES] = NO_VOTES if votes is None else votes
        # A rank that computes only a part of the network may not need all of it.
        self._launch(plan, {name: each for name, each in feeds.items() if name in plan.inputs})

    def batches(self, loader: Loader) -> Iterator[Batch | Share]:
        """The rest of the loader's epoch."""
        found = self.source.epoch(loader)
        if loader.data.is_stream and self.strategy.is_distributed:
            return synchronised_stream(found, self.strategy.communicator)
        return found

    def evaluated(self, loader: Loader) -> dict[str, Any]:
        """The loss and the metrics of an epoch."""
        self.evaluation_totals.reset()
        for batch in self.batches(loader):
            self._evaluate(batch)
        return self.evaluation_totals.results()

    def _evaluate(self, batch: Batch | Share) -> None:
        """Add a batch to the evaluation totals."""
        if isinstance(batch, Share):
            self._launch(self.evaluation(batch), {})
            return
        plan = self.evaluation(batch)
        feeds = self.feeds(batch.arrays, None) | drawn(batch, plan)
        # Only what the main output needs is fed.
        self._launch(plan, {name: feeds[name] for name in plan.inputs})

    def _launch(self, plan: Plan, feeds: Mapping[str, Any]) -> None:
        if not plan.device.is_host and not plan.is_captured and plan.can_capture:
            # What runs only once is not worth it.
            if plan in self._ran:
                plan.capture()
            self._ran.add(plan)
        plan.run(feeds)

    # --- plans

    def training(self, batch: int | Share | Batch) -> Plan:
        """A training step on a batch, or on one like those that are given by their size."""
        return self._kept("training", batch, self._training_program)

    def evaluation(self, batch: int | Share | Batch) -> Plan:
        """Adds a batch to the evaluation totals."""
        return self._kept("evaluation", batch, self._evaluation_program)

    def _kept(
        self, kind: str, given: int | Share | Batch, build: Callable[[int], list[Expr]]
    ) -> Plan:
        batch = _whole(given) if isinstance(given, int) else given
        key = (kind, self.source.key(batch))
        if key not in self._plans:
            self._plans[key] = self.strategy.compiled(lambda: self._compiled(batch, build))
        return self._plans[key]

    def _compiled(self, batch: Share | Batch, build: Callable[[int], list[Expr]]) -> Plan:
        values = self.source.values(batch)
        programs = []
        for part in self.strategy.parts(values.share):
            self._values = values.part(part, self.strategy.of_part)
            programs.append(build(len(part)))
        return compile(
            [*self.strategy.written(programs), *values.updates],
            device=self.model.device,
            precision=self.model.precision,
            communicator=self.strategy.plan_communicator,
            # Nobody else asks for them, and they hold the data.
            remember=False,
        )

    def _training_program(self, count: int) -> list[Expr]:
        outputs, traced = self.traced(count, training=True)
        loss, total = self.loss(outputs, count, self.objective.of(outputs))
        votes: list[Expr] = [self._votes] if self.strategy.is_distributed else []
        whole, sums, votes = self._sum_over_ranks(loss, outputs, count, votes)
        updates = self._updates(loss, whole, total, traced)
        updates += [op.assign(self.tally, each) for each in votes]
        return [*updates, *self.training_totals.add(whole * total, total, sums)]

    def _evaluation_program(self, count: int) -> list[Expr]:
        found, _ = self.traced(count, training=False)
        outputs = self.strategy.predictions(found, self.objective.losses)
        present = {k: v for k, v in self.objective.losses.items() if k in outputs}
        main = {name: (loss, 1.0) for name, loss in list(present.items())[:1]}
        loss, total = self.loss(outputs, count, main)
        whole, sums, _ = self._sum_over_ranks(loss, outputs, count, [])
        return self.evaluation_totals.add(whole * total, total, sums)

    # --- parts of the graph

    def traced(self, count: int, *, training: bool) -> tuple[dict[str, Expr], Context]:
        """The outputs of the network for `count` samples, and the trace that made them."""
        inputs = self.inputs(count)
        with trace(
            training=training, dtype=self.model.dtype, device=self.model.device,
            random=self.random, first=self._batch(count).share.first,
            several_ranks=self.strategy.shares_batches,
        ) as traced:  # fmt: skip
            result = self.model(*inputs)
        self.strategy.traced(traced)
        return named_outputs(result), traced

    def inputs(self, count: int) -> list[Expr]:
        """The inputs of the network for `count` samples."""
        return [
            self._value(f"x{i}", (count, *shape), dtype)
            for i, (shape, dtype) in enumerate(self.model.signature.inputs)
        ]

    def _batch(self, count: int) -> Values:
        """The batch that is being written down, or a whole one of this size."""
        if self._values is None or len(self._values.share) != count:
            self._values = self.source.values(_whole(count))
        return self._values

    def _value(self, name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
        return self._batch(shape[0]).of(name, shape, dtype)

    def _target(self, output: str, prediction: Expr) -> Expr:
        """The targets of an output: of its own if there are several, else the one for all."""
        loss = self.objective.losses[output]
        shape, dtype = loss.target_spec(prediction.shape, prediction.dtype)
        number = list(self.objective.losses).index(output) if self.targets > 1 else 0
        return self._value(f"y{number}", shape, dtype)

    def _weights(self, count: int) -> Expr | None:
        return self._value("weights", (count,), self.model.dtype) if self.weighted else None

    def loss(
        self, outputs: Mapping[str, Expr], count: int, parts: Mapping[str, tuple[Loss, float]]
    ) -> tuple[Expr, Expr]:
        """What this rank's samples add to the loss of the whole batch, and the weight of that."""
        weights = self._weights(count)
        if weights is None:
            samples = self._batch(count).share.count
            total = lifted(float(samples), self.model.dtype)
            divisor = lifted(float(samples or 1), self.model.dtype)
        else:
            (total,) = self.strategy.sum_over_ranks([op.sum(weights)])
            # Samples that count for nothing have no loss.
            divisor = op.where(total == 0.0, 1.0, total)
        terms = [
            factor * loss(outputs[name], self._target(name, outputs[name]), weights, total=divisor)
            for name, (loss, factor) in parts.items()
        ]
        result = terms[0]
        for term in terms[1:]:
            result = result + term
        return result, total

    def _sum_over_ranks(
        self, loss: Expr, outputs: Mapping[str, Expr], count: int, more: list[Expr]
    ) -> tuple[Expr, list[dict[str, Expr]], list[Expr]]:
        """The loss of the whole batch, the sums of the metrics, and `more` that is to be summed."""
        name, prediction = main_output(outputs, self.objective)
        target, weights = self._target(name, prediction), self._weights(count)
        here = [metric.sums(prediction, target, weights) for metric in self.metrics]
        flat = [value for sums in here for value in sums.values()]
        whole, *rest = self.strategy.sum_over_ranks([loss, *flat, *more])
        found = iter(rest)
        return whole, [{key: next(found) for key in sums} for sums in here], list(found)

    def _updates(self, loss: Expr, whole: Expr, weight: Expr, traced: Context) -> list[Expr]:
        fine = op.logical_and(op.isfinite(whole), self.bad_step < 0)
        scaled = loss if self.loss_scale is None else self.loss_scale.scaled(loss)
        variables, gradients = self.strategy.gradients(scaled, self.model.trainable())
        ok = fine
        updates: list[Expr] = []
        with self.strategy.updating():
            if self.loss_scale is not None:
                gradients, finite = self.loss_scale.unscaled(gradients)
                ok = op.logical_and(fine, finite)
                updates += self.loss_scale.adapted(finite)
            updates += self.strategy.changes(self.optimizer, variables, gradients, ok, weight)
        updates += [self._only_if(fine, update) for update in traced.updates]
        step = self.random[1]
        updates += [
            op.assign(self.random, op.where(fine, self.random + np.array([0, 1]), self.random)),
            op.assign(self.bad_step, op.where(fine | (self.bad_step >= 0), self.bad_step, step)),
        ]
        return updates

    def _only_if(self, fine: Expr, update: Expr) -> Expr:
        target, value = update.node.inputs
        variable = Variable(target.attrs["symbol"])
        return op.assign(variable, op.where(fine, Expr(value), variable))

    # --- feeding

    def feeds(self, parts: Sequence[np.ndarray], weights: np.ndarray | None) -> dict[str, Any]:
        """A batch (inputs, then targets) by the names of the plan's inputs."""
        count = len(self.model.signature.inputs)
        if len(parts) != count + self.targets:
            raise DataError.build(
                "batch", expected=f"{count} inputs and {self.targets} targets",
                got=f"{len(parts)} arrays", hint="pass (x, y), or (x1, x2, y1, y2) for several",
            )  # fmt: skip
        feeds: dict[str, Any] = {f"x{i}": part for i, part in enumerate(parts[:count])}
        feeds |= {f"y{i}": part for i, part in enumerate(parts[count:])}
        if self.weighted:
            feeds["weights"] = weights if weights is not None else np.ones(len(parts[0]))
        return feeds

    def variables(self) -> dict[str, Variable]:
        """Everything a checkpoint has to hold besides the model's own variables."""
        found = {"random state": self.random, "first bad step": self.bad_step}
        found |= self.training_totals.variables()
        if self.loss_scale is not None:
            found["loss scale"] = self.loss_scale.scale
            found["good steps"] = self.loss_scale.good_steps
        return found


def _whole(samples: int) -> Share:
    """A whole batch of so many samples."""
    return Share.of(0, samples, samples)


def trace_network(model: Model, count: int, *, several_ranks: bool = False) -> Context:
    """The trace of a training pass over so many samples, whichever these are: to be looked at."""
    inputs = [
        op.input(f"x{i}", (count, *shape), dtype)
        for i, (shape, dtype) in enumerate(model.signature.inputs)
    ]
    random = op.var("random state", (2,), dtype="int64", device=model.device)
    with trace(
        training=True, dtype=model.dtype, device=model.device, random=random,
        several_ranks=several_ranks,
    ) as traced:  # fmt: skip
        model(*inputs)
    return traced


def lifted(value: float, dtype: Any) -> Expr:
    """A number as an expression."""
    return op.cast(value, dtype)


def named_outputs(result: Any) -> dict[str, Expr]:
    """What forward gave back, by name: a dict as it is, a tuple as output0, output1, ..."""
    if isinstance(result, dict):
        return dict(result)
    if isinstance(result, tuple | list):
        return {f"{MAIN}{i}": each for i, each in enumerate(result)}
    return {MAIN: result}


def main_output(outputs: Mapping[str, Expr], objective: Objective) -> tuple[str, Expr]:
    """The output that metrics and predictions are about: the first that has a loss."""
    name = next(name for name in objective.losses if name in outputs)
    return name, outputs[name]
