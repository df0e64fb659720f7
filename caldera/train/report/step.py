"""Time, memory and graph of a training step.

A graph is read from a file, which could contain anything, scripts included. So only the elements
and attributes of Caldera's own pictures are copied, and links lead only to the same page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from xml.etree import ElementTree

from caldera.base.arguments import require
from caldera.base.formatting import bytes_text, flops_text, percent_text, seconds_text
from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import Safe, card, folded, join, section, share_bar, table, tag
from caldera.draw.svg import CATEGORICAL, element, named, safe
from caldera.errors import DataError
from caldera.train.tracking.history import History
from caldera.train.tracking.run_record import KernelRecord, ProfileRecord, RunRecord

_SLOWEST = 12
_NAMED = 6
_REST = "other"
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


def time_section(profile: ProfileRecord | None, history: History) -> Safe:
    """Return the time of the epochs, of a step, and of its kernels."""
    top = [] if profile is None else [_step_card(profile)]
    if history.epochs and "seconds" in history:
        top.append(_epochs_chart(history))
    parts = [tag("div", *top, class_="columns")] if top else []
    if profile is not None:
        parts.append(_kernels_card(profile))
    note = "" if profile else "The training step was not timed: the run was ended early."
    return section("time", "Time", *parts, note=note)


def _step_card(profile: ProfileRecord) -> Safe:
    rate = profile.batch_size / profile.seconds if profile.seconds else 0.0
    speed = profile.flops / profile.seconds if profile.seconds else 0.0
    note = (
        f"{seconds_text(profile.seconds)} for a batch of {profile.batch_size}: {rate:,.0f} samples "
        f"a second, {flops_text(speed)}/s; on {profile.device}, "
        f"in {', '.join(profile.precision) or 'no floating-point type'}"
    )
    groups: dict[str, float] = {}
    for step in profile.steps:
        name = step.op.partition(":")[0]
        groups[name] = groups.get(name, 0.0) + step.seconds
    return card("A training step, by operation", _bar(_with_rest(groups), seconds_text), note=note)


def _epochs_chart(history: History) -> Safe:
    seconds = [float(value) for value in history["seconds"]]
    epochs = [epoch + 1 for epoch in history.epochs]
    points = [(float(x), y) for x, y in zip(epochs, seconds, strict=True)]
    line = Line("seconds", points, CATEGORICAL[0], last=seconds_text(seconds[-1]))
    chart = LineChart("seconds an epoch", "epoch", [line], whole_axis(epochs), axis_of(seconds))
    facts = f"{seconds_text(sum(seconds))} in all"
    if len(seconds) > 2:
        usual = sorted(seconds[1:])[(len(seconds) - 1) // 2]
        facts += (
            f"; the first epoch took {seconds_text(seconds[0])}, others about "
            f"{seconds_text(usual)}. The first one also compiles and chooses kernels"
        )
    return tag("figure", inline(chart), tag("figcaption", f"{facts}."))


def _kernels_card(profile: ProfileRecord) -> Safe:
    slowest = sorted(profile.steps, key=lambda step: -step.seconds)[:_SLOWEST]
    title = f"The {len(slowest)} slowest of {len(profile.steps)} kernel calls"
    note = (
        "Roofline: the least time that this work can take on this machine, by its operations and "
        "bytes, as a part of the time it took."
    )
    return card(
        title,
        _steps_table(slowest, profile),
        folded("All kernel calls, in their order", _steps_table(profile.steps, profile)),
        note=note,
    )


def _steps_table(steps: Sequence[KernelRecord], profile: ProfileRecord) -> Safe:
    head = ("operation", "kernel", "shapes", "bytes", "FLOPs", "time", "share", "roofline")
    return table(head, [_step_row(step, profile.seconds) for step in steps], numbers=(3, 4, 5, 7))


def _step_row(step: KernelRecord, total: float) -> list[str]:
    share = step.seconds / total if total else 0.0
    return [
        _with_small(step.op, f"writes {step.target}" if step.target else ""),
        _with_small(step.kernel, _beaten(step)),
        tag("code", step.shapes.replace("->", "\u2192")),
        bytes_text(step.nbytes),
        flops_text(step.flops).removesuffix("FLOP").strip() if step.flops else "\u2013",
        seconds_text(step.seconds),
        share_bar(share, percent_text(share)),
        "" if step.roofline is None else percent_text(step.roofline),
    ]


def _with_small(content: str, small: str) -> Safe:
    return tag("span", content, *([tag("small", small)] if small else []))


def _beaten(step: KernelRecord) -> str:
    """Return the fastest rejected kernels and their times relative to the chosen kernel."""
    beaten = sorted(step.beaten.items(), key=lambda each: each[1])[:2]
    return ", ".join(f"{name} {ratio:.1f}\u00d7" for name, ratio in beaten)


# --- memory


def memory_section(profile: ProfileRecord | None) -> Safe:
    """Return the section on memory: bytes by purpose, and arena use over the step."""
    if profile is None:
        note = "The memory of a training step was not written down: the run was ended early."
        return section("memory", "Memory", note=note)
    total = bytes_text(sum(profile.memory.values()))
    whole = card(
        "Memory of a training step",
        _bar(profile.memory, bytes_text),
        note=f"{total} on {profile.device}, for a batch of {profile.batch_size}",
    )
    share = percent_text(profile.arena_bytes / profile.naive_bytes) if profile.naive_bytes else ""
    planned = (
        f"{bytes_text(profile.arena_bytes)} planned for temporary buffers, {share} of the "
        f"{bytes_text(profile.naive_bytes)} that separate buffers would need; "
        f"{profile.in_place} calls overwrite an input after its last use."
    )
    arena = tag("figure", inline(_arena_chart(profile)), tag("figcaption", planned))
    both = tag("div", whole, arena, class_="columns")
    return section("memory", "Memory", both)


def _arena_chart(profile: ProfileRecord) -> LineChart:
    unit, size = next(each for each in _UNITS if max(profile.arena_in_use, default=0) >= each[1])
    levels = [nbytes / size for nbytes in profile.arena_in_use]
    ends = [*range(len(levels)), len(levels)]
    points = [
        (float(x), level)
        for (begin, end), level in zip(pairwise(ends), levels, strict=True)
        for x in (begin, end)
    ]
    line = Line("in use", points, CATEGORICAL[0])
    return LineChart(
        f"arena in use, {unit}", "kernel call", [line], whole_axis(ends), axis_of(levels)
    )


# --- bars


def _with_rest(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return the largest amounts by name, and the rest as one sum."""
    ordered = sorted(amounts.items(), key=lambda each: -each[1])
    found = dict(ordered[:_NAMED])
    rest = sum(amount for _, amount in ordered[_NAMED:])
    return found | ({_REST: rest} if rest else {})


