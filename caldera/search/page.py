"""A study as a self-contained HTML page: `study.page(path)`, `caldera report FOLDER`.

The page lists every trial with its cost, including failed ones, and estimates the share of luck in
the best value. A folder is not trusted: as for a run, texts are escaped, and pictures are parsed
and rebuilt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.file_access import output_file
from caldera.base.file_cache import write_file
from caldera.base.formatting import percent_text, seconds_text
from caldera.draw.line_chart import inline
from caldera.draw.page import (
    Safe,
    card,
    document,
    facts,
    folded,
    scrolled,
    section,
    table,
    tag,
    tiles,
)
from caldera.search.analysis import FEWEST, Overview
from caldera.search.best_network import network_cards
from caldera.search.charts import (
    MOST_AXES,
    MOST_SLICES,
    cell_text,
    coordinates_picture,
    curves_chart,
    front_charts,
    history_chart,
    importance_bars,
    slice_charts,
)
from caldera.search.trial import DONE, FAILED, RUNNING, STOPPED, WAITING, Trial

_INDEX = {
    "best": "Best",
    "luck": "Luck",
    "history": "History",
    "parameters": "Parameters",
    "slices": "Slices",
    "trials": "Trials",
    "settings": "Settings",
}
_MOST_ROWS = 5000


def write_page(overview: Overview, path: str | PathLike[str]) -> Path:
    """Write the page about a study to an .html file; its path."""
    name = Path(path)
    hint = f"write to {str(name.with_suffix('.html'))!r}" if name.name else ""
    target = output_file(name, ".html", "study.page", hint, ".htm")
    write_file(target, study_page(overview))
    return target


def study_page(overview: Overview) -> str:
    """Return the text of the page about a study."""
    index = dict(_INDEX)
    if len(overview.names) > 1:
        index = {"best": "Best", "front": "Front", **index}
    parts = [
        *_top(overview),
        _best(overview),
        *([_front(overview)] if len(overview.names) > 1 else []),
        _luck(overview),
        _history(overview),
        _parameters(overview),
        _slices(overview),
        _trials(overview),
        _settings(overview),
        tag("footer", "Written by Caldera."),
    ]
    return document(f"{overview.title}: a study of Caldera", index, parts)


# --- what is seen first


def _top(overview: Overview) -> Iterator[Safe]:
    yield tag("h1", overview.title)
    began = min((t.started for t in overview.trials if t.started is not None), default=None)
    when = "" if began is None else f", begun {datetime.fromtimestamp(began):%d %B %Y, %H:%M}"
    goal = ", ".join(
        f"{name} ({'larger' if mode == 'max' else 'smaller'} is better)"
        for name, mode in zip(overview.names, overview.modes, strict=True)
    )
    yield tag("p", f"A search for {goal}{when}.", class_="quiet")
    counts = overview.study.counts()
    if counts[RUNNING] or counts[WAITING]:
        left = counts[RUNNING] + counts[WAITING]
        of = f"{left} of {len(overview.trials)} trials are not over"
        text = f"{of}: the search is running, or stopped early."
        yield tag("div", text, class_="card note")
    yield tiles(_tiles(overview, counts))


def _tiles(overview: Overview, counts: dict[str, int]) -> Iterator[tuple[str, str]]:
    best = overview.best
    if best is not None and best.values is not None:
        yield f"best {overview.names[0]}", f"{best.values[0]:.5g}"
    if len(overview.names) > 1:
        yield "trials of the front", f"{len(overview.front)}"
    tested = sorted((overview.study.test or {}).items(), key=lambda each: each[0] != "accuracy")
    for name, value in tested[:2]:
        yield f"{name} on test data", f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"
    ended = [f"{counts[state]} {state}" for state in (STOPPED, FAILED) if counts[state]]
    yield "trials" + (f", {' and '.join(ended)}" if ended else ""), f"{len(overview.trials):,}"
    yield "tuning time, all trials", duration_text(overview.study.seconds)
    if overview.wall_seconds:
        yield "from first to last", duration_text(overview.wall_seconds)
    yield "steps trained", f"{overview.steps:,}"


def duration_text(seconds: float) -> str:
    """Return a readable text of a duration.

    >>> duration_text(2.345), duration_text(75), duration_text(7325)
    ('2.3 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 59.95 or not math.isfinite(seconds):
        return seconds_text(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _best(overview: Overview) -> Safe:
    best = overview.best
    if best is None or best.values is None:
        note = "No trial was trained to its end and kept all constraints."
        return section("best", "The best trial", note=note)
    # The parameters passed to build; a study loaded from a file has only the points.
    parameters = {
        name: cell_text(value) if isinstance(value, float) else str(value)
        for name, value in best.parameters.items()
    }
    values = dict(zip(overview.names, (f"{value:.6g}" for value in best.values), strict=True))
    reported = {name: f"{value:.6g}" for name, value in best.results.items()}
    made = {
        "trial": best.number,
        "seed": best.seed,
        "steps": len(best.curve),
        "its own time": duration_text(best.seconds),
        "tuning time until it was over": duration_text(_spent(overview, best)),
        **({"weights": best.digest} if best.digest else {}),
    }
    cards = [
        card("Parameters", facts(parameters)),
        card("Values", facts(reported | values)),
        card("Method", facts(made), note="The seed and the parameters make it again."),
    ]
    if overview.study.test:
        shown = {name: f"{value:.6g}" for name, value in overview.study.test.items()}
        note = "Evaluated once, after the choice."
        cards.append(card("On the test data", facts(shown), note=note))
    chosen = tag("div", *cards, class_="masonry")
    return section("best", "The best trial", chosen, *network_cards(overview.study, best))


def _spent(overview: Overview, best: Trial) -> float:
    """Return the total time of all trials that finished no later than this one."""
    end = best.ended or math.inf
    return sum(trial.seconds for trial in overview.trials if (trial.ended or math.inf) <= end)


# --- honesty


def _luck(overview: Overview) -> Safe:
    found = overview.luck
    if found is None:
        several = len(overview.names) > 1
        why = "several objectives have no single best" if several else "too few trials"
        return section("luck", "Effect of luck", note=f"Not estimated: {why}.")
    gain = found.drawn
    side = "better" if gain >= 0 else "worse"
    words = [
        f"The best of {found.trials} trials with a value reached {found.best:.5g}. The best of "
        "the same number of random trials with this spread is expected at "
        f"{found.expected:.5g}, and nine times in ten between {found.low:.5g} and "
        f"{found.high:.5g}: this study is {abs(gain):.2g} {side}.",
    ]
    if found.optimism is not None:
        words.append(
            f"A value is measured with a standard deviation of about {found.noise:.2g}, and the "
            f"best of many trials has a favourable error: about {found.optimism:.2g} is likely "
            f"luck. Expect {found.honest:.5g} on data not used for selection."
        )
    else:
        words.append(
            "The measurement error of a value is unknown, so its share of the result is not "
            "estimated; objectives with seeds= or folds= reduce it."
        )
    rows = [tag("p", text) for text in words]
    note = (
        "Validation data chose among all trials, so the best value is too good to be true by "
        "some amount; results on test data, evaluated once, are not."
    )
    return section("luck", "Effect of luck", tag("div", *rows, class_="card"), note=note)


# --- pictures


def _history(overview: Overview) -> Safe:
    charts = [history_chart(overview, place) for place in range(len(overview.names))]
    curves = curves_chart(overview)
    note = "Each trial in its order; a cross at the bottom is one without a value."
    if curves is None:
        note += " Trials reported one step each, so there are no learning curves."
    else:
        charts.append(curves)
    shown = tag("div", *map(inline, charts), class_="columns")
    return section("history", "History and learning curves", shown, note=note)


def _front(overview: Overview) -> Safe:
    charts = tag("div", *map(inline, front_charts(overview)), class_="columns")
    rows = [_row(overview, trial) for trial in overview.front]
    listed = folded(f"The {len(rows)} trials of the front", _table(overview, rows))
    note = "No trial is better than a trial of the front in every objective."
    return section("front", "Pareto front", charts, listed, note=note)


def _parameters(overview: Overview) -> Safe:
    parts = []
    bars = importance_bars(overview)
    if bars is None:
        text = f"Importances need at least {FEWEST} trials with a value, and scikit-learn."
        parts.append(card("Importance", note=text))
    else:
        note = (
            "Permutation importance in a random forest fitted to the trials: the loss of "
            "explained variance of the ranks when a parameter's values are shuffled, with two "
            "standard errors. It describes these trials, not the whole space."
        )
        parts.append(card("Importance", bars, note=note))
    picture = coordinates_picture(overview)
    if picture is not None:
        note = "A line for each trial, stronger the better it is; the best stands out."
        if len(overview.columns) > MOST_AXES:
            note += f" The {MOST_AXES} most important of {len(overview.columns)} parameters."
        wide = scrolled(picture, "parallel coordinates")
        parts.append(card("Parallel coordinates", wide, note=note))
    return section("parameters", "Parameter importance", *parts)


def _slices(overview: Overview) -> Safe:
    charts = [inline(chart) for chart in slice_charts(overview)]
    note = "The first objective over each parameter, the most important first."
    if len(overview.columns) > MOST_SLICES:
        note = f"{note[:-1]}; {MOST_SLICES} of {len(overview.columns)}."
    return section("slices", "Slices", tag("div", *charts, class_="columns"), note=note)


# --- every trial


def _trials(overview: Overview) -> Safe:
    rows = [_row(overview, trial) for trial in overview.trials[:_MOST_ROWS]]
    counts = overview.study.counts()
    spent = {
        state: sum(t.seconds for t in overview.trials if t.state == state)
        for state in (DONE, STOPPED, FAILED)
    }
    total = sum(spent.values()) or 1.0
    costs = "; ".join(
        f"{counts[state]} {state}: {duration_text(cost)}, {percent_text(cost / total)}"
        for state, cost in spent.items()
        if counts[state]
    )
    note = f"Every trial with its cost, failed trials included. {costs}."
    if len(overview.trials) > _MOST_ROWS:
        note += f" The first {_MOST_ROWS:,} of {len(overview.trials):,} are shown."
    return section("trials", "All trials", card("Trials", _table(overview, rows)), note=note)


def _table(overview: Overview, rows: list[list[str]]) -> Safe:
    names = [column.name for column in overview.columns]
    head = ["trial", "state", *overview.names, *names, "steps", "time", "seed", "why"]
    columns = enumerate(overview.columns, 2 + len(overview.names))
    texts = {1, len(head) - 1, *(place for place, column in columns if not column.is_number)}
    return table(head, rows, numbers=[at for at in range(len(head)) if at not in texts])


def _row(overview: Overview, trial: Trial) -> list[str]:
    values = trial.values or (math.nan,) * len(overview.names)
    why = "; ".join([trial.reason, *trial.violations]).strip("; ")
    state: Any = trial.state
    if trial is overview.best:
        state = tag("b", f"{trial.state}, best")
    return [
        str(trial.number),
        state,
        *map(cell_text, map(float, values)),
        *[cell_text(trial.point.get(column.name)) for column in overview.columns],
        str(len(trial.curve)),
        duration_text(trial.seconds),
        str(trial.seed),
        why,
    ]


def _settings(overview: Overview) -> Safe:
    own = {
        name: cell_text(value) if not isinstance(value, list | dict) else str(value)
        for name, value in overview.settings.items()
        if name not in ("space", "objective") and value not in (None, [], {})
    }
    given = overview.settings.get("space")
    space = {name: described(part) for name, part in given.items()} if given else {}
    cards = [card("Search", facts(own)), card("Space", facts(space))]
    return section("settings", "Settings", tag("div", *cards, class_="masonry"))


def described(part: Any) -> str:
    """Describe a part of a space in words, from its stored description.

    >>> described({"kind": "uniform", "low": 0.1, "high": 1.0, "step": None, "log": True})
    '0.1 to 1, by its logarithm'
    >>> described({"kind": "choice", "labels": ["relu", "tanh"], "opens": {}})
    'relu, tanh'
    """
    match part:
        case {"kind": "uniform" | "integer"}:
            step = part.get("step")
            return (
                f"{cell_text(part.get('low'))} to {cell_text(part.get('high'))}"
                + (f" in steps of {cell_text(step)}" if step not in (None, 1) else "")
                + (", by its logarithm" if part.get("log") else "")
            )
        case {"kind": "choice"}:
            labels, opens = part.get("labels"), part.get("opens")
            inside = opens if isinstance(opens, dict) else {}
            more = {label: described(inside.get(label) or {}) for label in inside}
            known = labels if isinstance(labels, list) else []
            return ", ".join(
                f"{each} ({more[str(each)]})" if more.get(str(each)) else str(each)
                for each in known
            )
        case {"kind": "repeat"}:
            return f"{part.get('least')} to {part.get('most')} times {described(part.get('part'))}"
        case {"kind": "fixed"}:
            return str(part.get("value"))
        case dict():
            return ", ".join(f"{name}: {described(each)}" for name, each in part.items())
    return cell_text(part)
