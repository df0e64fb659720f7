"""The text of a kernel that runs the phases of a step, and its shared memory.

Parts whose code is the same but for the arrays are one piece of code: layers of a network are
alike, and code that is shorter is fetched in less time. A table defines which code runs in which
phase, by which blocks, on which arrays.

Data prefetched before its phase is placed in shared memory at an address that no part of the
preceding phase uses, if there is one: then it loads while that phase computes. Tiles of images with
borders, filters and intermediate results of the work on an image are in shared memory too.
"""

from __future__ import annotations

import ctypes
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from caldera.core.memory.software import address_of
from caldera.core.tensor.shape import size
from caldera.kernels.cuda.codegen import STORED, Array, KernelTemplate, include_for
from caldera.kernels.cuda.persistent.fusion import early_in, same
from caldera.kernels.cuda.persistent.tasks import (
    MASKS,
    NUMBERS,
    THREADS,
    DelegatingAccess,
    TaskText,
    TileAccess,
    TileTask,
    Zones,
    assign_blocks,
    units_of,
)


@dataclass
class SharedMemoryMap:
    """Offsets of a part's buffers by name: first the late buffers, then the early ones.

    A kernel's request for shared memory is computed only from these offsets.

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
        """Add a buffer of `floats` floats."""
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
        """Complete the layout; early buffers start at `start`, or at the end of the late ones."""
        self.start = self.late if start is None else start
        for name in self._early:
            self.places[name] += self.start

    def place(self, name: str) -> str:
        """Return the address of a buffer, in CUDA."""
        return f"scratch + {self.places[name]}"

    def checks(self, used: Mapping[str, str]) -> list[str]:
        """Return statements that let no kernel be compiled which uses more floats of a place, by
        its name, than there are.

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
        """Zones that are used."""
        return Zones(self.late, self.early, self.soon)