def _bar(amounts: Mapping[str, float], shown: Callable[[float], str]) -> Safe:
    """Return parts of a whole as one bar, and as a table."""
    total = sum(amounts.values()) or 1.0
    parts, rows = [], []
    for index, (name, amount) in enumerate(amounts.items()):
        colour = f"background:var(--line{index % len(CATEGORICAL)})"
        share = amount / total
        parts.append(tag("i", style=f"width:{100 * share:.2f}%;{colour}", title=name))
        key = tag("span", tag("i", style=colour, class_="key"), name)
        rows.append((key, shown(amount), percent_text(share)))
    return join([tag("div", *parts, class_="bar"), table(None, rows, numbers=(1, 2))])


_SPACE = "{http://www.w3.org/2000/svg}"
_ELEMENTS = frozenset(
    ("svg", "g", "rect", "path", "polygon", "circle", "text", "title", "a", "defs", "marker")
)
_ATTRIBUTES = frozenset(
    (
        "id",
        "class",
        "x",
        "y",
        "width",
        "height",
        "rx",
        "cx",
        "cy",
        "r",
        "d",
        "points",
        "fill",
        "stroke",
        "stroke-width",
        "stroke-opacity",
        "stroke-dasharray",
        "font-size",
        "text-anchor",
        "viewBox",
        "refX",
        "refY",
        "markerWidth",
        "markerHeight",
        "orient",
        "marker-end",
        "href",
    )
)
_PLAIN = re.compile(r"[^()]*|url\(#[\w-]+\)")
_DEEPEST = 100


