"""Claims of a file that `caldera bench --json` wrote."""

from __future__ import annotations

from typing import Any

from caldera.bench.honesty.claims import (
    NETWORK,
    OPERATOR,
    WHOLE,
    Claims,
    Hardware,
    Options,
    Run,
)
from caldera.bench.workloads import WORKLOADS, TrainingCase
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
            where, expected="a file of caldera bench --json",
            got=f"one without {error}" if isinstance(error, KeyError) else str(error),
        ) from None  # fmt: skip
    if not runs:
        raise DataError.build(where, expected="a row that counts", got="none")
    return Claims(title=f"{where}: caldera bench", runs=tuple(runs))


def _run(entry: dict[str, Any], hardware: Hardware, shared: Options) -> Run:
    shape = _shape_of(entry["work"], entry["case"])
    accuracy = entry.get("accuracy")
    is_network = bool(entry["batch"])
    return Run(
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


def _shape_of(work: str, name: str) -> tuple[int, ...]:
    """Of a sample, as the bench has it for this case."""
    if work not in WORKLOADS:
        return ()
    cases = [case for case in WORKLOADS[work].cases if case.name == name]
    return cases[0].shape if cases and isinstance(cases[0], TrainingCase) else ()