def starts(phases: Sequence[Sequence[Zones]], floats: int) -> list[int | None]:
    """Return the offset of prefetched data for each phase, within `floats` floats.

    The offset is None if the prefetch must wait until the previous phase has ended.

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
        """Number of floats that it takes."""

    @property
    def padded_floats(self) -> int:
        """Number of floats, rounded up to a multiple of 16 bytes."""
        return 4 * units_of(self.floats, 4)

    @abstractmethod
    def bring(self, places: TileAccess, to: str) -> str:
        """Return the statement that starts to load it."""


@dataclass(frozen=True, eq=False)
class SharedImage(SharedTile):
    """An image: `border` pixels of 0 before the first, `padded` in all, each `apart` floats."""

    border: tuple[int, int]
    padded: tuple[int, int]
    apart: int

    @property
    def floats(self) -> int:
        """Number of floats, including the border."""
        return size(self.padded) * self.apart

    @property
    def is_framed(self) -> bool:
        """True if there is a border."""
        return self.padded != self.array.shape[2:]

    def bring(self, places: TileAccess, to: str) -> str:
        """Return the statement that starts to load `image`."""
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
        """Return an element, to be read or written; a single pixel or channel is broadcast over a
        loop.
        """
        counts = self.array.shape[1:]
        channel, y, x = ("0" if n == 1 else at for n, at in zip(counts, here[1:], strict=True))
        top, left = self.border
        row = f"(({y}) + {top}) * {self.padded[1]}"
        return f"({to})[({row} + ({x}) + {left}) * {self.apart} + ({channel})]"


@dataclass(frozen=True, eq=False)
class SharedFilters(SharedTile):
    """Filters: a line for each tap; `turned` for the gradient of the convolution's input."""

    line: int
    turned: bool

    @property
    def floats(self) -> int:
        """Number of floats in shared memory, in lines with one number per result."""
        results, channels, *taps = self.array.shape
        return (results if self.turned else channels) * size(tuple(taps)) * self.line

    def bring(self, places: TileAccess, to: str) -> str:
        """Return the statement that starts to load all filters."""
        strides = [stride // 4 for stride in self.array.strides]
        numbers = (*self.array.shape, *strides, self.line, str(self.turned).lower(), THREADS)
        return f"block_bring_taps<{', '.join(map(str, numbers))}>({to}, {places.name(self.array)});"


class SharedAccess(DelegatingAccess):
    """Access to arrays some of which have copies in shared memory: these are read, and written too.

    Arrays that are `hidden` are only written there.
    """

    def __init__(
        self, places: TileAccess, found: Sequence[tuple[SharedTile, str]], hidden: Sequence[Array]
    ) -> None:
        super().__init__(places)
        self._found = found
        self._hidden = hidden

    def over(self, places: TileAccess) -> SharedAccess:
        """Return access to the same copies, with other pointers to memory."""
        return SharedAccess(places, self._found, self._hidden)

    @property
    def beyond(self) -> TileAccess:
        """The places without copies."""
        return self._places

    def place(self, near: SharedTile) -> str:
        """Return the address of a tile."""
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


STEPS = KernelTemplate(
    "steps",
    {
        "pointers": "const __grid_constant__ Pointers",
        "counters": "u32*",
        "count": "i32",
    },
    "{body}",
)
"""Kernel that runs `count` steps in order.

Blocks synchronise by two counters, which are 0 before the first launch.
"""
_POINTER = re.compile(r"\bp(\d+)\b")


@dataclass(frozen=True)
class TaskRow:
    """A part in the table: `Task` of persistent.cuh."""

    body: int
    phase: int
    first: int
    span: int
    units: int
    base: int
    soon: int


class PersistentKernel:
    """Kernel for the phases of a step on `blocks` blocks.

    Its parts have `floats` floats of shared memory.
    """

    def __init__(self, phases: list[list[TileTask]], blocks: int, floats: int) -> None:
        self.phases = phases
        self._places = TileAccess()
        self._bodies: dict[TaskText, int] = {}
        self._given: list[int] = []
        self._rows: list[TaskRow] = []
        self.scratch = 0
        """Floats of shared memory that parts use, to the end of the last place of any of them."""
        early = [early_in(phases, number) for number in range(len(phases))]
        places = starts(
            [
                [part.code(TileAccess(), is_early, None)[1] for part in phase]
                for phase, is_early in zip(phases, early, strict=True)
            ],
            floats,
        )
        for number, (phase, start) in enumerate(zip(phases, places, strict=True)):
            for part, first, span in assign_blocks(phase, blocks):
                text, zones = part.code(self._places, early[number], start)
                self.scratch = max(self.scratch, zones.end(start))
                body, given = self._body(text)
                base, soon = len(self._given), int(start is not None)
                self._rows.append(TaskRow(body, number, first, span, part.units, base, soon))
                self._given += given
        self.source = self._source()

    def _body(self, text: TaskText) -> tuple[int, list[int]]:
        """Return the number of a code, and the numbers of its arrays in its order."""
        lines = (*text.ahead, *text.late, *text.main)
        found = [int(n) for line in lines for n in _POINTER.findall(line)]
        given = list(dict.fromkeys(found))

        def named(lines: Sequence[str]) -> tuple[str, ...]:
            return tuple(
                _POINTER.sub(lambda match: f"q{given.index(int(match[1]))}", line) for line in lines
            )

        kinds = [STORED[self._places.arrays[n].dtype.name] for n in given]

        def declared(lines: tuple[str, ...]) -> tuple[str, ...]:
            whole = "\n".join(lines)
            used = [n for n in range(len(given)) if re.search(rf"\bq{n}\b", whole)]
            return (
                *(f"{kinds[n]}* q{n} = ({kinds[n]}*)pointers.at[base + {n}];" for n in used),
                *lines,
            )

        each = (text.main, text.ahead, text.late)
        body = TaskText(*(declared(named(lines)) for lines in each))
        return self._bodies.setdefault(body, len(self._bodies)), given

    @property
    def shared_floats(self) -> int:
        """Shared memory of a block, in floats."""
        return MASKS + NUMBERS + self.scratch

    @property
    def arrays(self) -> list[Array]:
        """Arrays that the kernel touches."""
        return self._places.arrays

    @property
    def pointers(self) -> ctypes.Array[Any]:
        """The addresses that the parts use, in their order: a parameter of the kernel."""
        addresses = [address_of(self._places.arrays[n]) for n in self._given]
        return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)

    def _source(self) -> str:
        table = ", ".join("{" + ", ".join(map(str, astuple(row))) + "}" for row in self._rows)
        parts, phases = len(self._rows), len(self.phases)
        bodies = list(self._bodies)
        begin = f"""#include "persistent.cuh"
struct Pointers {{ void* at[{len(self.pointers)}]; }};
__constant__ Task parts[] = {{{table}}};
"""
        body = f"""{{
    DYNAMIC_SHARED(float, shared);
    u32* masks = (u32*)shared;
    i32* numbers = (i32*)shared + {MASKS};
    float* scratch = shared + {MASKS + NUMBERS};
    PhaseScheduler scheduler(parts, {parts}, {phases}, count, masks, counters);
    bool begun = false;
    while (scheduler.go()) {{
        i32 unit = scheduler.unit, base = parts[scheduler.part].base;
        i32 body = parts[scheduler.part].body;
        // First what this part brings, if that was not begun before, then what the next one does.
        for (i32 part = begun ? -1 : scheduler.part;;) {{
            if (part >= 0) {{
                i32 unit = part == scheduler.part ? scheduler.unit : first_unit(parts[part]);
                i32 base = parts[part].base;
                switch (parts[part].body) {{
{_cases([text.ahead for text in bodies])}
                }}
                if (part != scheduler.part) break;
            }}
            scheduler.wait();
            switch (body) {{
{_cases([text.late for text in bodies])}
            }}
            copies_begun();
            begun = scheduler.can_begin_next();
            if (!begun) break;
            part = scheduler.next;
        }}
        copies_begun();
        switch (body) {{
{_cases([text.main for text in bodies])}
        }}
    }}
    grid_leave(counters);
}}"""
        steps = STEPS.source(f"__launch_bounds__({THREADS}, 1)", body=body)
        return begin + include_for(body) + steps

    def __str__(self) -> str:
        lines = []
        for number, phase in enumerate(self.phases):
            parts = ", ".join(f"{part.what} ({part.units})" for part in phase)
            lines.append(f"phase {number}: {parts}")
        return "\n".join(lines)


def _cases(bodies: Sequence[Sequence[str]]) -> str:
    lines = []
    for number, body in enumerate(bodies):
        if body:
            lines.append(f"        case {number}: {{")
            lines += [f"            {line}" for line in body]
            lines += ["            break;", "        }"]
    return "\n".join(lines)