def graph_section(record: RunRecord, picture: str | None) -> Safe:
    """Return the graph as it was written and as it runs."""
    if picture is None:
        return section("graph", "Graph", note="The run has no picture of its graph.")
    profile = record.profile
    note = "Forward, loss, gradients and updates: one graph. "
    if profile is not None:
        note += (
            f"{profile.nodes_as_written} operations as written, "
            f"{profile.nodes_optimised} after optimisation, in {len(profile.steps)} kernel calls. "
        )
    panels = ("Both", "As written", "As it runs")
    return section("graph", "Graph", viewer(picture, panels, opened=1), note=note)


def viewer(picture: str, panels: Sequence[str] = (), opened: int | None = None) -> Safe:
    """Return a picture with pan and zoom, and buttons to select its panels.

    The panel with number `opened` is shown first.
    """
    tools = [
        tag("button", label, type="button", data_panel=str(number))
        for number, label in enumerate(panels, -1)
    ]
    tools += [
        tag("button", "+", type="button", data_zoom="in", aria_label="closer"),
        tag("button", "\u2212", type="button", data_zoom="out", aria_label="farther"),
    ]
    hint = tag(
        "span",
        "Drag to move, double-click or Ctrl and wheel to come closer; dashed marks lead to "
        "where a value is made.",
        class_="quiet",
    )
    return join(
        [
            tag("div", join(tools), hint, class_="tools", hidden="hidden"),
            tag(
                "div",
                Safe(named(trusted(picture))),
                class_="graph",
                tabindex="0",
                role="group",
                aria_label="graph; arrow keys move it, plus and minus come closer and go farther",
                **({} if opened is None else {"data_open": str(opened)}),
            ),
        ]
    )


def trusted(picture: str) -> str:
    """Return the picture, restricted to the elements that our own pictures use.

    >>> trusted('<svg xmlns="http://www.w3.org/2000/svg"><script>x</script><g onclick="x" id="a"/>'
    ...         '</svg>')
    '<svg><g id="a"/></svg>'
    """
    try:
        root = ElementTree.fromstring(picture)
    except ElementTree.ParseError as problem:
        raise DataError.build("graph.svg", expected="SVG", got=str(problem)) from None
    if root.tag != f"{_SPACE}svg":
        raise DataError.build("graph.svg", expected="SVG", got=root.tag[:80])
    attributes = _attributes(root)
    # The page sets the displayed size.
    attributes.pop("width", None)
    attributes.pop("height", None)
    return element("svg", *_children(root, 1), **attributes)


def _children(parent: ElementTree.Element, depth: int) -> list[str]:
    require(
        depth <= _DEEPEST,
        "graph.svg",
        f"at most {_DEEPEST} elements inside each other",
        "more",
        error=DataError,
    )
    found = [safe(parent.text)] if parent.text and parent.text.strip() else []
    for child in parent:
        name = str(child.tag).removeprefix(_SPACE)
        if name in _ELEMENTS:
            found.append(element(name, *_children(child, depth + 1), **_attributes(child)))
    return found


def _attributes(given: ElementTree.Element) -> dict[str, str]:
    return {
        # `element` takes "_" for "-".
        name.replace("-", "_") if name != "class" else "class_": value
        for name, value in given.attrib.items()
        if name in _ATTRIBUTES and _is_harmless(name, value)
    }


def _is_harmless(name: str, value: str) -> bool:
    if name == "href":
        return value.startswith("#")
    return _PLAIN.fullmatch(value) is not None
