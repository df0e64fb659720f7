"""The text of a kernel that runs the phases of a step.

Parts whose code is the same but for the arrays are one piece of code: layers of a network are
alike, and code that is shorter is fetched in less time. A table says which code runs in which
phase, by which blocks, on which arrays.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.kernel import STORED, Array, KernelTemplate
from caldera.kernels.cuda.codegen.loops import include_for
from caldera.kernels.cuda.persistent.fusion import early_in
from caldera.kernels.cuda.persistent.shared_memory import starts
from caldera.kernels.cuda.persistent.tasks import (
    MASKS,
    NUMBERS,
    THREADS,
    Access,
    TaskText,
    TileTask,
)

STEPS = KernelTemplate(
    "steps",
    {
        "pointers": "const __grid_constant__ Pointers",
        "counters": "u32*",
        "count": "i32",
    },
    "{body}",
)
"""The kernel: so many steps in a row; two counters, which are 0 before the first launch, are where
blocks meet."""
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
    """A kernel for the phases of a step on so many blocks, with so many floats of shared memory for
    its parts."""

    def __init__(self, phases: list[list[TileTask]], blocks: int, floats: int) -> None:
        self.phases = phases
        self._places = Access()
        self._bodies: dict[TaskText, int] = {}
        self._given: list[int] = []
        self._rows: list[TaskRow] = []
        self.scratch = 0
        """Floats of shared memory that parts use, to the end of the last place of any of them."""
        early = [early_in(phases, number) for number in range(len(phases))]
        places = starts(
            [
                [part.code(Access(), is_early, None)[1] for part in phase]
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
        """The number of a code, and the numbers of its arrays in its order."""
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
        """All shared memory of a block."""
        return MASKS + NUMBERS + self.scratch

    @property
    def arrays(self) -> list[Array]:
        """What the kernel touches."""
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


def assign_blocks(phase: Sequence[TileTask], blocks: int) -> list[tuple[TileTask, int, int]]:
    """The parts of a phase, each with its first block and over how many blocks it goes.

    Products come first, one after the other; what else there is goes to the blocks that are left,
    unless these are too few.
    """
    products = [part for part in phase if part.heavy]
    others = [part for part in phase if not part.heavy]
    found = []
    used = 0
    for part in products:
        found.append((part, used % blocks, min(part.units, blocks)))
        used += part.units
    spare = max(blocks - used, 0)
    if 4 * spare < sum(part.units for part in others):
        used, spare = 0, blocks
    place = 0
    for part in others:
        span = min(part.units, spare)
        if place + span > spare:
            place = 0
        found.append((part, (used + place) % blocks, span))
        place += span
    return found
