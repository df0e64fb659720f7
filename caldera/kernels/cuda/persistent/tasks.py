"""A task: a part of a step in equal units, each done by one block, and the memory it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caldera.kernels.cuda.codegen.signature import Array
from caldera.kernels.cuda.persistent.memory_access import Access
from caldera.kernels.cuda.runtime.driver import driver

WARPS = 16
THREADS = 32 * WARPS
NUMBERS = 256
"""Row numbers that a part may keep in shared memory beside what it keeps in `scratch`."""
MASKS = 32
"""Words at the beginning of shared memory, with a bit for each part."""


def shared_floats() -> int:
    """Shared memory that a block may have: most of what a multiprocessor has.

    A few KiB are left to the cache, which has what is not in shared memory.
    """
    return (driver().shared_bytes // (4 << 10) - 1) << 10


def dynamic_floats() -> int:
    """What is left of it for a part, at most."""
    return shared_floats() - NUMBERS - MASKS


Early = Callable[[Array], bool]
"""Whether an array is as it must be before the phase before has ended."""


@dataclass(frozen=True)
class Text:
    """Statements that do the unit whose number is in `unit`.

    They are run by all threads of a block, so they may meet. What is `ahead` is run before the
    blocks meet, or even while the phase before is at work, and may only read what is there early;
    what is `late` begins to bring the rest, and `main` is run after that.
    """

    main: Sequence[str]
    ahead: Sequence[str] = ()
    late: Sequence[str] = ()


@dataclass(frozen=True)
class Zones:
    """How much of `scratch`, counted in floats, a part uses: from its beginning on, and elsewhere.

    Only what is brought ahead goes to the second place. `soon`: that may be done while the phase
    before is at work.
    """

    late: int = 4 * THREADS
    early: int = 0
    soon: bool = True

    def end(self, start: int | None) -> int:
        """Where the last of it ends, if what is brought ahead lies from `start` on, or after the
        rest."""
        return max(self.late, (self.late if start is None else start) + self.early)


Code = Callable[[Access, Early, int | None], tuple[Text, Zones]]


@dataclass(frozen=True, eq=False)
class Task:
    """`code(places, early, start)` gives the statements, and what they use of `scratch`.

    `start` is where what is brought ahead goes, None for a place of the code's choice. A heavy task
    wants blocks for itself. `load` is how long it keeps one block busy: in units, if these are not
    unusually large.
    """

    what: str
    units: int
    reads: Sequence[Array]
    writes: Sequence[Array]
    code: Code
    heavy: bool = False
    load: int = 0


def plain(lines: Callable[[Access], list[str]]) -> Code:
    """The code of a task that does nothing ahead."""
    return lambda places, early, start: (Text(lines(places)), Zones())


def units_of(count: int, each: int) -> int:
    """How many units of `each` it takes to do `count`."""
    return -(-count // each)
