"""What a report says: ratios, means, and who counts."""

from __future__ import annotations

import json

import pytest

from caldera.bench.equality import Equality
from caldera.bench.results import ResultEntry
from tests.unit.bench.reports import entry, report


def test_ratios_are_to_the_best_setting_of_each_peer() -> None:
    ours = entry("caldera", "strict", 1.0)
    found = report(
        ours,
        entry("torch", "eager", 3.0),
        entry("torch", "compiled", 2.0),
        entry("jax", "jit", 1.5),
    ).ratios(ours)
    by_peer = {each.peer: (each.against, each.ratio.value) for each in found}
    assert by_peer == {
        "torch": ("torch compiled", 2.0),
        "jax": ("jax jit", 1.5),
        "best": ("jax jit", 1.5),
    }


def test_on_a_card_ratios_are_to_settings_of_the_same_precision_or_a_stricter_one() -> None:
    rounded = entry("caldera", "step", 1.0, precision="tf32")
    exact = entry("caldera", "step", 1.0, precision="float32")
    found = report(
        rounded,
        exact,
        entry("torch", "CUDA graph", 3.0, precision="tf32"),
        entry("torch", "CUDA graph", 4.0, precision="float32"),
        entry("jax", "jit", 2.0, precision="float32"),
        entry("jax", "jit", 0.1, precision="bfloat16"),
    )
    assert {each.against: each.ratio.value for each in found.ratios(rounded)} == pytest.approx(
        {"torch CUDA graph, tf32": 3.0, "jax jit, float32": 2.0}
    )
    assert {each.against for each in found.ratios(exact)} == {
        "torch CUDA graph, float32",
        "jax jit, float32",
    }


def test_a_peer_whose_result_is_wrong_is_not_compared_with() -> None:
    ours = entry("caldera", "strict", 1.0)
    wrong = entry("torch", "compiled", 0.1, equality=Equality(first_loss=1.0, broken=["loss"]))
    failed = entry("torch", "eager channels_last", 0.1, error="died")
    right = entry("torch", "eager", 2.0)
    assert [r.against for r in report(ours, wrong, failed, right).ratios(ours)] == ["torch eager"]


def test_a_wrong_result_of_ours_has_no_ratio() -> None:
    ours = entry("caldera", "fast", 1.0, equality=Equality(first_loss=1.0, broken=["loss"]))
    assert not ours.counts
    assert report(ours, entry("torch", "eager", 2.0)).ratios(ours) == []


def test_an_unchecked_result_counts() -> None:
    assert entry("caldera", "strict", 1.0, equality=Equality()).counts


def _passes(framework: str, setting: str, whole: str, *times: float) -> list[ResultEntry]:
    return [
        entry(framework, setting, time, case=f"{whole} {i}", part_of=whole, group="3x3")
        for i, time in enumerate(times)
    ]


def test_means_add_up_the_passes_of_a_size_first() -> None:
    found = report(
        *_passes("caldera", "strict", "a", 1.0, 1.0),
        *_passes("torch", "eager", "a", 1.0, 3.0),
        *_passes("caldera", "strict", "b", 1.0, 1.0),
        *_passes("torch", "eager", "b", 8.0, 8.0),
    ).means()
    assert [(mean.peer, mean.cases) for mean in found] == [("torch", 2)]
    assert found[0].ratio.value == pytest.approx((2 * 8) ** 0.5)


def test_json_has_raw_times_and_statistics() -> None:
    ours = entry("caldera", "strict", 1.0)
    text = json.dumps(report(ours, entry("torch", "eager", 2.0)).to_json())
    found = json.loads(text)
    assert found["entries"][0]["rounds"] == [[1.0]] * 3
    assert found["entries"][0]["seconds"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert found["entries"][0]["ratios"][0]["ratio"]["value"] == 2.0
    assert found["entries"][0]["equality"]["holds"] is True
    assert found["missing"] == {"jax": "pip install jax"}
    assert found["machine"]["cores"] == 2
