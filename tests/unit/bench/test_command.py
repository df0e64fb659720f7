"""What the command line asks of a run."""

from __future__ import annotations

import argparse

import pytest

from caldera.bench.case_runner import Options
from caldera.bench.workloads import WORKLOADS
from caldera.cli.commands import bench as command
from caldera.errors import ConfigError


def _options(*arguments: str) -> Options:
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    return command._options(parser.parse_args(arguments))


def test_without_flags_the_cpu_is_measured_as_ever() -> None:
    found = _options("mlp")
    assert (found.device, found.on_card) == ("cpu", False)
    assert found.peers == ["torch", "jax"]
    assert found.accuracies == ["strict", "fast"]
    assert found.limit is None


def test_a_card_is_measured_with_limits_and_in_the_precisions_of_each_work() -> None:
    found = _options("mlp", "resnet50", "--device", "cuda")
    assert found.on_card
    assert found.peers == ["torch", "jax"]
    assert found.accuracies == ["strict"]
    assert found.limit == 300
    cases = [WORKLOADS[name].cases[0] for name in found.works]
    assert [found.precisions_of(case) for case in cases] == [  # type: ignore[arg-type]
        ("tf32", "float32"), ("bfloat16",),
    ]  # fmt: skip


def test_precisions_settings_and_limit_can_be_chosen() -> None:
    found = _options(
        "gpt", "--device", "cuda", "--precision", "tf32,bfloat16,tf32", "--limit", "60",
        "--settings", "caldera, CUDA graph,", "--peers", "jax",
    )  # fmt: skip
    assert found.precisions == ["tf32", "bfloat16"]
    assert found.settings == ["caldera", "CUDA graph"]
    assert (found.limit, found.peers) == (60, ["jax"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["conv", "--device", "cuda"], "expected work that a card is measured with: mlp, "),
        (["mlp", "--device", "tpu"], "--device: expected a device"),
        (["mlp", "--precision", "tf32"], "--precision: expected --device cuda with it"),
        (["mlp", "--settings", "fit"], "--settings: expected --device cuda with it"),
        (["mlp", "--device", "cuda", "--precision", "half"], "--precision: expected a precision"),
        (["mlp", "--device", "cuda", "--accuracy", "fast"], "--accuracy: expected --device cpu"),
        (["mlp", "--device", "cuda", "--peers", "tensorflow"], "--peers: expected a peer"),
        (["mlp", "--limit", "0"], "--limit: expected a whole number of at least 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        _options(*arguments)


def test_without_a_card_the_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "card_state", lambda: None)
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    with pytest.raises(ConfigError, match="expected an NVIDIA card, got none"):
        command.run(parser.parse_args(["mlp", "--device", "cuda"]))


def test_the_list_for_a_card_has_networks_with_their_precisions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    assert command.run(parser.parse_args(["--list", "--device", "cuda"])) == 0
    out = capsys.readouterr().out
    assert "ResNet-50, 224 pixels, batch 256; bfloat16" in out
    assert "conv" not in out
    assert "tensorflow" not in out
