"""Evolution: regularised (the oldest die) and hierarchical (mutations have levels)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.search.dimension import Dimension, Stored
from caldera.search.method import Method, Proposal, methods
from caldera.search.space import Point
from caldera.search.trial import Trial
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

    def ask(self, number: int) -> Proposal | None:
        random = self.random(number)
        living = self.living()
        if number < self.population or not living:
            return Proposal(self.first(random))
        count = min(self.sample_size(len(living)), len(living))
        picked = [living[i] for i in random.choice(len(living), count, replace=False)]
        parent = min(picked, key=lambda trial: (self.loss(trial), trial.number))
        return Proposal(self.mutated(parent.point, random), note={"parent": parent.number})

    def living(self) -> list[Trial]:
        """The members of the population: those that were done last."""
        return [trial for trial in self.told() if trial.is_feasible][-self.population :]

    def sample_size(self, members: int) -> int:
        """How many take part in a tournament."""
        return self.sample

    def first(self, random: np.random.Generator) -> Point:
        """A member of the first generation."""
        return self.space.draw(random)

    def mutated(self, point: Point, random: np.random.Generator) -> Point:
        """A child."""
        return self.space.near(point, random, width=mutation_width(random))


@methods.register("hierarchical")
class HierarchicalEvolution(Evolution):
    """Hierarchical evolution (Liu et al. 2018): a mutation first picks a level of the architecture,
    then something in it; nobody dies, and `pressure` of the population take part in a tournament.

    Levels are those of the paths: `cell.2.operation` is deeper than `width`.

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
        return _changed(self, point, [chosen], random)


def _changed(
    method: Method, point: Point, paths: Sequence[str], random: np.random.Generator
) -> Point:
    """The point with other values at these paths; what a changed choice opens is drawn."""
    width = mutation_width(random)

    def pick(path: str, dimension: Dimension) -> Stored:
        if path not in point or not dimension.holds(point[path]):
            return dimension.stored(random.random())
        return dimension.near(point[path], random, width) if path in paths else point[path]

    return method.space.walk(pick)[0]


def mutation_width(random: np.random.Generator) -> float:
    """How far a number moves: near and far are both of use, at the end and at the beginning."""
    return float(10 ** random.uniform(-2.5, -0.5))
