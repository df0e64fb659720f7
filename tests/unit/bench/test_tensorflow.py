"""TensorFlow as a peer, where it is installed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from caldera.bench.contestants import ALL_PEERS, PEERS, contestants, usual_peers
from caldera.bench.levels.learner import framework_here
from caldera.bench.workloads import WORKLOADS, Rule, TrainingCase


def test_it_takes_part_in_cases_that_it_has() -> None:
    def labels(work: str) -> list[str]:
        case = WORKLOADS[work].quick[0]
        return [each.label for each in contestants(case, ["tensorflow"], [], compiler=False)]

    assert labels("mlp") == ["tensorflow function", "tensorflow XLA"]
    assert labels("gemm") == labels("conv") == ["tensorflow function"]
    assert not labels("lenet5")
    assert set(usual_peers("cuda")) == set(PEERS) <= set(usual_peers()) <= set(ALL_PEERS)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("sgd", 0.1, momentum=0.9, weight_decay=1e-3),
        Rule("adam", 1e-3),
        Rule("adamw", 1e-3, weight_decay=0.01),
        Rule("rmsprop", 1e-3),
    ],
    ids=lambda rule: rule.name,
)
def test_it_trains_to_the_same_losses(rule: Rule) -> None:
    pytest.importorskip("tensorflow")
    case = WORKLOADS["mlp"].cases[0]
    assert isinstance(case, TrainingCase)
    found = []
    for name in ("tensorflow", "caldera"):
        with framework_here(name) as framework:
            trainer = framework.trainer(replace(case, rule=rule), "float64")
            found.append([trainer.gradients()[0], *trainer.losses(5)])
    assert np.allclose(*found, rtol=1e-10)


@pytest.mark.parametrize("work", ["conv", "gemm", "elementwise", "optimizers"])
def test_operations_have_the_same_results(work: str) -> None:
    pytest.importorskip("tensorflow")
    for case in WORKLOADS[work].quick[-3:]:
        tasks = []
        for name in ("tensorflow", "caldera"):
            with framework_here(name) as framework:
                tasks.append(framework.task(case))
        for theirs, ours in zip(*(task.results() for task in tasks), strict=True):
            assert np.allclose(theirs, ours, atol=1e-4 * max(1.0, float(np.abs(ours).max())))
