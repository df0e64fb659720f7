"""Who takes part on a card."""

from __future__ import annotations

import pytest

from caldera.bench.contestants import PEERS, Contestant, card_contestants
from caldera.bench.equality import PRECISIONS, is_as_strict
from caldera.bench.workloads import WORKLOADS, TrainingCase

NETWORKS = [name for name in WORKLOADS if WORKLOADS[name].is_training]


def _case(work: str) -> TrainingCase:
    case = WORKLOADS[work].cases[0]
    assert isinstance(case, TrainingCase)
    return case.on("cuda")


def _found(work: str, precisions: list[str], **more: object) -> list[Contestant]:
    settings = {"compiler": True, **more}
    return card_contestants(_case(work), list(PEERS), precisions, **settings)  # type: ignore[arg-type]


def test_a_small_network_meets_peers_in_every_setting() -> None:
    assert [each.label for each in _found("mlp", ["float32"])] == [
        "torch eager, float32",
        "caldera step, float32",
        "caldera fit, float32",
        "torch CUDA graph, float32",
        "torch compiled, float32",
        "torch compiled reduce-overhead, float32",
        "torch compiled CUDA graph, float32",
        "jax jit, float32",
        "jax scan, float32",
    ]


def test_images_are_also_measured_with_channels_last() -> None:
    labels = {each.label for each in _found("resnet50", ["bfloat16"])}
    assert labels == {
        "torch eager, float32",
        "caldera step, bfloat16",
        "caldera fit, bfloat16",
        *(
            f"{framework} {setting}{order}, bfloat16"
            for framework, setting in (
                ("torch", "eager"),
                ("torch", "CUDA graph"),
                ("torch", "compiled"),
                ("torch", "compiled reduce-overhead"),
                ("jax", "jit"),
            )
            for order in ("", " channels_last")
        ),
    }


def test_the_reference_is_float32_and_only_compared_with_where_that_is_not_measured() -> None:
    first, *others = _found("mlp", ["tf32"])
    assert (first.label, first.is_measured) == ("torch eager, float32", False)
    assert first.options["precision"] == "float32"
    assert all(each.is_measured and each.precision == "tf32" for each in others)
    first, *others = _found("mlp", ["tf32", "float32"])
    assert (first.label, first.is_measured) == ("torch eager, float32", True)
    assert len({each.label for each in (first, *others)}) == 1 + len(others)


def test_words_choose_settings_and_the_reference_stays() -> None:
    labels = [each.label for each in _found("lenet5", ["tf32"], words=["fit", "scan channels"])]
    assert labels == [
        "torch eager, float32",
        "caldera fit, tf32",
        "jax scan channels_last, tf32",
    ]


def test_without_a_compiler_nothing_is_compiled() -> None:
    found = _found("resnet20", ["tf32"], compiler=False)
    assert not any(each.options.get("compiled") for each in found)


def test_attention_of_cudnn_is_for_halves_alone() -> None:
    def has_it(precision: str) -> bool:
        return any("cuDNN" in each.label for each in _found("gpt", [precision]))

    assert has_it("bfloat16")
    assert not has_it("tf32")


@pytest.mark.parametrize("work", NETWORKS)
def test_every_option_says_where_and_in_which_precision(work: str) -> None:
    for each in _found(work, list(PRECISIONS)):
        assert each.options["device"] == "cuda"
        assert each.options["precision"] == each.precision


@pytest.mark.parametrize("work", NETWORKS)
def test_every_network_has_precisions_and_whole_batches_on_a_card(work: str) -> None:
    for case in WORKLOADS[work].cases:
        assert isinstance(case, TrainingCase)
        there = case.on("cuda")
        assert set(there.precisions) <= set(PRECISIONS)
        assert there.batches == 8
        assert there.card_epoch >= there.batches
        assert case.on("cpu") is case
        assert there.on("cuda") is there


def test_large_images_come_in_larger_batches_on_a_card() -> None:
    assert _case("vgg16").batch == 256
    assert "batch 256" in WORKLOADS["vgg16"].description("cuda")
    assert "batch 16" in WORKLOADS["vgg16"].description("cpu")


def test_the_order_of_precisions() -> None:
    assert PRECISIONS == ("float32", "tf32", "bfloat16")
    assert is_as_strict("tf32", "tf32")
    assert is_as_strict("", "")
    assert is_as_strict("", "bfloat16")
    assert not is_as_strict("bfloat16", "")
    assert not is_as_strict("tf32", "float32")
