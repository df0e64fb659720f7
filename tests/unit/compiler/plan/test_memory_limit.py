"""Plans under `settings.memory_limit`: what is dropped and computed again changes no bit."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import comm, nn, op
from caldera.base.config import settings
from caldera.compiler.lazy import Expr
from caldera.compiler.plan import timing
from caldera.compiler.plan.memory_limit import room_for
from caldera.compiler.plan.plan import Plan
from caldera.compiler.plan.timing import StepSeconds
from caldera.core.memory.pool import size_class
from caldera.errors import OutOfMemoryError
from caldera.nn import Layer

AMPLE = 1 << 40


def random_layers(seed: int) -> tuple[list[Layer], tuple[int, ...]]:
    """A small network of all kinds of layers, with values that the gradients need."""
    draw = np.random.default_rng(seed)
    layers: list[Layer] = []
    if seed % 3 == 2:
        for _ in range(3):
            layers += [nn.TransformerBlock(heads=2, dropout=0.1)]
        return [*layers, nn.Flatten(), nn.Dense(5)], (8, 12)
    images = seed % 3 == 0
    for _ in range(5):
        activation: Layer = draw.choice([nn.ReLU(), nn.Tanh(), nn.GELU()])  # type: ignore[arg-type]
        width = int(draw.choice([6, 10]))
        heavy: Layer = nn.Conv2D(width, 3, padding="same") if images else nn.Dense(8 * width)
        layers += [heavy, nn.BatchNorm() if draw.random() < 0.6 else nn.Dropout(0.2), activation]
    inner: list[Layer] = [
        nn.Conv2D(width, 3, padding="same") if images else nn.Dense(8 * width),
        nn.BatchNorm(),
    ]
    layers.append(nn.Residual(inner))
    return [*layers, nn.Flatten(), nn.Dense(5)], ((3, 8, 8) if images else (40,))


def step_of(seed: int) -> list[Expr]:
    """The loss of a random network, its gradients and what batch norm keeps."""
    layers, shape = random_layers(seed)
    draw = np.random.default_rng(seed)
    x = cd.tensor(draw.normal(size=(48, *shape)).astype("float32"))
    target = cd.tensor(draw.integers(0, 5, 48))
    net = nn.Sequential(layers)
    with nn.trace(training=True, random=op.random_state()) as traced:
        loss = op.cross_entropy(net(x), target)
    return [loss, *op.grad(loss, net.parameters()), *traced.updates]


def fitted(device: str) -> list[np.ndarray]:
    """The parameters of a small network after three steps."""
    draw = np.random.default_rng(0)
    data = draw.normal(size=(64, 40)).astype("float32"), draw.integers(0, 5, 64)
    hidden = [layer for _ in range(6) for layer in (nn.Dense(64), nn.GELU(), nn.Dropout(0.1))]
    model = cd.NeuralNetwork(
        [nn.Input((40,)), *hidden, nn.Dense(5)],
        optimizer="sgd",
        learning_rate=0.1,
        batch_size=64,
        seed=0,
        device=device,
    )
    model.fit(data, epochs=3, verbose=0)
    return [each.numpy() for each in model.parameters()]


def limit_for(plan: Plan, arena_bytes: int) -> int:
    """The limit that leaves so many bytes to the arena of a plan."""
    # A plan under a tight limit does that first, and would find more room than is counted here.
    gc.collect()
    with settings.override(memory_limit=AMPLE):
        room = room_for(plan.optimised, plan.device)
    assert room is not None
    return AMPLE - room.arena + arena_bytes


def assert_same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def limited_to(wanted: list[Expr], arena_bytes: int) -> Plan:
    """A plan for them whose arena has so much room, or the least that is possible."""
    limit = limit_for(cd.compile(wanted, remember=False), arena_bytes)
    try:
        with settings.override(memory_limit=limit):
            plan = cd.compile(wanted, remember=False)
        assert size_class(plan.arena_bytes) <= arena_bytes
    except OutOfMemoryError as error:
        # What it says would be enough is.
        said = re.search(r"set it to (\d+) or more", str(error))
        assert said is not None
        assert int(said[1]) > limit
        with settings.override(memory_limit=int(said[1])):
            plan = cd.compile(wanted, remember=False)
    return plan


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_limit_is_met_and_changes_no_bit(seed: int) -> None:
    wanted = step_of(seed)
    plan = cd.compile(wanted, remember=False)
    values, before = [each.numpy() for each in plan.run()], plan.arena_bytes
    for part in (0.8, 0.3):
        limited = limited_to(wanted, int(part * before))
        assert limited.arena_bytes < before
        assert any(step.is_again for step in limited.schedule.steps)
        assert_same([each.numpy() for each in limited.run()], values)


def test_what_fits_is_left_as_it_is() -> None:
    wanted = chain(8)
    plan = cd.compile(wanted, remember=False)
    with settings.override(memory_limit=limit_for(plan, 2 * plan.arena_bytes)):
        other = cd.compile(wanted, remember=False)
    assert other.arena_bytes == plan.arena_bytes
    assert "memory_limit" not in str(other.explain(time=False))


def test_training_on_a_device_stays_below_the_limit() -> None:
    pool = cd.device("loopback").pool
    gc.collect()
    # The limit is that of the host's pool as well, in which other tests may have left more.
    more = max(0, cd.device("cpu").pool.in_use + (1 << 20) - pool.in_use)
    ballast = cd.Tensor((more // 4,), device="loopback")
    # Else kernels would be measured in the first fit, and be known in the second.
    with settings.override(resident_fraction=0.0, deterministic=True):
        pool.reset_peak()
        before = pool.in_use
        wanted = fitted("loopback")
        needed = pool.peak - before
        cd.forget_plans()
        cd.device("loopback").trim()
        pool.reset_peak()
        limit = pool.in_use + int(0.8 * needed)
        with settings.override(memory_limit=limit):
            found = fitted("loopback")
    assert pool.peak <= limit
    assert_same(found, wanted)
    del ballast


def chain(count: int, device: str = "cpu") -> list[Expr]:
    """A loss and its gradient through `count` layers that each keep one value for it."""
    x = cd.tensor(np.linspace(-1, 1, 256 * 64, dtype="float32").reshape(256, 64))
    x = x.to(device=device)
    weight = op.var("weight", (64, 64), fill=cd.identity(), device=device)
    y: Expr | cd.Tensor = x
    for _ in range(count):
        y = op.tanh(y @ weight)
    loss = op.mean(op.square(y))
    return [loss, op.grad(loss, weight)]


def test_the_explanation_names_what_is_computed_again() -> None:
    wanted = chain(12)
    plan = cd.compile(wanted, remember=False)
    values = [each.numpy() for each in plan.run()]
    with settings.override(memory_limit=limit_for(plan, int(0.7 * plan.arena_bytes))):
        limited = cd.compile(wanted, remember=False)
    found = limited.explain()
    assert found.recomputed
    assert "again: " in str(found)
    assert re.search(
        r"settings.memory_limit: .* dropped and computed again by \d+ steps", str(found)
    )
    assert_same([each.numpy() for each in limited.run()], values)


def test_a_long_chain_is_run_in_a_small_part_of_its_memory() -> None:
    """With checkpoints a chain needs memory as the root of its length, in twice the time."""
    wanted = chain(64)
    plan = cd.compile(wanted, remember=False)
    with settings.override(memory_limit=limit_for(plan, plan.arena_bytes * 2 // 5)):
        limited = cd.compile(wanted, remember=False)
    again = sum(step.is_again for step in limited.schedule.steps)
    assert again <= len(plan.schedule.steps)


def test_messages_are_sent_once() -> None:
    """Ranks count them: what came from others is kept."""

    def step(communicator: Any) -> bool:
        wanted = [op.all_sum(each, axis="data") for each in chain(12)]
        options = {"communicator": communicator.Dup(), "remember": False}
        plan = cd.compile(wanted, **options)
        values = [each.numpy() for each in plan.run()]
        limit = limit_for(plan, int(0.6 * plan.arena_bytes))
        with settings.override(memory_limit=limit):
            limited = cd.compile(wanted, **options)
        assert_same([each.numpy() for each in limited.run()], values)
        return any(step.is_again for step in limited.schedule.steps)

    assert all(comm.run_virtual_ranks(1, step))


def test_a_device_may_have_the_host_keep_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where copying is quicker than computing again."""
    monkeypatch.setattr(StepSeconds, "_bandwidth", 1e15)
    monkeypatch.setattr(timing, "LAUNCH_S", 0.0)
    wanted = chain(12, "loopback")
    plan = cd.compile(wanted, remember=False)
    values = [each.numpy() for each in plan.run()]
    # The limit goes for the host's memory as well: this much is in use on the device alone.
    ballast = cd.device("loopback").allocate(cd.device("cpu").pool.in_use + (1 << 20))
    with settings.override(memory_limit=limit_for(plan, int(0.7 * plan.arena_bytes))):
        limited = cd.compile(wanted, remember=False)
    found = limited.explain()
    assert {row.transfer for row in found.offloaded} == {"to host", "from host"}
    assert "copied to the host and back" in str(found)
    assert limited.arena_bytes <= 0.7 * plan.arena_bytes
    assert_same([each.numpy() for each in limited.run()], values)
    limited.capture()
    assert_same([each.numpy() for each in limited.run()], values)
    del ballast
