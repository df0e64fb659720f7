"""What ranks send while they train, counted."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import caldera as cd
from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.traffic import Traffic
from caldera.parallel.planner import Way
from caldera.parallel.planner.ranking import build_strategy


def sent_in_a_step(
    make: Callable[[], cd.NeuralNetwork],
    way: Way,
    ranks: int,
    features: int,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> float:
    """The bytes of the rank that sends most, with all its communicators.

    What a run of so many steps sends more than one of a single step. Runs are counted when they
    have ended: servers answer from threads of their own, so that in the midst of a run nobody can
    tell which step a message belongs to.
    """
    once = _sent_in_a_run(make, way, ranks, features, 1, monkeypatch)
    more = _sent_in_a_run(make, way, ranks, features, 1 + steps, monkeypatch)
    return max(long - short for long, short in zip(more, once, strict=True)) / steps


def _sent_in_a_run(
    make: Callable[[], cd.NeuralNetwork],
    way: Way,
    ranks: int,
    features: int,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> list[int]:
    made: dict[int, list[Traffic]] = {}
    before = Traffic.__init__

    def noted(self: Traffic) -> None:
        before(self)
        made.setdefault(threading.get_ident(), []).append(self)

    models = [make() for _ in range(ranks)]
    samples = steps * models[0].batch_size
    x = np.ones((samples, features), np.float32)
    y = np.zeros(samples, np.int64)

    def trained(comm: Communicator) -> list[Traffic]:
        strategy = build_strategy(way, ranks, comm)
        models[comm.rank].fit((x, y), parallel=strategy, verbose=0)
        return made[threading.get_ident()]

    with monkeypatch.context() as patch:
        patch.setattr(Traffic, "__init__", noted)
        counted = run_virtual_ranks(ranks, trained)
    # Before the first step ranks are told of kernels, in as many words as were measured.
    return [
        sum((each.total - each.mark()["bcast_object"]).bytes_sent for each in traffics)
        for traffics in counted
    ]
