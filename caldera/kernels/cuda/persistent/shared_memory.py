"""Shared-memory layout of a persistent kernel: tiles of images with borders, and filters.

Data prefetched before its phase is placed at an address that no part of the preceding phase uses,
if there is one: then it loads while that phase computes. Intermediate results of the work on an
image are also written to shared memory and read from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caldera.core.tensor.shape import size
from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.fusion import same
from caldera.kernels.cuda.persistent.tasks import THREADS, Access, DelegatingAccess, Zones, units_of


@dataclass
class SharedMemoryMap:
    """The places of a part, by name: those of `late` things, then those that come early.

    The shared memory that a kernel asks for is counted from these places, and from nothing else.

    >>> layout = SharedMemoryMap()
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

        >>> layout = SharedMemoryMap()
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


@dataclass(frozen=True, eq=False)
class SharedTile(ABC):
    """An array of which a part is in shared memory."""

    array: Array

    @property
    @abstractmethod
    def floats(self) -> int:
        """How much that takes."""

    @property
    def padded_floats(self) -> int:
        """The same up to a multiple of 16 bytes, where the next one may begin."""
        return 4 * units_of(self.floats, 4)

    @abstractmethod
    def bring(self, places: Access, to: str) -> str:
        """The statement that begins to bring it."""


@dataclass(frozen=True, eq=False)
class SharedImage(SharedTile):
    """An image: `border` pixels of 0 before the first, `padded` in all, each `apart` floats."""

    border: tuple[int, int]
    padded: tuple[int, int]
    apart: int

    @property
    def floats(self) -> int:
        """With the border."""
        return size(self.padded) * self.apart

    @property
    def is_framed(self) -> bool:
        """Whether there is any border."""
        return self.padded != self.array.shape[2:]

    def bring(self, places: Access, to: str) -> str:
        """The statement that begins to bring `image`."""
        _, channels, down, across = self.array.shape
        strides = [stride // 4 for stride in self.array.strides[1:]]
        numbers = (
            channels,
            self.apart,
            down,
            across,
            *self.border,
            *self.padded,
            *strides,
            THREADS,
        )
        start = places.element(self.array, ["image", "0", "0", "0"])
        return f"block_bring_image<{', '.join(map(str, numbers))}>({to}, &{start});"

    def element(self, to: str, here: Sequence[str]) -> str:
        """An element, to be read or written; one pixel or channel may stand for all of a loop."""
        counts = self.array.shape[1:]
        channel, y, x = ("0" if n == 1 else at for n, at in zip(counts, here[1:], strict=True))
        top, left = self.border
        row = f"(({y}) + {top}) * {self.padded[1]}"
        return f"({to})[({row} + ({x}) + {left}) * {self.apart} + ({channel})]"


@dataclass(frozen=True, eq=False)
class SharedFilters(SharedTile):
    """Filters: a line for each tap; `turned` for the gradient of what they were applied to."""

    line: int
    turned: bool

    @property
    def floats(self) -> int:
        """A line has a number for each result."""
        results, channels, *taps = self.array.shape
        return (results if self.turned else channels) * size(tuple(taps)) * self.line

    def bring(self, places: Access, to: str) -> str:
        """The statement that begins to bring all of them."""
        strides = [stride // 4 for stride in self.array.strides]
        turned = str(self.turned).lower()
        numbers = (*self.array.shape, *strides, self.line, turned, THREADS)
        return f"block_bring_taps<{', '.join(map(str, numbers))}>({to}, {places.name(self.array)});"


class SharedAccess(DelegatingAccess):
    """Access to arrays some of which have copies in shared memory: these are read, and written too.

    Arrays that are `hidden` are only written there.
    """

    def __init__(
        self, places: Access, found: Sequence[tuple[SharedTile, str]], hidden: Sequence[Array]
    ) -> None:
        super().__init__(places)
        self._found = found
        self._hidden = hidden

    def over(self, places: Access) -> SharedAccess:
        """The same copies of memory that is reached through other places."""
        return SharedAccess(places, self._found, self._hidden)

    @property
    def beyond(self) -> Access:
        """The places without copies."""
        return self._places

    def place(self, near: SharedTile) -> str:
        """Where something lies."""
        return next(to for each, to in self._found if each is near)

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        copies = self._copies(array, coordinates)
        return f"(float){copies[0]}" if copies else super().load(array, coordinates)

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        copies = [f"{each} = {value};" for each in self._copies(array, coordinates)]
        if not copies or not any(same(array, each) for each in self._hidden):
            copies.insert(0, super().store(array, coordinates, value))
        return " ".join(copies)

    def _copies(self, array: Array, coordinates: Sequence[str]) -> list[str]:
        return [
            near.element(to, coordinates)
            for near, to in self._found
            if isinstance(near, SharedImage) and same(near.array, array)
        ]
