"""tests/fuzz/card.py: a few random networks, on the card as on the CPU."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from caldera.core.memory import Device
from tests.fuzz import card as fuzz

SEEDS = (1, 7)
BLOCKS = (2,)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_network_agrees_with_the_cpu(card: Device, seed: int) -> None:
    network = fuzz.random_network(seed, fuzz.SMALL, alone=True)
    outcome = fuzz.compared(network, card, fuzz.drawn_kernels(seed))
    assert outcome.what == "agreed", outcome.detail


@pytest.mark.parametrize("seed", BLOCKS)
def test_residual_blocks_agree_with_the_cpu(card: Device, seed: int) -> None:
    network = fuzz.random_network(seed, fuzz.SMALL, alone=True, blocks=True)
    outcome = fuzz.compared(network, card)
    assert outcome.what == "agreed", outcome.detail


def test_a_difference_counts_if_a_rounding_makes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    network = fuzz.random_network(1, fuzz.SMALL, alone=True)
    wrong: dict[Any, float] = {"right": 0.0, "rounded": 1e-7, "wrong": 1e-3, "lost": np.nan}

    def run(network: Any, device: Any, change: Any = None) -> list[np.ndarray]:
        off = 1e-7 * change.roundings if change is not None else wrong.get(device, 0.0)
        return [np.ones(4) + off]

    monkeypatch.setattr(fuzz, "trained", run)
    found = {device: fuzz.compared(network, device).what for device in wrong}
    assert found == {
        "right": "agreed",
        "rounded": "agreed",
        "wrong": "difference",
        "lost": "difference",
    }


def test_a_turn_that_few_correct_runs_take_is_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a gradient next to 0 Adam makes a step up or down, whatever is rounded elsewhere."""
    network = fuzz.random_network(1, fuzz.SMALL, alone=True)
    wrong: dict[Any, float] = {"turned": 1e-3, "turned and rounded": 1.001e-3, "wrong": 1e-2}

    def run(network: Any, device: Any, change: Any = None) -> list[np.ndarray]:
        if change is None:
            return [np.ones(4) + wrong.get(device, 0.0)]
        return [np.ones(4) + (1e-3 if change.seed == 23 else 1e-7 * change.roundings)]

    monkeypatch.setattr(fuzz, "trained", run)
    found = {device: fuzz.compared(network, device).what for device in wrong}
    assert found == {"turned": "agreed", "turned and rounded": "agreed", "wrong": "difference"}
    assert fuzz.compared(network, "turned", seconds=0.0).what == "difference"


def test_a_rounding_in_every_op_changes_a_little_and_goes() -> None:
    network = fuzz.random_network(1, fuzz.SMALL, alone=True)
    plain = fuzz._by_numpy(network)
    with fuzz.rounded_ops(2):
        changed = fuzz._by_numpy(network)
    again = fuzz._by_numpy(network)
    largest = max(np.abs(one - other).max() for one, other in zip(plain, changed, strict=True))
    assert 0 < largest < 0.1
    for one, other in zip(plain, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_crashes_and_hangs_are_told_with_the_network_as_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = ["import os; os._exit(3)", "import time; time.sleep(9)", "print('{}')"]
    run = fuzz.subprocess.run

    def instead(command: list[str], **options: Any) -> Any:
        program = programs[int(command[command.index("--seed") + 1])]
        if program == "print('{}')":
            program = """print('{"seed": 2, "what": "agreed", "detail": ""}')"""
        assert options["timeout"] == 0.5
        # The others may take as long as a busy machine needs to start them.
        options["timeout"] = 0.5 if "sleep" in program else 60
        return run([sys.executable, "-S", "-c", program], **options)

    monkeypatch.setattr(fuzz.subprocess, "run", instead)
    assert fuzz.main(["--count", "3", "--jobs", "3", "--small", "--timeout", "0.5"]) == 1
    said = capsys.readouterr().out
    assert "crash 1, hang 1, difference 0, agreed 1" in said
    for seed in (0, 1):
        program = fuzz.random_network(seed, fuzz.SMALL).code("cuda", {})
        assert program in said
        compile(program, "network", "exec")
