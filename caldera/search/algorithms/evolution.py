"""Regularised and hierarchical evolution, population-based training, and a controller.

In regularised evolution the oldest members die; in the hierarchical form mutations have levels.
Population-based training changes settings while models train.
The controller is a small network that reinforcement learning trains to propose good points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from caldera import op, optim
from caldera.base.arguments import require
from caldera.compiler.lazy import compile
from caldera.core.tensor import constant
from caldera.errors import ConfigError
from caldera.search.dimension import Dimension, Stored, Uniform
from caldera.search.method import Method, TrialProposal, methods
from caldera.search.space import Point
from caldera.search.trial import FAILED, Trial
from caldera.train.arguments import whole_number


@methods.register("evolution")
class Evolution(Method):
    """Regularised evolution (Real et al. 2019): the best of `sample` members that are picked at
    random has a child, in which about one value differs; the oldest member dies.

    >>> from caldera import search
    >>> space = {"x": search.uniform(-4, 4), "y": search.uniform(-4, 4)}
    >>> study = search.run(lambda x, y: x * x + y * y, space, method="evolution", trials=200,
    ...                    verbose=0)
    >>> study.best.value < 0.02
    True
    """

    def __init__(self, population: int = 20, sample: int = 5) -> None:
        self.population = whole_number(population, "population", 1, type(self).__name__)
        self.sample = whole_number(sample, "sample", 1, type(self).__name__)

    def ask(self, number: int) -> TrialProposal | None:
        random = self.random(number)
        living = self.living()
        if number < self.population or not living:
            return TrialProposal(self.first(random))
        count = min(self.sample_size(len(living)), len(living))
        picked = [living[i] for i in random.choice(len(living), count, replace=False)]
        parent = min(picked, key=lambda trial: (self.loss(trial), trial.number))
        return TrialProposal(self.mutated(parent.point, random), note={"parent": parent.number})

    def living(self) -> list[Trial]:
        """Return the members of the population: the most recently finished trials."""
        return [trial for trial in self.told() if trial.is_feasible][-self.population :]

    def sample_size(self, members: int) -> int:
        """Return the number of members in a tournament."""
        return self.sample

    def first(self, random: np.random.Generator) -> Point:
        """Return a member of the first generation."""
        return self.space.draw(random)

    def mutated(self, point: Point, random: np.random.Generator) -> Point:
        """Return a child."""
        return self.space.near(point, random, width=mutation_width(random))


@methods.register("hierarchical")
class HierarchicalEvolution(Evolution):
    """Hierarchical evolution (Liu et al. 2018).

    A mutation first picks a level of the architecture, then one of its values. No member dies, and
    a fraction `pressure` of the population takes part in each tournament.

    The level is the depth of the path: `cell.2.operation` is deeper than `width`.

    >>> from caldera import search
    >>> space = {"x": search.uniform(-4, 4), "cell": {"y": search.uniform(-4, 4)}}
    >>> study = search.run(lambda x, cell: x * x + cell["y"] ** 2, space, method="hierarchical",
    ...                    trials=200, verbose=0)
    >>> study.best.value < 0.1
    True
    """

    def __init__(self, population: int = 20, pressure: float = 0.05, mutations: int = 10) -> None:
        super().__init__(population)
        self.pressure, self.mutations = pressure, mutations

    def living(self) -> list[Trial]:
        return [trial for trial in self.told() if trial.is_feasible]

    def sample_size(self, members: int) -> int:
        return max(round(self.pressure * members), 2)

    def first(self, random: np.random.Generator) -> Point:
        # Plain networks, made different by many mutations.
        point = self.space.draw(random)
        for _ in range(self.mutations):
            point = self.mutated(point, random)
        return point

    def mutated(self, point: Point, random: np.random.Generator) -> Point:
        levels: dict[int, list[str]] = {}
        for path in point:
            levels.setdefault(path.count("."), []).append(path)
        level = levels[sorted(levels)[random.integers(len(levels))]]
        chosen = level[random.integers(len(level))]
        return self.space.near(point, random, width=mutation_width(random), path=chosen)


def mutation_width(random: np.random.Generator) -> float:
    """Draw the width of a mutation: wide ones help at the beginning, narrow ones at the end."""
    return float(10 ** random.uniform(-2.5, -0.5))


@methods.register("pbt")
class PBT(Method):
    """Population-based training (Jaderberg et al. 2017).

    A trial is a stretch of `interval` epochs in which a member of the population trains. After each
    stretch, the worst quarter of the members (`quantile`) continue from the saved models of the
    best quarter, with settings near theirs. The remaining members continue unchanged. `explore`
    names the parameters that may change. By default these are all non-integer numbers, since
    integers and choices usually shape the network. The method ends when each member has trained for
    the epochs of the search.

    >>> from caldera import search
    >>> study = search.run(lambda x: x * x, {"x": search.uniform(-1, 1)}, verbose=0, epochs=10,
    ...                    method=search.PBT(population=8, interval=1))
    >>> len(study.trials), study.best.value < 0.01
    (80, True)
    """

    ends = True
    saves = True

    def __init__(
        self,
        population: int = 10,
        interval: int = 1,
        quantile: float = 0.25,
        explore: Sequence[str] | None = None,
        resample: float = 0.1,
    ) -> None:
        self.population = whole_number(population, "population", 2, "PBT")
        self.interval = whole_number(interval, "interval", 1, "PBT")
        require(0 < quantile <= 0.5, "PBT", "quantile= up to 0.5", repr(quantile))
        self.quantile, self.resample = quantile, resample
        self.explore = explore

    def prepare(self) -> None:
        if self.epochs is None:
            raise ConfigError.build(
                repr(self), expected="epochs= of the search, which it shares out", got="none"
            )
        known = self.space.dimensions()
        for name in self.explore or ():
            if name not in known:
                raise ConfigError.build(
                    repr(self),
                    expected="explore= names of the space",
                    got=repr(name),
                    hint="known: " + ", ".join(known),
                )
        self._fixed = [
            path
            for path, each in known.items()
            if (not isinstance(each, Uniform) if self.explore is None else path not in self.explore)
        ]
        self._generations = math.ceil(self.epochs / self.interval)

    def ask(self, number: int) -> TrialProposal | None:
        latest = self._latest()
        if len(latest) < self.population:
            return self._proposal(self.space.draw(self.random(number)), len(latest), 0)
        over = [trial for trial in latest.values() if trial.is_over]
        free = [trial for trial in over if trial.note["generation"] + 1 < self._generations]
        if not free:
            return None
        last = min(free, key=lambda trial: (trial.note["generation"], trial.told or 0))
        member, generation = last.note["member"], last.note["generation"] + 1
        donor = self._donor(last, self.random(number))
        if donor is None:
            if last.state == FAILED:
                # No good model to continue from yet: start with a new draw.
                return self._proposal(self.space.draw(self.random(number)), member, generation)
            return self._proposal(last.point, member, generation, last.number)
        point = self._explored(donor.point, self.random(number, 1))
        return self._proposal(point, member, generation, donor.number)

    def _proposal(
        self, point: Point, member: int, generation: int, parent: int | None = None
    ) -> TrialProposal:
        assert self.epochs is not None
        epochs = min(self.interval, self.epochs - generation * self.interval)
        note = {"member": member, "generation": generation}
        return TrialProposal(dict(point), epochs=epochs, parent=parent, keep=True, note=note)

    def _latest(self, *, over: bool = False) -> dict[int, Trial]:
        """Return the last trial of each member, or the last finished one."""
        trials = [each for each in self.trials if "member" in each.note]
        return {each.note["member"]: each for each in trials if each.is_over or not over}

    def _donor(self, last: Trial, random: np.random.Generator) -> Trial | None:
        """Return the trial whose model replaces the member's, if the member is among the worst."""
        # Of members that are training the stretch before counts.
        newest = self._latest(over=True).values()
        ranked = sorted(newest, key=lambda trial: (self.loss(trial), trial.number))
        good = [trial for trial in ranked if math.isfinite(self.loss(trial))]
        count = max(int(self.quantile * len(ranked)), 1)
        top = [trial for trial in good[:count] if trial.number != last.number]
        is_bad = last.state == FAILED or last in ranked[-count:]
        return None if not top or not is_bad else top[random.integers(len(top))]

    def _explored(self, point: Point, random: np.random.Generator) -> Point:
        def pick(path: str, dimension: Dimension) -> Stored:
            if path in self._fixed and path in point:
                return point[path]
            if path not in point or random.random() < self.resample:
                return dimension.stored(random.random())
            return dimension.near(point[path], random, mutation_width(random))

        return self.space.walk(pick)[0]


