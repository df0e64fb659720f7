"""Who takes part in what, and who is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from caldera.bench.contestants import PEERS, contestants, missing_peers
from caldera.bench.workloads import WORKLOADS

EVERYBODY = list(PEERS)


def _labels(work: str, *, compiler: bool = True) -> list[str]:
    case = WORKLOADS[work].cases[0]
    return [
        each.label for each in contestants(case, EVERYBODY, ["strict", "fast"], compiler=compiler)
    ]


def test_networks_of_images_meet_peers_in_every_setting() -> None:
    assert _labels("lenet5") == [
        "torch eager",
        "caldera strict",
        "caldera fast",
        "torch eager channels_last",
        "torch compiled",
        "torch compiled channels_last",
        "jax jit",
        "jax jit channels_last",
    ]


def test_small_networks_without_images_are_also_looped_over() -> None:
    assert "jax scan" in _labels("mlp")


def test_without_a_compiler_nothing_is_compiled() -> None:
    assert not any("compiled" in label for label in _labels("lenet5", compiler=False))


def test_large_networks_have_no_loop_over_steps() -> None:
    assert "jax scan" not in _labels("resnet50")


def test_a_precision_is_measured_beside_the_reference_in_float32() -> None:
    def labels(work: str, *precisions: str) -> list[str]:
        case = WORKLOADS[work].cases[0]
        found = contestants(case, ["torch"], ["strict"], compiler=False, precisions=precisions)
        assert all(each.options.get("precision", "") == each.precision for each in found)
        return [each.label for each in found]

    rounded = ["torch eager, bfloat16", "caldera strict, bfloat16"]
    assert labels("mlp", "float32") == ["torch eager", "caldera strict"]
    assert labels("mlp", "bfloat16") == ["torch eager", *rounded]
    assert labels("mlp", "bfloat16", "float32") == ["torch eager", "caldera strict", *rounded]
    # Single computations say their dtype themselves.
    assert labels("gemm", "bfloat16") == labels("gemm")


@pytest.mark.parametrize("work", list(WORKLOADS))
def test_the_reference_comes_first_in_everything(work: str) -> None:
    labels = _labels(work)
    assert labels[0].startswith("torch ")
    assert labels[1:3] == ["caldera strict", "caldera fast"]
    assert len(set(labels)) == len(labels)


def test_a_missing_peer_comes_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"jax": None}
    monkeypatch.setattr(
        "caldera.bench.contestants.find_spec", lambda name: found.get(name, object())
    )
    assert missing_peers(EVERYBODY) == {"jax": "pip install jax"}


@pytest.mark.parametrize("work", list(WORKLOADS))
def test_cases_have_names_of_their_own_and_quick_ones_are_among_them(work: str) -> None:
    names = [case.name for case in WORKLOADS[work].cases]
    assert len(set(names)) == len(names)
    assert {case.name for case in WORKLOADS[work].quick} <= set(names)
    for case in WORKLOADS[work].quick:
        assert WORKLOADS[work].case(case.name) == case


def test_importing_the_bench_imports_no_peer() -> None:
    code = (
        "import sys, caldera.bench.worker, caldera.cli.commands.bench;"
        f"print([n for n in {EVERYBODY} if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_importing_the_package_does_not_import_the_bench() -> None:
    code = "import sys, caldera; print('caldera.bench' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
