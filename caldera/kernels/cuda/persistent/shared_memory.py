"""Where the parts of a step keep things in shared memory.

What a part brings ahead of its phase goes where no part of the phase before has anything, if there
is such a place: then it can be brought while that phase is at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caldera.kernels.cuda.persistent.tasks import Zones


@dataclass
class Layout:
    """The places of a part, by name: those of `late` things, then those that come early.

    The shared memory that a kernel asks for is counted from these places, and from nothing else.

    >>> layout = Layout()
    >>> layout.add("a", 100, early=False)
    >>> layout.add("b", 60, early=True)
    >>> layout.end(None)
    >>> layout.place("a"), layout.place("b"), layout.zones
    ('scratch + 0', 'scratch + 100', Zones(late=100, early=60, soon=True))
    >>> layout.zones.end(None), layout.zones.end(200)
    (160, 260)
    """

    late: int = 0
    early: int = 0
    start: int = 0
    soon: bool = True
    places: dict[str, int] = field(default_factory=dict)
    _floats: dict[str, int] = field(default_factory=dict)
    _early: set[str] = field(default_factory=set)

    def add(self, name: str, floats: int, *, early: bool) -> None:
        """One more thing of so many floats."""
        self._floats[name] = floats
        if early:
            self.places[name] = self.early
            self._early.add(name)
            self.early += floats
        else:
            self.places[name] = self.late
            self.late += floats

    def lay_over(self, name: str, floats: int, *, early: bool) -> None:
        """One more thing, which begins where all that has been added so far of its kind does: it is
        written when that is no longer read."""
        self.places[name] = 0
        self._floats[name] = floats
        if early:
            self._early.add(name)
            self.early = max(self.early, floats)
        else:
            self.late = max(self.late, floats)

    def end(self, start: int | None) -> None:
        """All is there; what comes early lies from `start` on, or where the rest ends."""
        self.start = self.late if start is None else start
        for name in self._early:
            self.places[name] += self.start

    def place(self, name: str) -> str:
        """Where something lies, in CUDA."""
        return f"scratch + {self.places[name]}"

    def checks(self, used: Mapping[str, str]) -> list[str]:
        """Statements that let no kernel be compiled which uses more floats of a place, by its name,
        than there are.

        >>> layout = Layout()
        >>> layout.add("a", 100, early=False)
        >>> layout.checks({"a": "L::FLOATS"})
        ['static_assert(L::FLOATS <= 100, "a");']
        """
        return [
            f'static_assert({floats} <= {self._floats[name]}, "{name}");'
            for name, floats in used.items()
        ]

    @property
    def zones(self) -> Zones:
        """What is used."""
        return Zones(self.late, self.early, self.soon)


def starts(phases: Sequence[Sequence[Zones]], floats: int) -> list[int | None]:
    """For each phase, where in so many floats what is brought ahead goes; None if it must wait
    until the phase before has ended.

    >>> starts([[Zones(10000, 20000)], [Zones(8000, 20000)], [Zones(10000, 50000)]], 56032)
    [None, 36032, None]
    """
    found: list[int | None] = []
    used: list[tuple[int, int]] = []
    for number, phase in enumerate(phases):
        late = max(zones.late for zones in phase)
        early = max(zones.early for zones in phase)
        start = None
        if number and early and all(zones.soon for zones in phase):
            below = [last for first, last in used if first == 0]
            places = (max([late, *below]), (floats - early) // 4 * 4)
            start = next(
                (each for each in places if _is_free(each, late, early, used, floats)), None
            )
        found.append(start)
        used = [(0, zones.late) for zones in phase]
        for zones in phase:
            first = zones.late if start is None else start
            used.append((first, first + zones.early))
    return found


def _is_free(
    start: int, late: int, early: int, used: Sequence[tuple[int, int]], floats: int
) -> bool:
    end = start + early
    inside = late <= start and end <= floats
    return inside and not any(first < end and start < last for first, last in used)
