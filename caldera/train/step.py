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
from caldera.core.memory import Device
from caldera.core.tensor.random import seeded
from caldera.data import Batch, Loader, Share
from caldera.errors import DataError
from caldera.nn.metrics import Metric
from caldera.nn.tracing import Context, LayerWatch, trace
from caldera.optim import LossScale, Optimizer
from caldera.train.batch_source import BatchSource, HostSource, as_words, drawn, synchronised_stream
from caldera.train.metric_totals import MetricTotals
from caldera.train.step_graph import AFTER_PARAMETERS, StepGraph, TrainingObjective
from caldera.train.strategy import NO_VOTES, VOTES, SingleProcessStrategy, Strategy

if TYPE_CHECKING:
    from caldera.train.model import Model
    from caldera.train.model_settings import ModelSettings
    from caldera.train.training_data import TrainingData


def device_of_plans(model: ModelSettings, *, several_ranks: bool = False) -> Device | None:
    """Return the device for unpinned ops of plans; None if `settings.placement` decides.

    The setting decides if it names a device or if several devices take part.
    """
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
    """Compiler passes that are left out, to measure their effect."""
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
        """Return the same steps, on the same variables, for batches fed to this rank only."""
        twin = copy.copy(self)
        twin.source = HostSource(open_sizes=bool(self.model.open_axes))
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
        """Reset the variables for a new run; the plans stay."""
        self.random.assign(as_words(seed, steps_done))
        self.bad_step.assign(np.array(-1))
        self.tally.assign(np.zeros(self.tally.shape))
        for totals in (self.training_totals, self.evaluation_totals):
            totals.reset()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the plans hold."""
        return self._plans.nbytes

    # --- running

    def train(
        self, batch: Batch | Share, weights: np.ndarray | None = None, votes: Votes | None = None
    ) -> None:
        """Launch a training step without waiting for it.

        With several ranks, `tally` has the number of ranks with each vote.
        """
        plan = self.training(batch)
        feeds: dict[str, Any] = {}
        if not isinstance(batch, Share):
            feeds = self.feeds(batch.arrays, weights) | drawn(batch, plan)
        if self.strategy.is_distributed:
            feeds[VOTES] = NO_VOTES if votes is None else votes
        # A rank that computes only a part of the network may not need all inputs.
        self._launch(plan, {name: each for name, each in feeds.items() if name in plan.inputs})

    def batches(self, loader: Loader) -> Iterator[Batch | Share]:
        """Return the remaining batches of the loader's epoch."""
        found = self.source.epoch(loader)
        if loader.data.is_stream and self.strategy.is_distributed:
            return synchronised_stream(found, self.strategy.communicator)
        return found

    def evaluated(self, loader: Loader) -> dict[str, Any]:
        """Return the loss and the metrics of an epoch."""
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
        # Only the inputs of the main output are fed.
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
        """Return the plan of a training step for a batch, a share or a number of samples."""
        return self._kept(TRAINING, batch)

    def evaluation(self, batch: int | Share | Batch) -> Plan:
        """Build the plan that adds a batch to the evaluation totals."""
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
            # Each plan is compiled only once, and remembering it would keep the data in memory.
            remember=False,
        )

    def graph(self, like: int | Batch) -> StepGraph:
        """Return the parts of a step on a batch or a number of samples, for inspection or reuse."""
        values = self.source.values(_whole(like) if isinstance(like, int) else like)
        return self.model.step_graph(self, values.part(values.share, self.strategy.of_part))

    # --- feeding

    def feeds(self, parts: Sequence[np.ndarray], weights: np.ndarray | None) -> dict[str, Any]:
        """Return a batch (inputs, then targets) by the names of the plan's inputs."""
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
        """Return the checkpoint variables in addition to the model's own variables."""
        found = {"random state": self.random, "first bad step": self.bad_step}
        found |= self.training_totals.variables()
        if self.loss_scale is not None:
            found["loss scale"] = self.loss_scale.scale
            found["good steps"] = self.loss_scale.good_steps
        return found


def _whole(samples: int) -> Share:
    """Return the share that is a whole batch of `samples` samples."""
    return Share.of(0, samples, samples)


def trace_network(
    model: Model,
    count: int,
    *,
    several_ranks: bool = False,
    samples: Callable[[Expr], Expr] = lambda value: value,
) -> Context:
    """Trace a training pass over `count` samples, for inspection.

    `samples` selects, from a rank's samples, the samples that the network reads.
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
"""Values that determine a model's steps, in addition to its layers."""


class KeptSteps:
    """The steps of a model's last run, as long as they hold no more than a few plans may."""

    def __init__(self) -> None:
        self._facts: Facts | None = None
        self._steps: StepPlans | None = None

    def take(self, facts: Facts | None, model: Model) -> StepPlans | None:
        """Return the steps that were made for these facts, as new, if there are any. They are kept
        again by `keep`, once a run has ended well."""
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
            # An unused model should be freed immediately: its cached steps must not hold a
            # reference to it.
            loose: Any = weakref.proxy(steps.model)
            steps.model = loose

    def clear(self) -> None:
        """Drop the steps."""
        self._facts = self._steps = None


def facts_of(
    model: Model, strategy: Strategy, source: BatchSource, *, weighted: bool, targets: int
) -> Facts | None:
    """Return the values that determine the steps; None if they cannot be determined."""
    alone = type(strategy) is SingleProcessStrategy
    fed = isinstance(source, HostSource) and not source.has_stages
    if not (alone and fed) or model.precision == "float16":
        # Not reusable: ranks plan together, data are resident, or the loss scale starts again in
        # each run.
        return None
    optimizer = model.optimizer
    if not type(optimizer).__module__.startswith("caldera."):
        # The inputs of a custom update rule are not known.
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
