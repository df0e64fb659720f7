"""Programs of one structure are optimised once, and each computes with its own variables."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes import structure_cache
from caldera.compiler.passes.pipeline import optimise
from caldera.compiler.passes.structure_cache import StructureCache
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from caldera.kernels.table import TABLE


class Counted(StructureCache):
    """A cache that counts how often it had to ask."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def of(self, *outputs: Expr, updates: tuple[Expr, ...] = (), how: str = "") -> Program:
        program = program_of([each.node for each in outputs], [each.node for each in updates])
        made = self.optimised(program, how, self._optimise)
        verify(made)
        return made

    def _optimise(self, program: Program) -> Program:
        self.asked += 1
        time.sleep(0.001)  # so that another thread comes meanwhile
        return optimise(program, has_kernel=lambda name: TABLE.has(name, "cpu"), channels_last=True)


def step(fill: float, width: int = 3) -> tuple[Expr, Expr]:
    """A loss, and the update of a variable that is not part of it."""
    w = op.var("w", (4, width), fill=cd.constant(fill))
    seen = op.var("seen", (), fill=cd.constant(0.0))
    image = op.reshape(op.relu(w * 2.0 + np.arange(width, dtype=np.float32)), (1, 1, 4, width))
    return op.sum(op.conv2d(image, np.ones((1, 1, 2, 2), np.float32))), op.assign(seen, fill)


def symbols(program: Program) -> list[object]:
    leaves = [node.attrs.get("symbol") for node in program.order()]
    changed = [symbol for symbol, _ in program.updates]
    return [each for each in [*leaves, *changed] if each is not None and each.role != "array"]


def test_a_second_program_of_the_same_structure_is_not_optimised_again() -> None:
    cache = Counted()
    made = []
    for fill in (1.0, 1.0):
        loss, update = step(fill)
        made.append(cache.of(loss, updates=(update,)))
        program = program_of([loss.node], [update.node])
        # As if there were no cache: its own variables, in the same places.
        plain = cache._optimise(program)
        assert symbols(made[-1]) == symbols(plain)
        assert [str(node) for node in made[-1].order()] == [str(node) for node in plain.order()]
    assert cache.asked == 1 + 2
    assert not set(symbols(made[0])) & set(symbols(made[1]))


def test_what_differs_in_structure_is() -> None:
    cache = Counted()
    x, y = (op.var(name, (3,), fill=cd.constant(1.0)) for name in "xy")
    different = [
        (x * y,),
        (x * x,),
        (x - y,),
        (x * y, x - y),
        (x * 2.0,),
        (x * 3.0,),
        (x + np.array([1, 2, 3], np.float32),),
        (x + np.array([1, 2, 4], np.float32),),
        (op.var("z", (3,), fill=cd.constant(1.0), dtype="float64") * 2.0,),
        (op.var("z", (4,), fill=cd.constant(1.0)) * 2.0,),
        (cd.tensor(np.ones(3, np.float32)) * 2.0,),
    ]
    for outputs in different:
        cache.of(*outputs)
    assert cache.asked == len(different)
    cache.of(x * y, how="another device")
    assert cache.asked == len(different) + 1
    # And what does not differ: other variables, the same numbers.
    for outputs in ((y * x,), (y - x,), (y + np.array([1, 2, 4], np.float32),)):
        cache.of(*outputs)
    assert cache.asked == len(different) + 1


def test_few_are_kept_and_none_that_holds_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure_cache, "REMEMBERED", 2)
    cache = Counted()
    x = op.var("x", (3,), fill=cd.constant(1.0))
    for factor in (2.0, 3.0, 4.0, 3.0, 4.0, 2.0):
        cache.of(x * factor)
    assert cache.asked == 4
    cache.clear()
    big = np.arange(structure_cache.LARGEST_ARRAY, dtype=np.float32)
    for _ in range(2):
        cache.of(op.sum(op.cast(big, "float64")) * x)
    assert cache.asked == 6
    assert not cache._known


def test_threads_that_want_the_same_make_it_once() -> None:
    cache = Counted()
    losses = [step(1.0)[0] for _ in range(4)]
    threads = [threading.Thread(target=cache.of, args=(loss,)) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.asked == 1


def test_networks_of_the_same_layers_learn_what_is_theirs() -> None:
    """Two of them in turn: plans of one structure share nothing that a run changes."""
    x, y = np.eye(6, dtype=np.float32), np.arange(6) % 3

    def model(seed: int) -> cd.NeuralNetwork:
        layers = [nn.Input((6,)), nn.Dense(4), nn.BatchNorm(), nn.Dropout(0.3), nn.Dense(3)]
        return cd.NeuralNetwork(layers, optimizer="adam", batch_size=4, seed=seed)

    def learned(made: cd.NeuralNetwork) -> list[bytes]:
        made.fit((x, y), epochs=1, verbose=0)
        return [each.numpy().tobytes() for each in made.parameters()]

    one, other = model(1), model(2)
    in_turn = [learned(each) for each in (one, other, one, other)]
    alone = []
    for seed in (1, 2):
        cd.forget_plans()
        made = model(seed)
        alone.append([learned(made), learned(made)])
    assert in_turn[0::2] == alone[0]
    assert in_turn[1::2] == alone[1]