_NEVER = -1e9
_RANKED = 100
"""A reward is a trial's rank among up to this number of recent trials."""


@methods.register("controller")
class Controller(Method):
    """A policy network trained by REINFORCE (Williams 1992; Zoph and Le 2017).

    The policy makes one decision per dimension, each conditioned on the earlier ones. Decisions of
    trials that rank high among recent trials become more likely.

    The network has one masked layer, trained with Adam after every `batch` trials. For a number it
    selects one of `bins` intervals of the range, in which the number is drawn.

    >>> from caldera import search
    >>> space = {"kind": search.choice(["a", "b", "c"]), "size": search.integer(1, 4)}
    >>> def cost(kind, size):
    ...     return (kind != "c") + abs(size - 3)
    >>> study = search.run(cost, space, method="controller", trials=60, verbose=0)
    >>> study.best.parameters
    {'kind': 'c', 'size': 3}
    """

    def __init__(
        self,
        bins: int = 10,
        batch: int = 10,
        learning_rate: float = 0.1,
        entropy: float = 0.01,
        steps: int = 3,
    ) -> None:
        self.bins = whole_number(bins, "bins", 2, "Controller")
        self.batch = whole_number(batch, "batch", 1, "Controller")
        self.steps = whole_number(steps, "steps", 1, "Controller")
        self.learning_rate, self.entropy = learning_rate, entropy

    def prepare(self) -> None:
        found = self.space.dimensions()
        self._paths = list(found)
        self._sizes = [_size(each, self.bins) for each in found.values()]
        self._width = max(self._sizes)
        self._seen: list[Trial] = []
        self._write_policy()

    def _write_policy(self) -> None:
        """The policy and its update as one plan: decisions and advantages in, the loss out."""
        count, width = len(self._paths), self._width
        size = count * width
        # A decision sees the earlier decisions, and only the choices of its dimension.
        order = np.repeat(np.arange(count), width)
        self._mask = (order[:, None] < order[None, :]).astype("float32")
        offered = np.arange(width)[None, :] < np.array(self._sizes)[:, None]
        self._offered = np.where(offered, 0.0, _NEVER).astype("float32")
        self._weight = op.var("controller/weight", (size, size), fill=constant(0.0))
        self._bias = op.var("controller/bias", (size,), fill=constant(0.0))
        decisions = op.input("decisions", (self.batch, size))
        advantages = op.input("advantages", (self.batch,))
        logits = decisions @ (self._weight * self._mask) + self._bias
        logits = op.reshape(logits, (self.batch, count, width)) + self._offered
        log_chances = op.log_softmax(logits, axis=-1)
        taken = op.reshape(decisions, (self.batch, count, width))
        likely = op.sum(log_chances * taken, axis=(1, 2))
        spread = -op.sum(op.exp(log_chances) * op.maximum(log_chances, -100.0), axis=(1, 2))
        loss = -op.mean(advantages * likely) - self.entropy * op.mean(spread)
        variables = [self._weight, self._bias]
        updates = optim.Adam(self.learning_rate).apply(variables, op.grad(loss, variables))
        self._plan = compile([loss, *updates])

    def ask(self, number: int) -> TrialProposal | None:
        random, count, width = self.random(number), len(self._paths), self._width
        weight, bias = self._weight.numpy() * self._mask, self._bias.numpy()
        so_far = np.zeros(count * width, "float32")
        decided: list[int] = []
        units: dict[str, float] = {}
        for index, path in enumerate(self._paths):
            part = slice(index * width, (index + 1) * width)
            logits = so_far @ weight[:, part] + bias[part] + self._offered[index]
            chances = np.exp(logits - logits.max()).astype("float64")
            choice = int(random.choice(width, p=chances / chances.sum()))
            so_far[index * width + choice] = 1.0
            decided.append(choice)
            units[path] = (choice + random.random()) / self._sizes[index]
        return TrialProposal(self.space.at(units), note={"decisions": decided})

    def tell(self, trial: Trial) -> None:
        if len(trial.note.get("decisions", ())) != len(self._paths):
            return
        self._seen.append(trial)
        if len(self._seen) % self.batch == 0:
            self._learn(self._seen[-self.batch :])

    def _learn(self, trials: list[Trial]) -> None:
        losses = np.array([self.loss(trial) for trial in self._seen[-_RANKED:]])
        rewards = [
            2 * np.mean(losses > self.loss(trial)) + np.mean(losses == self.loss(trial)) - 1
            for trial in trials
        ]
        decisions = np.eye(self._width, dtype="float32")[[t.note["decisions"] for t in trials]]
        feeds = {
            "decisions": decisions.reshape(self.batch, -1),
            "advantages": np.array(rewards, "float32"),
        }
        for _ in range(self.steps):
            self._plan.run(feeds)


def _size(dimension: Dimension, bins: int) -> int:
    """Return the number of bins of a dimension: its number of values if they are few."""
    values = dimension.grid()
    return bins if values is None or len(values) > 4 * bins else max(len(values), 1)
