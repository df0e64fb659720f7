"""Numbers of a report as short texts, the same in the terminal and on the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from caldera.base.formatting import bytes_text, seconds_text
from caldera.bench.equality import FLOAT64, GRADIENTS, Equality
from caldera.bench.results import ANY, Mean, Ratio, Report, ResultEntry
from caldera.bench.statistics import Estimate

NOTHING = "-"

IMAGES = "images/s"
COLUMNS = (
    "setting",
    "time a step",
    "95% interval",
    "ratio to the best peers",
    IMAGES,
    "first step cold",
    "warm",
    "memory",
    "loss",
    "equal results",
)
SHORT_COLUMNS = ("setting", "time", "95% interval", "ratio to the best peers", "equal results")
"""Columns for single computations, which have neither losses nor a separate memory figure."""


LEARNING_COLUMNS = (
    "setting",
    "time to accuracy",
    "95% interval",
    "ratio to the best peers",
    "test accuracy",
    "steps",
    "bytes sent",
    "first epoch cold",
    "watching",
)
"""Columns for whole trainings."""


def is_learning(entries: Sequence[ResultEntry]) -> bool:
    """Return True if the entries are trainings to an accuracy."""
    return any(entry.target is not None for entry in entries)


def is_training(entries: Sequence[ResultEntry]) -> bool:
    """Return True if the entries are steps of a network."""
    return any(entry.first_cold_s is not None or entry.loss is not None for entry in entries)


def columns_of(entries: Sequence[ResultEntry]) -> tuple[str, ...]:
    """Return the columns of a table of these entries."""
    if is_learning(entries):
        return LEARNING_COLUMNS
    if not is_training(entries):
        return SHORT_COLUMNS
    has_images = any(entry.images for entry in entries)
    return tuple(column for column in COLUMNS if has_images or column != IMAGES)


def title_of(case: str, entries: Sequence[ResultEntry]) -> str:
    """Return the title of a table.

    >>> title_of("mlp", [ResultEntry("mlp", "mlp", "torch", "eager", batch=100)])
    'mlp, batch 100'
    """
    batch = entries[0].batch if entries else 0
    return f"{case}, batch {batch}" if batch else case


def row(report: Report, entry: ResultEntry, columns: Sequence[str]) -> list[str]:
    """Return the cells of an entry's row."""
    seconds = entry.seconds()
    warm = sorted(entry.first_warm_s)[len(entry.first_warm_s) // 2] if entry.first_warm_s else None
    cells = {
        "setting": entry.label,
        "time a step": time_text(entry, seconds),
        "time": time_text(entry, seconds),
        "95% interval": interval_text(seconds),
        "ratio to the best peers": ratios_text(report.ratios(entry)),
        IMAGES: images_text(entry, seconds),
        "first step cold": _seconds(entry.first_cold_s),
        "warm": _seconds(warm),
        "memory": memory_text(entry),
        "loss": loss_text(entry),
        "time to accuracy": time_text(entry, seconds),
        "test accuracy": accuracies_text(entry),
        "steps": _median_text(entry, "steps"),
        "bytes sent": _sent_text(entry),
        "first epoch cold": _seconds(entry.first_cold_s),
        "watching": watching_text(entry),
        "equal results": entry.error or equality_text(entry.equality),
    }
    return [cells[column] for column in columns]


def time_text(entry: ResultEntry, seconds: Estimate | None) -> str:
    """Return the median, and the operations per second if their number is known.

    On a GPU the reference may be used only for comparison, and is not timed then.
    """
    if seconds is None:
        return "not timed" if entry.precision and not entry.error else NOTHING
    rate = f"  {entry.flops / seconds.value / 1e9:.1f} GFLOP/s" if entry.flops else ""
    return seconds_text(seconds.value) + rate


def accuracies_text(entry: ResultEntry) -> str:
    """The mean test accuracy over seeds with its standard deviation, and who missed the target."""
    if not entry.accuracies:
        return entry.error or NOTHING
    middle = statistics.fmean(entry.accuracies)
    spread = statistics.stdev(entry.accuracies) if len(entry.accuracies) > 1 else 0.0
    missed = sum(each < (entry.target or 0.0) for each in entry.accuracies)
    note = f", {missed} of {len(entry.accuracies)} missed {entry.target:g}" if missed else ""
    return f"{middle:.2%} ± {spread:.2%}{note}"


def watching_text(entry: ResultEntry) -> str:
    """Return the share of the time that metrics took."""
    if not entry.trainings:
        return NOTHING
    return f"{statistics.median(each['overhead'] for each in entry.trainings):.2%}"


def _median_text(entry: ResultEntry, name: str) -> str:
    found = [each[name] for each in entry.trainings]
    return f"{statistics.median(found):g}" if found else NOTHING


def _sent_text(entry: ResultEntry) -> str:
    """Return the bytes that all ranks send in a training: the median over trainings."""
    found = [each["metrics"]["bytes sent"]["value"] for each in entry.trainings]
    known = [each for each in found if each]
    return bytes_text(int(statistics.median(known))) if known else NOTHING


def images_text(entry: ResultEntry, seconds: Estimate | None) -> str:
    """Return the number of training images per second."""
    return NOTHING if seconds is None or not entry.images else f"{entry.batch / seconds.value:,.0f}"


def interval_text(seconds: Estimate | None) -> str:
    """Return the text of an interval.

    >>> interval_text(Estimate(0.01, 0.009, 0.012)), interval_text(Estimate(1.0, 0.5, 2.0))
    ('9.0 to 12.0 ms', '500.0 ms to 2.0 s')
    """
    if seconds is None:
        return NOTHING
    low, unit = seconds_text(seconds.low).split()
    high = seconds_text(seconds.high)
    return f"{low} to {high}" if high.endswith(f" {unit}") else f"{low} {unit} to {high}"


def ratio_text(ratio: Estimate) -> str:
    """Return the text of a ratio with its interval.

    >>> ratio_text(Estimate(1.5, 1.25, 1.75))
    '1.50 [1.25, 1.75]'
    """
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def ratios_text(ratios: Sequence[Ratio]) -> str:
    """Return ratios to the best setting of each peer."""
    shown = [f"{ratio_text(each.ratio)} {each.against}" for each in ratios if each.peer != ANY]
    return "; ".join(shown) or NOTHING


def memory_text(entry: ResultEntry) -> str:
    """Return the peak memory, and the growth since the framework was imported.

    On a GPU: the peak by the framework's own count, and the memory of the process.
    """
    if entry.card_peak_bytes or entry.card_bytes:
        own = bytes_text(entry.card_peak_bytes) if entry.card_peak_bytes else NOTHING
        return f"{own} (process {bytes_text(entry.card_bytes)})"
    if not entry.peak_bytes:
        return NOTHING
    return f"{bytes_text(entry.peak_bytes)} (+{bytes_text(entry.growth_bytes)})"


def loss_text(entry: ResultEntry) -> str:
    """Return the loss after some steps, and the test accuracy if it was measured."""
    if entry.loss is None:
        return NOTHING
    text = f"{entry.loss:.6f} after {entry.loss_steps}"
    if entry.loss_mean_of:
        text = f"{entry.loss:.6f} mean of the last {entry.loss_mean_of} of {entry.loss_steps}"
    return text if entry.accuracy is None else f"{text}, test {entry.accuracy:.2%}"


def equality_text(equality: Equality) -> str:
    """Return differences to the reference, and whether the time counts.

    >>> equality_text(Equality())
    'not checked'
    >>> equality_text(Equality(result=3e-7))
    'yes: result 3e-07'
    """
    if equality.holds is None:
        return "not checked"
    if not equality.holds:
        return "NO, does not count: " + ", ".join(equality.broken)
    if equality.precision:
        return "yes: " + ", ".join(_in_precision(equality))
    gradients = f"gradients {_e(equality.gradients)}"
    if (equality.gradients or 0.0) > GRADIENTS:
        true, theirs = _e(equality.true_gradients), _e(equality.reference_true_gradients)
        gradients += f" (to float64 {true}, {equality.against} {theirs})"
    curve = f"curve {_e(equality.curve)} of {_e(equality.curve_allowed)}"
    parts = [
        "" if equality.first_loss is None else f"loss {_e(equality.first_loss)}",
        "" if equality.gradients is None else gradients,
        "" if equality.float64 is None else f"float64 {_e(equality.float64)}",
        "" if equality.curve is None else curve,
        "" if equality.result is None else f"result {_e(equality.result)}",
    ]
    return "yes: " + ", ".join(part for part in parts if part)


def _in_precision(equality: Equality) -> list[str]:
    """Return the compared values in a precision, each with its limit."""
    pairs = {
        "loss": (equality.first_loss, equality.first_loss_allowed),
        "gradients to float64": (equality.distance, equality.distance_allowed),
        "float64": (equality.float64, FLOAT64),
        "losses": (equality.curve, equality.curve_allowed),
    }
    return [
        f"{name} {_e(value)} of {_e(limit)}"
        for name, (value, limit) in pairs.items()
        if value is not None
    ]


def mean_text(mean: Mean) -> str:
    """Return a geometric mean in words."""
    return (
        f"{mean.work}, {mean.group}, {mean.setting}: {ratio_text(mean.ratio)} to the best of "
        f"{mean.peer if mean.peer != ANY else 'all peers'} (geometric mean of {mean.cases})"
    )


def facts(report: Report) -> list[str]:
    """Return the lines above the tables."""
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines = [
        f"{machine['cpu']}, {machine['architecture']}, {machine['cores']} cores, "
        f"{machine['threads']} threads each, BLAS {machine['blas']}",
        f"Python {machine['python']}, {versions}",
        f"{machine['time']}, load before {machine['load before']}",
    ]
    if "card" in machine:
        card = f"{machine['card']}, {bytes_text(machine['card memory'])}"
        lines.insert(0, f"{card}, driver {machine['card driver']}")
    return [*lines, *report.notes]


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else seconds_text(value)


def _e(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0e}"
