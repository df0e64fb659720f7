"""What the command line asks of a run."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.bench.case_runner import CaseOptions
from caldera.bench.contestants import contestants
from caldera.bench.frameworks.caldera_tasks import CalderaFramework
from caldera.bench.workloads import WORKLOADS, TrainingCase
from caldera.cli.commands import bench as command
from caldera.errors import ConfigError


def _options(*arguments: str) -> CaseOptions:
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
        ("tf32", "float32"),
        ("bfloat16",),
    ]


def test_precisions_settings_and_limit_can_be_chosen() -> None:
    found = _options(
        "gpt",
        "--device",
        "cuda",
        "--precision",
        "tf32,bfloat16,tf32",
        "--limit",
        "60",
        "--settings",
        "caldera, CUDA graph,",
        "--peers",
        "jax",
    )
    assert found.precisions == ["tf32", "bfloat16"]
    assert found.settings == ["caldera", "CUDA graph"]
    assert (found.limit, found.peers) == (60, ["jax"])


def test_precisions_of_the_cpu_can_be_chosen() -> None:
    assert _options("mlp").precisions == []
    found = _options("mlp", "gpt", "--precision", "bfloat16,float32")
    assert found.precisions == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["conv", "--device", "cuda"], "expected a network with a GPU benchmark: mlp, "),
        (["mlp", "--device", "tpu"], "--device: expected a device"),
        (["mlp", "--precision", "tf32"], "--precision: expected a precision"),
        (["mlp", "conv", "--precision", "bfloat16"], "--precision: expected networks with it"),
        (["mlp", "--settings", "fit"], "--settings: expected --device cuda with it"),
        (["mlp", "--device", "cuda", "--precision", "half"], "--precision: expected a precision"),
        (["mlp", "--device", "cuda", "--accuracy", "fast"], "--accuracy: expected --device cpu"),
        (["mlp", "--device", "cuda", "--peers", "mxnet"], "--peers: expected a peer"),
        (["mlp", "--limit", "0"], "--limit: expected an integer >= 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        _options(*arguments)


def test_without_a_card_the_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "card_state", lambda: None)
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    with pytest.raises(ConfigError, match="expected an NVIDIA GPU, got none"):
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


def test_passes_left_out_and_workspaces_take_part_beside_the_usual_step() -> None:
    found = _options("lenet5", "--without", "fuse,layout,fuse", "--workspace", "0, 8")
    assert (found.without, found.workspaces) == (["fuse", "layout"], [0, 8])
    (case,) = WORKLOADS["lenet5"].cases
    ways = {"without": found.without, "workspaces": found.workspaces}
    made = contestants(case, [], ["strict", "fast"], compiler=False, **ways)  # type: ignore[arg-type]
    assert [each.setting for each in made] == [
        "strict",
        "fast",
        "strict without fuse",
        "strict without layout",
        "strict with 0 MiB of workspace",
        "strict with 8 MiB of workspace",
    ]
    operator = WORKLOADS["elementwise"].cases[0]
    assert len(contestants(operator, [], ["strict"], compiler=False, **ways)) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--without", "fusion"), "--without.*fuse"),
        (("--workspace", "8,-1"), "--workspace.*>= 0"),
        (("--device", "cuda", "--workspace", "8"), "--workspace.*--device cpu"),
    ],
)
def test_passes_and_workspaces_that_cannot_be(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _options("lenet5", *flags)


def test_a_step_without_a_pass_or_with_less_workspace_gives_the_same() -> None:
    (case,) = WORKLOADS["lenet5"].cases
    assert isinstance(case, TrainingCase)
    losses, calls = [], []
    for options in ({}, {"without": ["fuse"]}, {"workspace_limit": 0}):
        with settings.override(workspace_limit=settings.workspace_limit):
            framework = CalderaFramework({"accuracy": "strict", **options}, settings.threads)
            task = framework.trainer(case, "float32", 8)
            losses.append(task.losses(2))
            calls.append(len(task._steps.training(8).explain(time=False).rows))
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)
    assert calls[1] > calls[0]
