"""Exhaustive grid: every point of the space, once."""

from __future__ import annotations

from collections.abc import Iterator

from caldera.search.method import Method, methods
from caldera.search.space import Point

Key = tuple[tuple[str, str], ...]


@methods.register("grid")
class Grid(Method):
    """Every point of the space, once; dimensions without steps are an error.

    >>> from caldera import search
    >>> space = {"x": search.integer(1, 3), "y": search.choice([10, 20])}
    >>> study = search.run(lambda x, y: x + y, space, method="grid", verbose=0)
    >>> len(study.trials), study.best.parameters
    (6, {'x': 1, 'y': 10})
    """

    ends = True

    def prepare(self) -> None:
        next(self.space.grid())  # says so if there is no grid
        self._points: Iterator[Point] = self.space.grid()
        self._visited: set[Key] = set()
        self._seen = 0

    def ask(self, number: int) -> Point | None:
        # Other programs may have asked for some of them.
        self._visited.update(_key(trial.point) for trial in self.trials[self._seen :])
        self._seen = len(self.trials)
        for point in self._points:
            if _key(point) not in self._visited:
                return point
        return None


def _key(point: Point) -> Key:
    return tuple(sorted((path, repr(value)) for path, value in point.items()))
