"""ONNX's own backend tests, run on Caldera: how many of how many pass, and which do not.

They are those of single nodes, which the onnx package makes when it is asked, and those of small
models, among them models that PyTorch once wrote, which lie in files of the package.

    python -m caldera.onnx.score
    python -m caldera.onnx.score --call-by-call            # without compiling: seconds
    python -m caldera.onnx.score --backend onnxruntime     # the same tests on another backend

The exit status is 0 if exactly the tests fail that are listed here with a reason.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from caldera.base.registry import optional_import
from caldera.onnx.library import PACKAGE, WHERE, onnx
from caldera.onnx.operators import OPERATORS
from caldera.onnx.reading.parser import plain_domain
from caldera.onnx.runtime import Backend, Prepared

_IN_FILES = ("simple", "pytorch-converted", "pytorch-operator")

EXCLUDED: dict[str, str] = {
    r"test_bernoulli.*": "random numbers, which ONNX does not define",
    r"test_training_dropout(_default)?(_mask)?": "random numbers, which ONNX does not define",
    r"test_loop16_seq_none": (
        "the values agree; ONNX's comparison takes the length of a scalar inside a sequence"
    ),
    r"test_attention_4d_causal_fp16_expanded": (
        "written out in float16, whose last digit is more than the tolerance; "
        "Caldera's result is nearer to that in float64"
    ),
    r"test_dft_inverse(_opset19)?": (
        "zeros are expected as 1.9e-7, the rounding of float32, with a tolerance of 1e-7"
    ),
}
"""Tests that do not pass, as patterns of their names, and why."""


@dataclass(frozen=True)
class TestResult:
    """What became of one test."""

    name: str
    operators: frozenset[tuple[str, str]]
    problem: str = ""
    was_compiled: bool = False
    in_numpy: frozenset[str] = frozenset()

    @property
    def has_passed(self) -> bool:
        """Whether the results agreed."""
        return not self.problem

    @property
    def reason(self) -> str:
        """Why it is known not to pass, if it is."""
        found = [why for pattern, why in EXCLUDED.items() if re.fullmatch(pattern, self.name)]
        return found[0] if found else ""


def cases(pattern: str = "") -> list[Any]:
    """The tests whose names contain a match of the pattern."""
    loader = optional_import("onnx.backend.test.loader", PACKAGE, WHERE)
    base = optional_import("onnx.backend.test.case.base", PACKAGE, WHERE)
    # Each case is also read as text, for ONNX's documentation: a fifth of the time, for nothing.
    without_texts = mock.patch.object(base, "process_snippet", return_value=("", ""))
    with warnings.catch_warnings(), without_texts:
        # Making them overflows here and there, as it should.
        warnings.simplefilter("ignore")
        nodes = loader.load_model_tests(kind="node")
    models = [case for kind in _IN_FILES for case in loader.load_model_tests(kind=kind)]
    found = [case for case in nodes if re.search(pattern, case.name)]
    return found + [_from_files(case) for case in models if re.search(pattern, case.name)]


def _from_files(case: Any) -> Any:
    """A case with the model and the arrays that lie in its folder."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    declared = {"input": model.graph.input, "output": model.graph.output}
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        # Inputs for which the model brings an array along have no file.
        files = {
            name: [(data / f"{name}_{i}.pb", each.type) for i, each in enumerate(values)]
            for name, values in declared.items()
        }
        sets.append(
            tuple([_message(*each) for each in files[name] if each[0].exists()] for name in files)
        )
    return replace(case, model=model, data_sets=sets)


def _message(path: Path, kind: Any) -> Any:
    raw = path.read_bytes()
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
    return _array(onnx.TensorProto.FromString(raw))


