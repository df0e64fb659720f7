"""Plans of training, evaluation and prediction, by batch size."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from caldera import op
from caldera.base.config import settings
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.compiler.plan.cache import MOST_BYTES, RecentPlans
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import program_of
from caldera.core.memory import Device
from caldera.core.memory.pool import rounded_up
from caldera.core.tensor.random import seeded
from caldera.data import Batch, Loader, Share
from caldera.errors import DataError
from caldera.nn.metrics import Metric
from caldera.nn.tracing import Context, LayerWatch, trace
from caldera.optim import LossScale, Optimizer
from caldera.train.batch_source import BatchSource, HostSource, as_words, drawn, synchronised_stream
from caldera.train.metric_totals import MetricTotals
from caldera.train.step_graph import AFTER_PARAMETERS, StepGraph, TrainingObjective, main_output
from caldera.train.strategy import NO_VOTES, VOTES, SingleProcessStrategy, Strategy

if TYPE_CHECKING:
    from caldera.train.model import Model
    from caldera.train.model_settings import ModelSettings
    from caldera.train.training_data import TrainingData


def device_of_plans(model: ModelSettings, *, several_ranks: bool = False) -> Device | None:
    """Where plans compute what is not pinned; None where `settings.placement` decides, because it
    names a device or because several take part."""
    if several_ranks:
        return model.device
    mixed = bool(model.pinned_variables()) or model.optimizer.apart is not None
    return None if mixed or settings.placement != "auto" else model.device


TRAINING, EVALUATION = "training", "evaluation"
Votes = Sequence[float]
MOST_SIZES = 64
"""Plans of a model that are kept: those for the sizes of batches that were there last."""


@dataclass
class StepPlans:
    """Makes plans for a model, keeps them by batch size, and runs them."""

    model: Model
    objective: TrainingObjective
    optimizer: Optimizer
    metrics: Sequence[Metric]
    strategy: Strategy
    loss_scale: LossScale | None = None
    weighted: bool = False
    targets: int = 1
    source: BatchSource = field(default_factory=HostSource)
    without: Sequence[str] = ()
    """Passes that are left out, to see what they are worth."""
    training_totals: MetricTotals = field(init=False)
    evaluation_totals: MetricTotals = field(init=False)

    def __post_init__(self) -> None:
        device = self.model.device
        name = next(iter(self.objective.losses), "")
        outputs = math.prod(self.model.signature.outputs.get(name, ()))
        self.centre = op.var("centre of the targets", (outputs,), dtype="float64", device=device)
        metrics = self.objective.judged_by(self.metrics)
        self.metrics = [metric.about(self.centre) for metric in metrics]
        shown = bool(self.objective.losses)
        self.training_totals = MetricTotals("training", self.metrics, device, shows_loss=shown)
        self.evaluation_totals = MetricTotals("evaluation", self.metrics, device, shows_loss=shown)
        self.random = op.var(
            "random state",
            (2,),
            fill=as_words(self.model.seed, self.model.steps_done),
            dtype="int64",
            device=device,
        )
        self.bad_step = op.var(
            "first bad step", (), fill=np.array(-1), dtype="int64", device=device
        )
        self._plans = RecentPlans(MOST_SIZES)
        self._watch = LayerWatch(self.model)
        self._rule = self.optimizer.changes
        self._ran: WeakSet[Plan] = WeakSet()
        self.votes = op.input(VOTES, (len(NO_VOTES),), "float64")
        self.tally = op.var("tally of votes", (len(NO_VOTES),), dtype="float64", device=device)

    def fed(self) -> StepPlans:
        """The same steps, on the same variables, for batches that are fed to this rank alone."""
        twin = copy.copy(self)
        twin.source = HostSource(open_lengths=self.model.open_lengths)
        twin.strategy = SingleProcessStrategy()
        twin._plans, twin._ran = RecentPlans(MOST_SIZES), WeakSet()
        twin._watch = LayerWatch(self.model)
        return twin

    def centre_on(self, given: TrainingData) -> StepPlans:
        """Let metrics subtract the mean of these targets, before they are squared and added."""
        centre, ranks = given.centre(self.model), self.strategy.communicator
        if given.pipeline.is_stream and ranks.size > 1:
            # Streams may begin with another sample on each rank.
            centre = np.array(ranks.bcast_object(centre.tolist()))
        self.centre.assign(np.resize(centre, self.centre.shape))
        return self

    def begin_again(self, seed: int, steps_done: int) -> None:
        """Make the variables of a new run of those of the last one; the plans stay."""
        self.random.assign(as_words(seed, steps_done))
        self.bad_step.assign(np.array(-1))
        self.tally.assign(np.zeros(self.tally.shape))
        for totals in (self.training_totals, self.evaluation_totals):
            totals.reset()

    @property
    def nbytes(self) -> int:
        """What the plans hold on to."""
        return self._plans.nbytes

    # --- running

    def train(
        self, batch: Batch | Share, weights: np.ndarray | None = None, votes: Votes | None = None
    ) -> None:
        """Launch a training step; nothing is waited for.

        With several ranks, `tally` is how many of them had which vote.
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
        return self._kept(TRAINING, batch)

    def evaluation(self, batch: int | Share | Batch) -> Plan:
        """Adds a batch to the evaluation totals."""
        return self._kept(EVALUATION, batch)

    def _kept(self, kind: str, given: int | Share | Batch) -> Plan:
        batch = _whole(given) if isinstance(given, int) else given
        if self._watch.saw_change(self.model) or self._rule != self.optimizer.changes:
            self._rule = self.optimizer.changes
            self._plans.clear()
        key = (kind, self.source.key(batch))
        plan = self._plans.get(key)
        if plan is None:
            plan = self.strategy.compiled(lambda: self._compiled(kind, batch))
            self._plans.add(key, plan)
        return plan

    def _compiled(self, kind: str, batch: Share | Batch) -> Plan:
        values = self.source.values(batch)
        programs = []
        for part in self.strategy.parts(values.share):
            graph = self.model.step_graph(self, values.part(part, self.strategy.of_part))
            programs.append(graph.training() if kind == TRAINING else graph.evaluation())
        return compile(
            [*self.strategy.program(programs), *values.updates],
            device=device_of_plans(self.model, several_ranks=self.strategy.is_distributed),
            precision=self.model.precision,
            communicator=self.strategy.plan_communicator,
            without=self.without,
            # Nobody else asks for them, and they hold the data.
            remember=False,
        )

    def graph(self, like: int | Batch) -> StepGraph:
        """The parts of a step on a batch, or on so many samples, to look at or to build on."""
        values = self.source.values(_whole(like) if isinstance(like, int) else like)
        return self.model.step_graph(self, values.part(values.share, self.strategy.of_part))

    # --- feeding

    def feeds(self, parts: Sequence[np.ndarray], weights: np.ndarray | None) -> dict[str, Any]:
        """A batch (inputs, then targets) by the names of the plan's inputs."""
        count = len(self.model.signature.inputs)
        if len(parts) != count + self.targets:
            raise DataError.build(
                "batch",
                expected=f"{count} inputs and {self.targets} targets",
                got=f"{len(parts)} arrays",
                hint="pass (x, y), or (x1, x2, y1, y2) for several",
            )
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


