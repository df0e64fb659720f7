"""Random search, and random search until it is good enough."""

from __future__ import annotations

from caldera.search.method import Method, methods
from caldera.search.space import Point


@methods.register("random")
class Random(Method):
    """Points at random, each drawn alone: the measure of all others.

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