def run_case(case: Any, backend: Any = Backend, device: str = "CPU", **options: Any) -> TestResult:
    """One test, compared as ONNX's own runner compares."""
    runner = optional_import("onnx.backend.test.runner", PACKAGE, WHERE).Runner
    operators = frozenset(
        (plain_domain(node.domain), node.op_type) for node in case.model.graph.node
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepared = backend.prepare(case.model, device, **options)
            for inputs, expected in case.data_sets:
                outputs = prepared.run([_array(each) for each in inputs])
                runner.assert_similar_outputs(
                    [_array(each) for each in expected], list(outputs), case.rtol, case.atol
                )
    # Whatever another backend, or we, may raise: the test has not passed.
    except Exception as problem:
        text = " ".join(str(problem).split())[:200]
        return TestResult(case.name, operators, f"{type(problem).__name__}: {text}")
    if not isinstance(prepared, Prepared):
        return TestResult(case.name, operators)
    session = prepared.session
    return TestResult(case.name, operators, "", session.was_compiled, session.in_numpy)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return np.array(onnx.numpy_helper.to_array(value))
    return value


def report(outcomes: Sequence[TestResult], title: str) -> str:
    """The counts, and every test that did not pass with the reason."""
    passed = [each for each in outcomes if each.has_passed]
    ours = [
        each
        for each in outcomes
        if all(own in OPERATORS and not OPERATORS[own].in_numpy for own in each.operators)
    ]
    names = {operator for each in outcomes for operator in each.operators}
    lines = [
        title,
        "",
        f"passed {len(passed)} of {len(outcomes)} tests ({len(names)} operators)",
    ]
    if compiled := sum(each.was_compiled for each in passed):
        lines += [
            f"  {compiled:5} as one compiled plan",
            f"  {len(passed) - compiled:5} call by call: shapes or branches follow from values "
            "that are fed, or Caldera has no such dtype",
        ]
    in_numpy = Counter(name for each in passed for name in each.in_numpy)
    if in_numpy:
        some = sum(bool(each.in_numpy) for each in passed)
        lines += [
            f"  {some:5} of all with an operator that NumPy computes ({len(in_numpy)} operators)",
            "of the tests of operators that are written with Caldera's ops alone, "
            f"{sum(each.has_passed for each in ours)} of {len(ours)} pass",
        ]
    failed = [each for each in outcomes if not each.has_passed]
    if failed:
        said = [f"  {each.name}: {each.reason or each.problem}" for each in failed]
        lines += ["", f"{len(failed)} do not pass:", *said]
    if in_numpy:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(in_numpy.items()))
        lines += ["", f"tests in which NumPy computes an operator: {counts}"]
    return "\n".join(lines)


def surprises(outcomes: Sequence[TestResult]) -> list[str]:
    """Tests that fail without a reason, and those that pass in spite of one."""
    wrong = [each for each in outcomes if each.has_passed == bool(each.reason)]
    return [
        f"{each.name} passes" if each.has_passed else f"{each.name}: {each.problem}"
        for each in wrong
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and print the count."""
    parser = argparse.ArgumentParser(prog="python -m caldera.onnx.score", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="only tests whose names match")
    parser.add_argument("--call-by-call", action="store_true", help="compute without compiling")
    parser.add_argument("--backend", choices=("caldera", "onnxruntime"), default="caldera")
    parser.add_argument("--device", default="CPU", help="CPU, or CUDA with a card")
    chosen = parser.parse_args(arguments)
    title = f"onnx {onnx.__version__}"
    backend, how = Backend, {"compiled": not chosen.call_by_call}
    if chosen.backend != "caldera":
        backend, how = optional_import("onnxruntime.backend", "onnxruntime", WHERE), {}
        title += (
            f", on onnxruntime {optional_import('onnxruntime', 'onnxruntime', WHERE).__version__}"
        )
    outcomes = [run_case(each, backend, chosen.device, **how) for each in cases(chosen.pattern)]
    print(report(outcomes, title))
    if chosen.backend != "caldera":
        return 0
    if unexpected := surprises(outcomes):
        print("\nnot as expected:", *unexpected, sep="\n  ")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
