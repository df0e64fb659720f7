"""Random numbers belong to a model or to a thread: nobody else's work changes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import Expr


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What threads give that begin at the same time."""
    barrier, found = threading.Barrier(count), [None] * count

    def begin(number: int) -> None:
        barrier.wait()
        found[number] = work(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def weights(seed: int) -> bytes:
    layers = [nn.Input((3,)), nn.Dense(4), nn.Dense(4), nn.Dense(2)]
    model = cd.NeuralNetwork(layers, seed=seed)
    return b"".join(each.numpy().tobytes() for each in model.parameters())


def test_models_made_at_once_have_their_own_seeds() -> None:
    alone = [weights(seed) for seed in range(3)]
    for _ in range(15):
        assert together(3, weights) == alone


def test_a_thread_that_sets_a_seed_draws_for_itself() -> None:
    def draws(seed: int) -> list[float]:
        cd.seed(seed)
        found = []
        for _ in range(10):
            found += cd.Tensor((2,), fill=cd.uniform()).tolist()
        return found

    alone = [draws(seed) for seed in range(3)]
    cd.seed(11)
    for _ in range(5):
        assert together(3, draws) == alone
    state = together(2, lambda number: (cd.seed(number), op.random_state().numpy().tolist())[1])
    assert state == [[0, 0], [1, 0]]
    assert op.random_state().numpy().tolist() == [11, 0]


def test_a_model_leaves_the_seed_of_the_program_alone() -> None:
    cd.seed(11)
    expected = cd.Tensor((4,), fill=cd.uniform()).tolist()
    cd.seed(11)
    weights(3)
    assert cd.Tensor((4,), fill=cd.uniform()).tolist() == expected


class Noisy(cd.Model):
    """What `forward` draws by itself is that of the model, and new in each step."""

    def __init__(self, seed: int) -> None:
        super().__init__(loss="mse", optimizer="sgd", learning_rate=1e-9, batch_size=4, seed=seed)
        self.last = nn.Dense(1, fill=0.0)

    def forward(self, x: Expr) -> Expr:
        return self.last(x) + op.random_normal((x.shape[0], 1))


def test_random_numbers_of_a_forward_follow_the_model() -> None:
    x, y = np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32")

    def losses(seed: int) -> list[float]:
        return Noisy(seed).fit((x, y), epochs=3, verbose=0)["loss"]

    first = losses(5)
    cd.seed(9)
    assert losses(5) == first
    assert losses(6) != first
    assert len(set(first)) == 3


def test_every_seed_can_train() -> None:
    x, y = np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32")
    Noisy(2**64 - 1).fit((x, y), verbose=0)
