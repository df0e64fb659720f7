"""Text of an explanation: the cells of its table, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from caldera.base.config import DEFAULT_WORKSPACE, settings
from caldera.base.formatting import (
    bytes_text,
    flops_text,
    percent_text,
    seconds_text,
    shortened,
)
from caldera.core.graph import Spec, order_name

if TYPE_CHECKING:
    from caldera.compiler.plan.explain import Explanation, StepRow

WIDEST_OP = 34
WIDEST_SHAPES = 64
WIDEST_TARGET = 24
MOST_SHAPES = 3
TEXTS = (1, 2, 3, 4)
"""Columns that hold words, and not numbers."""


def lines(explanation: Explanation) -> list[list[str]]:
    """Return the heading and the rows of an explanation as cells of text."""
    timed = explanation.seconds is not None
    placed = bool(explanation.placement)
    heading = ["step", "op", "kernel", "shapes", "writes", "bytes", "FLOPs"]
    head = heading + ["time", "share", "roofline"] * timed + ["device"] * placed
    return [head] + [_cells(row, timed) + [row.device] * placed for row in explanation.rows]


def _cells(row: StepRow, timed: bool) -> list[str]:
    op = (
        "  " * row.depth + "again: " * row.is_again + " ".join(filter(None, [row.op, row.transfer]))
    )
    cells = [
        "" if row.step is None else str(row.step),
        shortened(op, WIDEST_OP),
        _kernel_text(row),
        shapes_text(row),
        shortened(row.target, WIDEST_TARGET),
        bytes_text(row.nbytes),
        flops_text(row.flops).removesuffix("FLOP").rstrip() if row.flops else "-",
    ]
    if timed:
        cells.append("" if row.seconds is None else seconds_text(row.seconds))
        cells.append("" if row.share is None else percent_text(row.share))
        cells.append("" if row.roofline is None else percent_text(row.roofline))
    return cells


def _kernel_text(row: StepRow) -> str:
    """Return the kernel and its rivals; `(1.8x im2col)`: im2col takes 1.8 times as long."""
    if row.beaten:
        nearest = sorted(row.beaten.items(), key=lambda each: each[1])[:2]
        reason = ", ".join(f"{ratio:.1f}x {name}" for name, ratio in nearest)
        if row.source in ("predicted", "provisional"):
            reason = f"{row.source} {reason}"
    else:
        reason = {"fixed": "fixed", "guess": "not measured"}.get(row.source, "")
    return f"{row.kernel} ({reason})" if reason else row.kernel


def shapes_text(row: StepRow) -> str:
    """`(6, 5), (5, 3) -> (6, 3) float32`: a dtype stands after the last shape that has it."""
    outputs = _specs_text(row.outputs, after=None)
    if not row.inputs:
        return outputs
    same = {spec.dtype for spec in row.inputs} == {row.outputs[0].dtype}
    inputs = _specs_text(row.inputs, after=row.outputs[0] if same else None)
    return shortened(f"{inputs} -> {outputs}", WIDEST_SHAPES)


def _specs_text(specs: Sequence[Spec], after: Spec | None) -> str:
    """Return specs as text; a dtype equal to that in the following text `after` is omitted."""
    runs = [(spec, len(list(group))) for spec, group in groupby(specs)]
    words = []
    following = [spec for spec, _ in runs[1:]] + [after]
    for (spec, count), later in zip(runs[:MOST_SHAPES], following, strict=False):
        text = str(spec.shape) if count == 1 else f"{count} x {spec.shape}"
        if spec.order is not None:
            text += f" {order_name(spec.order)}"
        said_later = later is not None and later.dtype == spec.dtype
        words.append(text if said_later else f"{text} {spec.dtype.name}")
    left = sum(count for _, count in runs[MOST_SHAPES:])
    return ", ".join([*words, f"{left} more"] if left else words)


def footer(found: Explanation) -> Iterator[str]:
    """Return the lines below the table: totals, memory, placement and speeds."""
    steps = sum(row.step is not None for row in found.rows)
    yield (
        f"{steps} steps; {found.nodes_as_written} nodes as written, "
        f"{found.nodes_optimised} after optimisation; {found.in_place} in place"
    )
    planned, naive = found.arena_bytes, found.naive_bytes
    share = f" ({percent_text(planned / naive)})" if naive else ""
    yield f"arena {bytes_text(planned)} planned, {bytes_text(naive)} naive{share}"
    most, limit = max(found.workspaces, default=0), settings.workspace_limit
    if most > limit or limit < DEFAULT_WORKSPACE:
        beyond = ": no kernel of that step needs less" if most > limit else ""
        yield f"workspace {bytes_text(most)} in a step, limit {bytes_text(limit)}{beyond}"
    if settings.workspace_total is not None:
        total = bytes_text(settings.workspace_total)
        yield f"workspace {bytes_text(sum(found.workspaces))} of all steps, {total} to share"
    for rows, what in (
        (found.recomputed, "dropped and computed again"),
        (found.offloaded, "copied to the host and back"),
    ):
        if rows:
            nbytes = sum(spec.nbytes for row in rows for spec in row.outputs)
            took = sum(row.seconds or 0.0 for row in rows)
            share = "" if not found.seconds else f" ({percent_text(took / found.seconds)})"
            time = f", in {seconds_text(took)}{share}" if share else ""
            yield (f"settings.memory_limit: {bytes_text(nbytes)} {what} by {len(rows)} steps{time}")
    yield from _placement_lines(found)
    work = flops_text(found.flops)
    if found.seconds:
        work += f" in {seconds_text(found.seconds)} ({flops_text(found.flops / found.seconds)}/s)"
    yield f"{work}; device {found.device}; precision {', '.join(found.precision) or 'none'}"
    if found.peaks is not None:
        peaks = found.peaks
        speeds = {"float32": peaks.float32, "float64": peaks.float64}
        if peaks.bfloat16 > peaks.float32:
            speeds["bfloat16"] = peaks.bfloat16
        listed = ", ".join(f"{flops_text(speed)}/s in {name}" for name, speed in speeds.items())
        yield (
            f"roofline: {listed}, {bytes_text(peaks.bandwidth)}/s; above 100% the data was in "
            "cache, or fewer operations were done than are counted"
        )


def _placement_lines(found: Explanation) -> Iterator[str]:
    if not found.placement:
        return
    yield found.placement
    for source, target in dict.fromkeys((copy.source, copy.target) for copy in found.copies):
        copies = [c for c in found.copies if (c.source, c.target) == (source, target)]
        nbytes = bytes_text(sum(copy.nbytes for copy in copies))
        largest = max(copies, key=lambda copy: copy.nbytes)
        yield (
            f"{nbytes} from {source} to {target} in {len(copies)} copies, the largest "
            f"{shortened(largest.what, WIDEST_TARGET)} ({bytes_text(largest.nbytes)})"
        )
