"""Claims: the format that `caldera check` reads, and claims from files of `caldera bench`.

A file is one JSON object, `Claims`, with a list of `ClaimedRun` objects. Keys are the fields
here; an omitted key is an unstated fact. An unknown key is an error, so that no statement is
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from caldera.base.plain_data import from_plain
from caldera.base.registry import nearest
from caldera.bench.contestants import PEERS, card_contestants, contestants
from caldera.bench.workloads import WORKLOADS, Case, LearningCase, TrainingCase
from caldera.bench.workloads.training import WEAK_SCALING
from caldera.errors import DataError

FORMAT = "caldera claims 1"

OPERATOR, NETWORK, TRAINING, DISTRIBUTED = "operator", "network", "training", "distributed"
LEVELS = (OPERATOR, NETWORK, TRAINING, DISTRIBUTED)
WHOLE, KERNEL, SUBSET = "whole", "kernel", "subset"
STORAGE, MEMORY, SYNTHETIC = "storage", "memory", "synthetic"
WALL_TIME = "wall time"
STRONG, WEAK = "strong", "weak"

WORDS = {
    "level": LEVELS,
    "part": ("", WHOLE, KERNEL, SUBSET),
    "seconds_of": ("", "operator", "step", "epoch", "training"),
    "reads": ("", STORAGE, MEMORY, SYNTHETIC),
    "stopped_by": ("", "accuracy", "epochs", "steps", WALL_TIME),
    "scaling": ("", STRONG, WEAK),
}
"""Allowed values of these fields of a run."""

Options = dict[str, str | float | bool | None]


@dataclass(frozen=True)
class Hardware:
    """Hardware that a run was made on.

    >>> Hardware("NVIDIA H200", year=2024).special
    False
    """

    name: str
    year: int = 0
    """Year of market introduction; 0 if it is not stated."""
    special: bool = False
    """True if it was built only for this kind of work."""
    reported: str = ""
    """The processor or GPU that the machine itself reports, as in /proc/cpuinfo."""


@dataclass(frozen=True)
class Tuning:
    """The search for the settings of a system, before the runs that are shown.

    >>> Tuning(runs=30, seconds=5400.0).source
    ''
    """

    runs: int
    seconds: float = 0.0
    source: str = ""
    """Source of the settings if they were not searched for."""


@dataclass(frozen=True)
class ClaimedRun:
    """One row of a report: a system with some options on some machine.

    >>> ClaimedRun("8 ranks", "ours", "ResNet-20 on CIFAR-10", "distributed", ranks=8).ranks
    8
    """

    name: str
    system: str
    workload: str
    """Name of the workload; runs of the same workload are compared with each other."""
    level: str
    """operator, network, training or distributed."""
    part: str = ""
    """whole, kernel or subset: what of the workload was run."""
    ranks: int = 1
    batch: int = 0
    """The mini-batch of all ranks together."""
    samples: int = 0
    """Total number of training samples, repeated samples included."""
    hardware: Hardware | None = None
    options: Options | None = None
    """Options that affect speed or accuracy."""
    seconds: tuple[float, ...] = ()
    """All measured times."""
    seconds_of: str = ""
    """operator, step, epoch or training."""
    rate: float | None = None
    rate_unit: str = ""
    train_accuracy: tuple[float, ...] = ()
    test_accuracy: tuple[float, ...] = ()
    """Test accuracy of each run, if runs were repeated with other seeds."""
    seeds: tuple[int, ...] = ()
    """The seed of each accuracy."""
    accuracy_options: Options | None = None
    """Options of the measurement of accuracy, if they differ from `options`."""
    equal_results: bool | None = None
    """True if the result was compared with a reference's and is equal to it."""
    reads: str = ""
    """storage, memory or synthetic: where the samples come from while the clock runs."""
    input_shape: tuple[int, ...] = ()
    usual_shape: tuple[int, ...] = ()
    """Shape of a sample in the usual training of this workload."""
    stopped_by: str = ""
    """accuracy, epochs, steps or wall time: what ended the run."""
    attempts: int = 0
    """Number of starts, if not one for each reported number."""
    scaling: str = ""
    """strong or weak, in a report that has both; otherwise the report's `scaling` applies."""
    weights: dict[str, int] | None = None
    """Number of weights of two and more axes by their sorted lengths, as "3x3x16x64"."""
    error: str = ""
    """Reason for a missing result: a crash, a time limit, a setting left out."""

    @property
    def trains(self) -> bool:
        """True if the run is a training, not a single step or operator."""
        return self.level in (TRAINING, DISTRIBUTED)


