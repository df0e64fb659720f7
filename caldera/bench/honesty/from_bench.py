"""Claims of a file that `caldera bench --json` wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from caldera.bench.honesty.claims import (
    MEMORY,
    NETWORK,
    OPERATOR,
    STRONG,
    WEAK,
    WHOLE,
    ClaimedRun,
    Claims,
    Hardware,
    Options,
    Tuning,
)
from caldera.bench.workloads import WORKLOADS, LearningCase, TrainingCase
from caldera.bench.workloads.training import WEAK_SCALING
from caldera.errors import DataError


def is_bench(content: Any) -> bool:
    """Whether a file's content is a bench's.

    >>> is_bench({"entries": [], "machine": {}}), is_bench({"runs": []})
    (True, False)
    """
    return isinstance(content, dict) and "entries" in content and "machine" in content


def claims_of_bench(content: dict[str, Any], where: str) -> Claims:
    """What a run of the bench says: the rows that count.

    A row whose result is wrong is struck out there, so it claims nothing.
    """
    try:
        machine = content["machine"]
        hardware = Hardware(str(machine.get("card") or machine["cpu"]))
        shared: Options = {"threads": float(machine["threads"])}
        runs = [
            _run(entry, hardware, shared)
            for entry in content["entries"]
            if entry["rounds"] and not entry["error"] and entry["equality"]["holds"] is not False
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError.build(
            where,
            expected="a file of caldera bench --json",
            got=f"one without {error}" if isinstance(error, KeyError) else str(error),
        ) from None
    if not runs:
        raise DataError.build(where, expected="a row that counts", got="none")
    claims = Claims(title=f"{where}: caldera bench", runs=tuple(runs))
    if not any(run.trains for run in runs):
        return claims
    return replace(
        claims,
        statements={"input": _READING},
        tuning={system: Tuning(0, source=_SETTINGS) for system in claims.systems()},
    )


_READING = (
    "samples lie in memory when the clock starts; the time to bring them there is in the file "
    "(`load s` of each training)"
)
_SETTINGS = "the settings of the case, which are the same in every system"


def _run(entry: dict[str, Any], hardware: Hardware, shared: Options) -> ClaimedRun:
    if entry.get("trainings"):
        return _training(entry, hardware, shared)
    shape = _shape_of(entry["work"], entry["case"])
    accuracy = entry.get("accuracy")
    is_network = bool(entry["batch"])
    return ClaimedRun(
        name=f"{entry['case']} {entry['label']}",
        system=entry["framework"],
        workload=f"{entry['work']} {entry['case']}",
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
    )


def _training(entry: dict[str, Any], hardware: Hardware, shared: Options) -> ClaimedRun:
    """A row of the levels of training: every seed, to the target."""
    scheme = entry["scheme"]
    reached = all(each >= entry["target"] for each in entry["accuracies"])
    return ClaimedRun(
        name=f"{entry['case']} {entry['label']}",
        system=f"{entry['framework']} {scheme}".strip(),
        workload=entry["work"] if scheme else f"{entry['work']} {entry['case']}",
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
        reads=MEMORY,
        input_shape=tuple(entry["shape"]),
        usual_shape=_shape_of(entry["work"], entry["case"]),
        stopped_by="accuracy" if reached else "epochs",
        scaling=WEAK if entry["work"] == WEAK_SCALING else STRONG,
    )


def _shape_of(work: str, name: str) -> tuple[int, ...]:
    """Of a sample, as the bench has it for this case."""
    if work not in WORKLOADS:
        return ()
    cases = [case for case in WORKLOADS[work].cases if case.name == name]
    network = cases[0] if cases else None
    if isinstance(network, LearningCase):
        network = network.network
    return network.shape if isinstance(network, TrainingCase) else ()