def trace_network(
    model: Model,
    count: int,
    *,
    several_ranks: bool = False,
    samples: Callable[[Expr], Expr] = lambda value: value,
) -> Context:
    """The trace of a training pass over so many samples, whichever these are: to be looked at.

    `samples` makes those that the network reads of those that a rank has.
    """
    inputs = [
        samples(op.input(f"x{i}", (count, *shape), dtype))
        for i, (shape, dtype) in enumerate(model.signature.inputs)
    ]
    random = op.var("random state", (2,), dtype="int64", device=model.device)
    with (
        seeded(model.seed, AFTER_PARAMETERS, random),
        trace(
            training=True,
            dtype=model.dtype,
            device=model.device,
            random=random,
            several_ranks=several_ranks,
        ) as traced,
    ):
        model.step_outputs(*inputs)
    return traced


Facts = tuple[Any, ...]
"""What a model's steps depend on, beside its layers."""


class KeptSteps:
    """The steps of a model's last run, as long as they hold no more than a few plans may."""

    def __init__(self) -> None:
        self._facts: Facts | None = None
        self._steps: StepPlans | None = None

    def take(self, facts: Facts | None, model: Model) -> StepPlans | None:
        """The steps that were made for these facts, as new, if there are any. They are kept again
        by `keep`, once a run has ended well."""
        steps = self._steps if facts is not None and facts == self._facts else None
        self.clear()
        if steps is not None:
            steps.model = model
            steps.begin_again(model.seed, model.steps_done)
        return steps

    def keep(self, facts: Facts | None, steps: StepPlans) -> None:
        """Keep the steps of a run that has ended, for others with the same facts."""
        if facts is not None and steps.nbytes <= MOST_BYTES:
            self._facts, self._steps = facts, steps
            # A model that nobody uses goes at once: what it keeps must not hold on to it.
            loose: Any = weakref.proxy(steps.model)
            steps.model = loose

    def clear(self) -> None:
        """Let go of them."""
        self._facts = self._steps = None


