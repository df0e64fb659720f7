"""A timeline as a file that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) show.

The format is Chrome's "Trace Event Format": JSON with complete events ("X"), counters ("C") and
names ("M"); times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.file_cache import write_file
from caldera.compiler.plan.explain import Explanation, Row, shapes_text
from caldera.compiler.plan.timeline import DEVICE, HOST, Slice, Timeline
from caldera.errors import ConfigError

_PROCESSES = {HOST: 1, DEVICE: 2}


def write_trace(path: str | PathLike[str], seen: Timeline, plan: Explanation) -> Path:
    """Write the timeline of a plan to a .json file; its path."""
    target = Path(path)
    if target.suffix.lower() != ".json":
        raise ConfigError.build(
            "trace",
            expected="a file name that ends in .json",
            got=repr(str(path)),
            hint="open it at ui.perfetto.dev, or in chrome://tracing",
        )
    if not target.parent.is_dir():
        raise ConfigError.build(
            "trace",
            expected="a folder that exists",
            got=repr(str(target.parent)),
            hint="make it first, for example with Path.mkdir(parents=True)",
        )
    rows = [row for row in plan.rows if row.step is not None]
    content = {
        "traceEvents": list(_events(seen, rows, plan.device)),
        "displayTimeUnit": "ms",
        "otherData": {
            "device": plan.device,
            "steps": len(rows),
            "arena bytes": plan.arena_bytes,
            "FLOPs": plan.flops,
        },
    }
    write_file(target, json.dumps(content))
    return target


def _events(seen: Timeline, rows: Sequence[Row], device: str) -> Iterator[dict[str, Any]]:
    tracks: dict[tuple[str, str], int] = {}
    for each in seen.slices:
        tracks.setdefault((each.place, each.track), len(tracks) + 1)
    for place in dict.fromkeys(place for place, _ in tracks):
        name = "host" if place == HOST and device != "cpu" else device
        yield _name("process_name", place, 0, name)
    for (place, track), number in tracks.items():
        yield _name("thread_name", place, number, track)
    for each in seen.slices:
        yield {
            "ph": "X",
            "name": _title(each, rows),
            "cat": _category(each, rows),
            "pid": _PROCESSES[each.place],
            "tid": tracks[each.place, each.track],
            "ts": each.begin * 1e6,
            "dur": max(0.0, each.end - each.begin) * 1e6,
            "args": _facts(each, rows),
        }
    last = {place for place, _ in tracks}
    pid = _PROCESSES[DEVICE if DEVICE in last else HOST]
    for level in seen.levels:
        args = {"bytes": level.nbytes}
        yield {"ph": "C", "name": level.what, "pid": pid, "ts": level.time * 1e6, "args": args}


def _name(kind: str, place: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESSES[place], "tid": track, "args": {"name": name}}


def _title(each: Slice, rows: Sequence[Row]) -> str:
    return each.what if each.step is None else rows[each.step].op


def _category(each: Slice, rows: Sequence[Row]) -> str:
    if each.step is None:
        return "copy" if each.what in ("feed", "h2d", "d2h", "d2d") else "run"
    if each.part is not None:
        return "part"
    return "copy" if rows[each.step].op == "copy" else "kernel"


def _facts(each: Slice, rows: Sequence[Row]) -> dict[str, Any]:
    if each.step is None:
        return {}
    if each.part is not None:
        part, parts = each.part
        return {"step": each.step, "part": part, "parts": parts}
    row = rows[each.step]
    facts = {
        "step": each.step,
        "kernel": row.kernel,
        "shapes": shapes_text(row),
        "bytes": row.nbytes,
        "FLOPs": row.flops,
    }
    return facts | ({"writes": row.target} if row.target else {})