@dataclass(frozen=True)
class Claims:
    """A whole report.

    >>> Claims("one step", (ClaimedRun("a", "ours", "mlp", "network"),)).systems()
    ['ours']
    """

    title: str
    runs: tuple[ClaimedRun, ...]
    format: str = FORMAT
    scaling: str = ""
    """strong or weak, if runs differ in their number of ranks."""
    tuning: dict[str, Tuning] | None = None
    """Tuning effort of each system."""
    statements: dict[str, str] | None = None
    """Sentences of the report about facts that its numbers cannot show, by the name of the rule."""

    def systems(self) -> list[str]:
        """Return the measured systems."""
        return list(dict.fromkeys(run.system for run in self.runs))

    def workloads(self) -> list[list[ClaimedRun]]:
        """Return groups of runs to compare with each other."""
        found: dict[str, list[ClaimedRun]] = {}
        for run in self.runs:
            found.setdefault(run.workload, []).append(run)
        return list(found.values())

    def scaled(self) -> list[list[ClaimedRun]]:
        """The runs of a system on a workload, by growing numbers of ranks, where those differ."""
        found = []
        for runs in self.workloads():
            for system in dict.fromkeys(run.system for run in runs):
                own = sorted((r for r in runs if r.system == system), key=lambda r: r.ranks)
                if own[0].ranks != own[-1].ranks:
                    found.append(own)
        return found


def claims_of(content: Any, where: str) -> Claims:
    """Return the claims in the content of a JSON file.

    >>> claims_of({"title": "t", "runs": []}, "t.json")
    Traceback (most recent call last):
    caldera.errors.DataError: t.json.runs: expected at least one run with a result, got none
    """
    found = from_plain(Claims, content, where)
    if found.format != FORMAT:
        raise DataError.build(f"{where}.format", expected=repr(FORMAT), got=repr(found.format))
    if all(run.error for run in found.runs):
        raise DataError.build(
            f"{where}.runs", expected="at least one run with a result", got="none"
        )
    _check_word(f"{where}.scaling", found.scaling, ("", STRONG, WEAK))
    for number, run in enumerate(found.runs):
        _check_run(run, f"{where}.runs[{number}]")
    return found


def _check_run(run: ClaimedRun, where: str) -> None:
    for name, words in WORDS.items():
        _check_word(f"{where}.{name}", getattr(run, name), words)
    if run.seeds and len(run.seeds) != len(run.test_accuracy):
        raise DataError.build(
            f"{where}.seeds",
            expected=f"{len(run.test_accuracy)}, one of each test accuracy",
            got=str(len(run.seeds)),
        )
    if run.ranks < 1:
        raise DataError.build(f"{where}.ranks", expected="at least 1", got=str(run.ranks))
    for name in ("train_accuracy", "test_accuracy"):
        for value in getattr(run, name):
            if not 0.0 <= value <= 1.0:
                raise DataError.build(
                    f"{where}.{name}",
                    expected="shares from 0 to 1",
                    got=str(value),
                    hint="write 0.91, not 91",
                )
    for name in ("input_shape", "usual_shape"):
        if not all(each > 0 for each in getattr(run, name)):
            raise DataError.build(
                f"{where}.{name}", expected="lengths above 0", got=str(getattr(run, name))
            )
    for value in run.seconds:
        if not 0.0 < value < float("inf"):
            raise DataError.build(f"{where}.seconds", expected="times above 0", got=str(value))


def _check_word(where: str, word: str, words: Iterable[str]) -> None:
    known = [each for each in words if each]
    if word and word not in known:
        raise DataError.build(
            where, expected=f"one of {', '.join(known)}", got=repr(word), hint=nearest(word, known)
        )


def is_bench(content: Any) -> bool:
    """Return True if the content of a file was written by the bench.

    >>> is_bench({"entries": [], "machine": {}}), is_bench({"runs": []})
    (True, False)
    """
    return isinstance(content, dict) and "entries" in content and "machine" in content


def claims_of_bench(content: dict[str, Any], where: str) -> Claims:
    """Return the claims of a bench run: rows that count, and rows that failed or are missing.

    A row with a wrong result is struck out in the report, so it makes no claim.
    """
    try:
        machine = content["machine"]
        name = str(machine.get("card") or machine["cpu"])
        hardware = Hardware(name, reported=name)
        shared: Options = {"threads": float(machine["threads"])}
        runs = [
            _run(entry, hardware, shared)
            for entry in content["entries"]
            if (entry["rounds"] or entry["error"]) and entry["equality"]["holds"] is not False
        ]
        runs += _left_out(content)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError.build(
            where,
            expected="a file of caldera bench --json",
            got=f"one without {error}" if isinstance(error, KeyError) else str(error),
        ) from None
    if all(run.error for run in runs):
        raise DataError.build(where, expected="a row that counts", got="none")
    statements = {"peers": _PEERS}
    claims = Claims(f"{where}: caldera bench", tuple(runs), statements=statements)
    if not any(run.trains for run in runs):
        return claims
    return replace(
        claims,
        statements=statements | {"input": _READING},
        tuning={system: Tuning(0, source=_SETTINGS) for system in claims.systems()},
    )