def facts_of(
    model: Model, strategy: Strategy, source: BatchSource, *, weighted: bool, targets: int
) -> Facts | None:
    """What steps for this would depend on; None if that cannot be told."""
    alone = type(strategy) is SingleProcessStrategy
    fed = isinstance(source, HostSource) and not source.has_stages
    if not (alone and fed) or model.precision == "float16":
        # Ranks plan together; data lie on the device; a loss scale begins anew with each run.
        return None
    optimizer = model.optimizer
    if not type(optimizer).__module__.startswith("caldera."):
        # Nobody knows what the rule of somebody else reads.
        return None
    numbers = {
        name: value
        for name, value in vars(optimizer).items()
        if name != "state" and not name.startswith("_")
    }
    return (
        id(strategy),
        model.objective,
        optimizer,
        numbers,
        model.metrics,
        model.dtype,
        model.precision,
        model.device,
        model.seed,
        model.signature,
        weighted,
        targets,
        repr(settings),
    )


EXACT = 8
"""Samples up to which every number has a plan of its own."""
PREDICTED_BYTES = 2 << 20
"""Size of the largest value that a prediction computes at once: it fits into a core's caches."""
PREDICTED_BYTES_ON_CARD = 256 << 20
MOST_PREDICTED = 1 << 14
"""Samples that are predicted at once, at most."""


class Predictors(RecentPlans):
    """The plans with which a model predicts, by the samples they take."""

    def __init__(self) -> None:
        super().__init__(MOST_SIZES)
        self._sample_bytes: float | None = None

    def predict(
        self, model: Model, arrays: Sequence[np.ndarray], batch_size: int | None
    ) -> np.ndarray:
        """The main output for each sample; up to `batch_size` samples are computed at once."""
        samples = len(arrays[0])
        specs = tuple(
            (array.shape[1:], dtype)
            for array, (_, dtype) in zip(arrays, model.signature.inputs, strict=True)
        )
        if batch_size is None:
            few = samples <= model.batch_size
            batch_size = model.batch_size if few else self._chosen(model, arrays)
        count = min(batch_size, filled_up(samples))
        plan = self._plan(model, count, specs)
        parts = []
        for start in range(0, samples, count):
            feeds = {
                f"x{i}": _padded(x[start : start + count], count) for i, x in enumerate(arrays)
            }
            parts.append(plan.run(feeds)[0].numpy()[: samples - start].copy())
        if not parts:
            name = next(iter(model.signature.outputs))
            return np.zeros((0, *model.signature.outputs[name]), model.dtype)
        return np.concatenate(parts)

    def _chosen(self, model: Model, arrays: Sequence[np.ndarray]) -> int:
        """The number of samples whose largest value fits in the cache, or in a card's memory."""
        known = model.signature.inputs
        if self._sample_bytes is None:
            inputs, outputs, _ = model.expressions(model.samples_traced)
            made = {each.node for each in inputs}
            for node in program_of([each.node for each in outputs.values()]).order():
                if not made.isdisjoint(node.inputs):
                    made.add(node)
            largest = max(spec.nbytes for node in made for spec in node.outputs)
            self._sample_bytes = largest / model.samples_traced
        # Samples may be larger than those traced, where their size is open.
        grown = arrays[0][0].size / max(math.prod(known[0][0]), 1)
        room = PREDICTED_BYTES if model.device.is_host else PREDICTED_BYTES_ON_CARD
        room = min(room, (settings.memory_limit or room << 3) >> 3)
        fitting = int(room / max(self._sample_bytes * grown, 1.0))
        return max(model.batch_size, min(1 << fitting.bit_length() >> 1, MOST_PREDICTED))

    def _plan(
        self, model: Model, count: int, specs: tuple[tuple[tuple[int, ...], str], ...]
    ) -> Plan:
        plan = self.get((count, specs))
        if plan is None:
            _, outputs, _ = model.expressions_for(specs, count)
            _, prediction = main_output(outputs, model.objective)
            # It goes with the model.
            plan = compile(
                prediction,
                device=device_of_plans(model),
                precision=model.precision,
                remember=False,
            )
            self.add((count, specs), plan)
        return plan


def filled_up(samples: int) -> int:
    """The size of the plan for so many samples: less than a quarter of it is filling.

    >>> [filled_up(samples) for samples in (0, 1, 7, 8, 9, 11, 100, 1000)]
    [1, 1, 7, 8, 10, 12, 112, 1024]
    """
    return max(samples, 1) if samples <= EXACT else rounded_up(samples)


def _padded(array: np.ndarray, count: int) -> np.ndarray:
    """The last samples filled up to a whole batch; what is computed for the filling is dropped."""
    missing = count - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
