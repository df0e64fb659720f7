"""Samplers without a fitted model: grid, random search and particle swarm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from caldera.search.method import Method, TrialProposal, methods
from caldera.search.space import Point
from caldera.search.trial import Trial
from caldera.train.arguments import whole_number

Key = tuple[tuple[str, str], ...]


@methods.register("grid")
class GridSearch(Method):
    """Every point of the space, once; dimensions without steps are an error.

    >>> from caldera import search
    >>> space = {"x": search.integer(1, 3), "y": search.choice([10, 20])}
    >>> study = search.run(lambda x, y: x + y, space, method="grid", verbose=0)
    >>> len(study.trials), study.best.parameters
    (6, {'x': 1, 'y': 10})
    """

    ends = True

    def prepare(self) -> None:
        next(self.space.grid())  # raises an error if the space has no grid
        self._points: Iterator[Point] = self.space.grid()
        self._visited: set[Key] = set()
        self._seen = 0

    def ask(self, number: int) -> Point | None:
        # In a shared study other programs may have proposed some of these points.
        self._visited.update(_key(trial.point) for trial in self.trials[self._seen :])
        self._seen = len(self.trials)
        return next((point for point in self._points if _key(point) not in self._visited), None)


def _key(point: Point) -> Key:
    return tuple(sorted((path, repr(value)) for path, value in point.items()))


@methods.register("random")
class Random(Method):
    """Independent random points: the baseline of every other method.

    >>> from caldera import search
    >>> search.run(lambda x: x * x, {"x": search.uniform(-1, 1)}, trials=50, verbose=0).best.value < 0.1
    True
    """  # noqa: E501

    def ask(self, number: int) -> Point | None:
        return self.space.draw(self.random(number))


@methods.register("threshold")
class Threshold(Random):
    """Points at random until one is as good as `value`.

    >>> from caldera import search
    >>> study = search.run(lambda x: x * x, {"x": search.uniform(-1, 1)},
    ...                    method=search.Threshold(0.01), verbose=0)
    >>> [trial.value <= 0.01 for trial in study.trials].count(True)
    1
    """

    ends = True

    def __init__(self, value: float) -> None:
        self.value = float(value)

    def ask(self, number: int) -> Point | None:
        best = self.best()
        if best is not None and self.loss(best) <= self.objective.losses((self.value,))[0]:
            return None
        return super().ask(number)


@methods.register("swarm")
class Swarm(Method):
    """Particle swarm (Kennedy and Eberhart 1995, with the constriction of Clerc and Kennedy 2002).

    Each of `particles` flies through the space, drawn to the best place it has seen itself and to
    the best that any has seen. Choices are stretches of an axis.

    >>> from caldera import search
    >>> space = {"x": search.uniform(-4, 4), "y": search.uniform(-4, 4)}
    >>> study = search.run(lambda x, y: x * x + y * y, space, method="swarm", trials=200, verbose=0)
    >>> study.best.value < 0.01
    True
    """

    def __init__(
        self, particles: int = 10, inertia: float = 0.7298, own: float = 1.496, all: float = 1.496
    ) -> None:
        self.particles = whole_number(particles, "particles", 1, "Swarm")
        self.inertia, self.own, self.all = inertia, own, all

    def prepare(self) -> None:
        self._paths = list(self.space.dimensions())

    def ask(self, number: int) -> TrialProposal | None:
        random, size = self.random(number), len(self._paths)
        flights = self._flights()
        if len(flights) < self.particles:
            position, velocity = random.random(size), 0.2 * (random.random(size) - 0.5)
            return self._proposal(len(flights), position, velocity)
        free = [particle for particle, flight in flights.items() if flight[-1].is_over]
        if not free:
            return None
        particle = min(free, key=lambda each: (len(flights[each]), each))
        flight = flights[particle]
        position = np.array(flight[-1].note["position"])
        velocity = np.array(flight[-1].note["velocity"])
        own = self._place(flight, position)
        everywhere = [trial for each in flights.values() for trial in each]
        best = self._place(everywhere, position)
        velocity = (
            self.inertia * velocity
            + self.own * random.random(size) * (own - position)
            + self.all * random.random(size) * (best - position)
        )
        position = position + np.clip(velocity, -0.5, 0.5)
        # At a wall it loses its speed.
        outside = (position < 0) | (position > 1)
        velocity = np.where(outside, -0.5 * velocity, velocity)
        return self._proposal(particle, np.clip(position, 0.0, 1.0), velocity)

    def _proposal(self, particle: int, position: np.ndarray, velocity: np.ndarray) -> TrialProposal:
        point = self.space.at(dict(zip(self._paths, position.tolist(), strict=True)))
        note = {"particle": particle, "position": position.tolist(), "velocity": velocity.tolist()}
        return TrialProposal(point, note=note)

    def _flights(self) -> dict[int, list[Trial]]:
        """Return the trials of each particle."""
        found: dict[int, list[Trial]] = {}
        for trial in self.trials:
            if "particle" in trial.note:
                found.setdefault(trial.note["particle"], []).append(trial)
        return found

    def _place(self, trials: list[Trial], position: np.ndarray) -> np.ndarray:
        """Return the position of the best of these trials, or `position` if none is feasible."""
        done = [trial for trial in trials if trial.is_feasible]
        if not done:
            return position
        best = min(done, key=lambda trial: (self.loss(trial), trial.number))
        return np.array(best.note["position"])
