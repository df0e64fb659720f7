"""A plan as a table: what each step does, with which kernel, on what, how fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from caldera.base.config import DEFAULT_WORKSPACE, settings
from caldera.base.formatting import (
    bytes_text,
    flops_text,
    html_table,
    note,
    percent_text,
    seconds_text,
    shortened,
    table_lines,
)
from caldera.compiler.plan.loop import LoopKernel
from caldera.compiler.plan.schedule import Buffer, BufferView, Step, StepSchedule
from caldera.compiler.plan.timing import Peaks
from caldera.core.graph import Body, Node, Program, Spec, Symbol, order_name
from caldera.core.graph.ops.collective import Message, turn
from caldera.core.memory import Device
from caldera.core.tensor.dtype import DType, bfloat16, is_float
from caldera.kernels.table import COPY
from caldera.kernels.tuning.choose import choices

if TYPE_CHECKING:
    from caldera.compiler.plan.plan import Plan


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
    sent = found.route and f"; messages: {found.route}"
    yield f"{work}; device {found.device}; precision {', '.join(found.precision) or 'none'}{sent}"
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


@dataclass(frozen=True)
class StepRow:
    """One step of a plan, or (with `step` None and `depth` above 0) one step of a loop's body.

    `seconds`, `share` (of the whole run) and `roofline` are None without timing. `roofline` is the
    least time this work can take on this machine, divided by the measured time.
    """

    step: int | None
    depth: int
    op: str
    kernel: str
    beaten: dict[str, float]
    """Slower candidate kernels, with their times relative to the chosen kernel."""
    source: str
    """Why this kernel: "only", "fixed", "remembered", "measured", "provisional" (measured while
    other programs computed), "predicted" or "guess"; "" if forgotten."""
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    target: str
    """The output or variable that the step writes, if any."""
    nbytes: int
    flops: int
    seconds: float | None = None
    share: float | None = None
    roofline: float | None = None
    is_again: bool = False
    """True if it recomputes a value dropped for lack of memory."""
    transfer: Literal["", "to host", "from host"] = ""
    """Direction of a copy to or from the host for lack of memory; empty for other steps."""
    device: str = ""
    """Device of the step, if steps of the plan run on several devices."""


@dataclass(frozen=True)
class Copied:
    """A value copied between devices: its description, size, source and target device."""

    what: str
    nbytes: int
    source: str
    target: str


@dataclass(frozen=True)
class Explanation:
    """Result of `plan.explain()`: the kernel of each step, shown as a table.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (2, 2), fill=cd.identity())
    >>> found = cd.compile([x @ x]).explain(time=False)
    >>> print(found)
    step  op ...
    >>> [(row.op, row.flops) for row in found.rows]
    [('matmul', 16)]
    """

    rows: list[StepRow]
    nodes_as_written: int
    nodes_optimised: int
    arena_bytes: int
    naive_bytes: int
    workspaces: tuple[int, ...]
    """Bytes of scratch memory of each step."""
    in_place: int
    """Number of steps that write a result over an input without further readers."""
    device: str
    precision: tuple[str, ...]
    """The floating-point types the plan computes in."""
    flops: int
    seconds: float | None
    peaks: Peaks | None = field(repr=False)
    copies: tuple[Copied, ...] = ()
    """Copies between devices in a run."""
    placement: str = ""
    """Why steps are on the devices they are on, if there are several."""
    route: str = ""
    """Transport of messages between ranks, such as "NCCL" or "MPI, through the host"."""

    @property
    def copied_bytes(self) -> int:
        """Bytes copied between devices in a run."""
        return sum(copy.nbytes for copy in self.copies)

    @property
    def recomputed(self) -> list[StepRow]:
        """The steps that compute something again, because there was no memory to keep it."""
        return [row for row in self.rows if row.is_again]

    @property
    def offloaded(self) -> list[StepRow]:
        """The copies to the host, and those back, because there was no memory to keep something."""
        return [row for row in self.rows if row.transfer]

    def __str__(self) -> str:
        return "\n".join([*table_lines(lines(self), left=TEXTS), "", *footer(self)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = lines(self)
        numbers = set(range(len(head))) - set(TEXTS)
        return html_table(head, rows, numbers=numbers) + "".join(map(note, footer(self)))


def explained(
    plan: Plan, seconds: Sequence[float] | None = None, peaks: Peaks | None = None
) -> Explanation:
    """Return the explanation of a plan; `seconds` has the time of each step, if they were timed."""
    schedule = plan.schedule
    rows = list(_rows(schedule, plan.device, seconds, peaks))
    return Explanation(
        rows=rows,
        nodes_as_written=_count(plan.original),
        nodes_optimised=_count(plan.optimised),
        arena_bytes=schedule.arena_bytes,
        naive_bytes=schedule.naive_bytes,
        workspaces=tuple(
            0 if step.workspace is None else step.workspace.spec.nbytes for step in schedule.steps
        ),
        in_place=sum(_is_in_place(step) for step in schedule.steps),
        device=plan.device.name,
        precision=_precision(schedule),
        flops=sum(row.flops for row in rows if row.depth == 0),
        seconds=None if seconds is None else sum(seconds),
        peaks=peaks,
        route=plan.route,
    )


def fastest(schedule: StepSchedule, seconds: Sequence[float]) -> dict[DType, float]:
    """Return the highest number of operations per second that a product reached, by dtype."""
    # No convolutions: they may do fewer operations than are counted, as Winograd\'s do.
    speeds: dict[DType, float] = {}
    for step, time in zip(schedule.steps, seconds, strict=True):
        if step.kernel.op in _MATRIX_PRODUCTS and time > 0:
            dtype = _computed_in(step)
            speed = step.node.op.count_flops(step.node) / time
            speeds[dtype] = max(speeds.get(dtype, 0.0), speed)
    return speeds


_MATRIX_PRODUCTS = ("matmul", "matmul_epilogue", "matmul_accumulate")


def _computed_in(step: Step) -> DType:
    """Return the dtype whose peak bounds the step: factors may be narrower than the sums."""
    is_product = step.node.op.kind == "product"
    if is_product and any(each.dtype == bfloat16 for each in step.node.inputs):
        return bfloat16
    return step.outputs[0].spec.dtype


# --- rows


def _row(
    step: Step,
    device: Device,
    index: int | None,
    seconds: float | None = None,
    total: float | None = None,
    peaks: Peaks | None = None,
    depth: int = 0,
) -> StepRow:
    copies = step.kernel.op == COPY
    beaten, source = _reason(step, device)
    outputs = tuple(buffer.spec for buffer in step.outputs)
    flops = 0 if copies else step.node.op.count_flops(step.node)
    nbytes = _bytes_moved(step)
    roofline = None
    if peaks is not None and seconds:
        roofline = peaks.least_seconds(flops, nbytes, _computed_in(step)) / seconds
    return StepRow(
        step=index,
        depth=depth,
        op="copy" if copies else _op_text(step.node),
        kernel=step.kernel.name,
        beaten=beaten,
        source=source,
        inputs=(step.node.spec,) if copies else tuple(given.spec for given in step.node.inputs),
        outputs=outputs,
        target=", ".join(filter(None, map(_target, step.outputs))),
        nbytes=nbytes,
        flops=flops,
        seconds=seconds,
        share=seconds / total if seconds is not None and total else None,
        roofline=roofline,
        is_again=step.is_again,
        transfer=_transfer_text(step),
    )


def _transfer_text(step: Step) -> Literal["", "to host", "from host"]:
    if step.transfer is None:
        return ""
    return "to host" if step.transfer.to_host else "from host"


def _rows(
    schedule: StepSchedule,
    device: Device,
    seconds: Sequence[float] | None = None,
    peaks: Peaks | None = None,
    depth: int = 0,
) -> Iterator[StepRow]:
    """Yield the rows of a schedule, with the rows of each loop's body below the loop."""
    total = None if seconds is None else sum(seconds)
    for index, step in enumerate(schedule.steps):
        time = None if seconds is None else seconds[index]
        yield _row(step, device, None if depth else index, time, total, peaks, depth)
        if isinstance(step.kernel, LoopKernel):
            yield from _rows(step.kernel.schedule, device, depth=depth + 1)