_PEERS = "a case has the peers that can run it, in all the settings that the bench has for them"
_READING = (
    "samples are in memory when the clock starts; the file has the loading time (`load s` of "
    "each training)"
)
_SETTINGS = "the settings of the case, which are the same in every system"


def _left_out(content: dict[str, Any]) -> list[ClaimedRun]:
    """Return the peers' usual settings of which a file has no row."""
    device = content["machine"].get("device", "cpu")
    precisions = content.get("options", {}).get("precisions", ())
    entries = [each for each in content["entries"] if each["rounds"] or each["error"]]
    present = {(each["work"], each["case"], each["label"]) for each in entries}
    found = []
    for work, name in dict.fromkeys((each["work"], each["case"]) for each in entries):
        case = _case(work, name)
        if isinstance(case, TrainingCase) and device != "cpu":
            case = case.on(device)
            chosen = precisions or case.precisions
            usual = card_contestants(case, tuple(PEERS), chosen, compiler=True)
        elif case is not None:
            usual = contestants(case, tuple(PEERS), (), compiler=True, precisions=precisions)
        else:
            continue
        found += [
            ClaimedRun(
                name=f"{name} {each.label}",
                system=each.framework,
                workload=_workload(work, name, getattr(case, "scheme", "")),
                level=case.level,
                error="not installed" if each.framework in content["missing"] else "left out",
            )
            for each in usual
            if each.is_measured
            and each.framework in PEERS
            and (work, name, each.label) not in present
        ]
    return found


def _run(entry: dict[str, Any], hardware: Hardware, shared: Options) -> ClaimedRun:
    if entry.get("trainings") and not entry["error"]:
        return _training(entry, hardware, shared)
    shape = _shape_of(entry["work"], entry["case"])
    accuracy = entry.get("accuracy")
    is_network = bool(entry["batch"])
    return ClaimedRun(
        name=f"{entry['case']} {entry['label']}",
        system=entry["framework"],
        workload=_workload(entry["work"], entry["case"], entry.get("scheme", "")),
        level=NETWORK if is_network else OPERATOR,
        part=WHOLE,
        batch=int(entry["batch"]),
        hardware=hardware,
        options={"setting": entry["setting"], "precision": entry["precision"], **shared},
        seconds=tuple(float(each) for each_round in entry["rounds"] for each in each_round),
        seconds_of="step" if is_network else "operator",
        test_accuracy=() if accuracy is None else (float(accuracy),),
        equal_results=entry["equality"]["holds"],
        input_shape=tuple(entry.get("shape") or shape),
        usual_shape=shape,
        weights=entry.get("weights") or None,
        error=entry["error"],
    )


def _training(entry: dict[str, Any], hardware: Hardware, shared: Options) -> ClaimedRun:
    """Return a row of the levels of training: every seed, to the target."""
    scheme = entry["scheme"]
    reached = all(each >= entry["target"] for each in entry["accuracies"])
    return ClaimedRun(
        name=f"{entry['case']} {entry['label']}",
        system=f"{entry['framework']} {scheme}".strip(),
        workload=_workload(entry["work"], entry["case"], scheme),
        level=entry["level"],
        part=WHOLE,
        ranks=int(entry["ranks"]),
        batch=int(entry["batch"]),
        samples=int(sum(each["steps"] for each in entry["trainings"]) * entry["batch"]),
        hardware=hardware,
        options={"setting": entry["setting"], "scheme": scheme, **shared},
        seconds=tuple(float(each["seconds"]) for each in entry["trainings"]),
        seconds_of="training",
        test_accuracy=tuple(float(each) for each in entry["accuracies"]),
        seeds=tuple(entry["seeds"]),
        reads=MEMORY,
        input_shape=tuple(entry["shape"]),
        usual_shape=_shape_of(entry["work"], entry["case"]),
        stopped_by="accuracy" if reached else "epochs",
        scaling=WEAK if entry["work"] == WEAK_SCALING else STRONG,
    )


def _workload(work: str, case: str, scheme: str) -> str:
    """Return the name under which rows are compared: cases with a scheme differ in their ranks."""
    return work if scheme else f"{work} {case}"


def _case(work: str, name: str) -> Case | None:
    """Return the bench's case of this name, if it has one today."""
    cases = WORKLOADS[work].cases if work in WORKLOADS else ()
    return next((case for case in cases if case.name == name), None)


def _shape_of(work: str, name: str) -> tuple[int, ...]:
    """Return the shape of a sample, as the bench has it for this case."""
    case = _case(work, name)
    network = case.network if isinstance(case, LearningCase) else case
    return network.shape if isinstance(network, TrainingCase) else ()
