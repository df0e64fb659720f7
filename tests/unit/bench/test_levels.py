"""Validation at the four levels: every planted error is found, correct code is never flagged."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.bench import levels
from caldera.bench.levels import reference, schemes
from caldera.bench.levels.learner import PROBLEM
from caldera.errors import ConfigError
from tests.unit.bench.planted import PLANTED, linear_inputs


def test_every_planted_error_is_found() -> None:
    assert len(PLANTED) >= 30
    missed = [about for about, validate in PLANTED.items() if validate().passes]
    assert not missed


def _right(seed: int) -> list[levels.Validation]:
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((4, 6))
    return [
        levels.validate_operator(reference.Linear(), linear_inputs(seed), seed=seed),
        levels.validate_operator(reference.ReferenceSoftmax(), [rows], seed=seed),
        levels.validate_sampler(lambda: reference.Shuffled(seed), samples=40 + seed % 17),
        levels.validate_compression(lambda: reference.ReferenceTopK(0.1), seed=seed),
        levels.validate_compression(lambda: reference.Quantized(8, seed), seed=seed),
    ]


def test_correct_code_is_never_flagged() -> None:
    """Over 30 seeds; what no seed changes is validated once."""
    flagged = [str(each) for seed in range(30) for each in _right(seed) if not each.passes]
    for rule in (lambda: reference.ReferenceAdam(0.01), lambda: reference.ReferenceSGD(0.1, 0.9)):
        found = levels.validate_optimizer(rule, rule)
        flagged += [str(found)] * (not found.passes)
    for scheme in (
        schemes.AllReduce,
        schemes.CentralServer,
        schemes.Averaging,
        lambda: schemes.Compressed(reference.Quantized(64)),
        lambda: schemes.Compressed(reference.ReferenceTopK(0.3)),
    ):
        for ranks in (2, 3, 4):
            found = levels.validate_scheme(scheme, ranks=ranks)
            flagged += [str(found)] * (not found.passes)
    assert not flagged, flagged[0]


@pytest.mark.parametrize("framework", levels.frameworks()[1:])
def test_parts_are_validated_in_a_framework(framework: str) -> None:
    network = levels.learner(framework)
    batches = PROBLEM.data("float64")[:2]
    levels.validate_network(network, levels.learner("reference"), batches).require()
    levels.validate_operator(
        reference.Linear(), linear_inputs(), against=reference.Linear(), framework=framework
    ).require()
    levels.validate_optimizer(
        lambda: reference.ReferenceAdam(0.01),
        lambda: reference.ReferenceAdam(0.01),
        framework=framework,
        steps=4,
    ).require()
    levels.validate_scheme(schemes.AllReduce, framework=framework, ranks=2, steps=2).require()
    wrong = levels.validate_optimizer(
        lambda: reference.ReferenceSGD(0.11),
        lambda: reference.ReferenceSGD(0.1),
        framework=framework,
        steps=2,
    )
    assert [each.check for each in wrong.wrong] == ["weights after step 1"]
    with pytest.raises(levels.ValidationError, match="weights after step 1"):
        wrong.require()
    page = levels.validation_page([wrong])
    assert "weights after step 1" in page
    assert 'class="heat"' in page


def test_an_unknown_framework_is_refused() -> None:
    def rule() -> reference.ReferenceSGD:
        return reference.ReferenceSGD(0.1)

    for name in ("mxnet", "trch"):
        with pytest.raises(ConfigError, match="expected one of reference, caldera, torch, jax"):
            levels.validate_optimizer(rule, rule, framework=name)
        with pytest.raises(ConfigError, match="got"):
            levels.learner(name)


def test_a_part_that_raises_is_a_finding_and_what_is_no_part_is_refused() -> None:
    class Broken(levels.Operator):
        def forward(self, *inputs: np.ndarray) -> np.ndarray:
            raise AttributeError("nothing here")

        def backward(self, gradient: np.ndarray, *inputs: np.ndarray) -> list[np.ndarray]:
            return []

    found = levels.validate_operator(Broken(), [np.ones(2)])
    assert [each.check for each in found.wrong] == ["runs to the end"]
    assert "AttributeError" in found.wrong[0].detail
    with pytest.raises(ConfigError, match="expected operator= "):
        levels.validate_operator(object(), [np.ones(2)])  # type: ignore[arg-type]