def _reason(step: Step, device: Device) -> tuple[dict[str, float], str]:
    """Return the slower candidate kernels of a step, and the reason for its choice."""
    if step.kernel.op == COPY or isinstance(step.kernel, LoopKernel):
        return {}, "only"
    choice = choices.choose(step.node, device.kernels, measure=False, limit=step.kernel.limit)
    # Another kernel may have been fixed since the plan was compiled.
    return (choice.beaten, choice.source) if choice.kernel is step.kernel else ({}, "")


def _bytes_moved(step: Step) -> int:
    """Bytes read and written: a broadcast value is read once, so is one that is given twice."""
    read: dict[tuple[Buffer, int], int] = {}
    for value in step.inputs:
        nbytes = _distinct_bytes(value)
        read[value.buffer, nbytes] = nbytes
    return sum(read.values()) + sum(buffer.spec.nbytes for buffer in step.outputs)


def _distinct_bytes(value: BufferView) -> int:
    nbytes = value.buffer.spec.dtype.itemsize
    for length, stride in zip(value.meta_array.shape, value.meta_array.strides, strict=True):
        nbytes *= length if stride or not length else 1
    return nbytes


def _is_in_place(step: Step) -> bool:
    return any(value.buffer.root is buffer.root for value in step.inputs for buffer in step.outputs)


def _target(buffer: Buffer) -> str:
    key = buffer.root.key
    if isinstance(key, Symbol):
        return key.name or key.role
    if isinstance(key, tuple):
        kind, index = key
        return f"{kind} {index}"
    return ""


def _op_text(node: Node) -> str:
    message = node.attrs.get("message")
    if isinstance(message, Message):
        part = node.op.name.removeprefix("collective_")
        place = f" at {message.peer}" if message.is_point_to_point else ""
        return f"{part} {message.kind}{place} over {message.axis}"
    if node.op is turn:
        return f"turn: {node.attrs['action']}"
    body = node.attrs.get("body")
    if not isinstance(body, Body):
        return node.op.name
    if node.op.name == "scan":
        return f"scan of {node.attrs['length']} steps"
    names = [part.op.name for part in body.order() if part.op.kind not in ("leaf", "movement")]
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    words = [name if times == 1 else f"{times} {name}" for name, times in runs]
    return f"{node.op.name}: {', '.join(words)}"


def _count(program: Program) -> int:
    return sum(node.op.kind != "leaf" for node in program.order())


def _precision(schedule: StepSchedule) -> tuple[str, ...]:
    found = {buffer.spec.dtype for step in schedule.steps for buffer in step.outputs}
    floats = sorted((dtype.itemsize, dtype.name) for dtype in found if is_float(dtype))
    return tuple(name for _, name in floats)
