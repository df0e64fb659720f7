"""A thread through the whole house: one training step, from memory to several ranks.

Convolution, batch normalisation, dropout, LSTM, Adam with a schedule and loss scaling are one
graph. It trains on full batches and a smaller last one, on one rank and on two, planned, captured
and replayed. If the semantics of the layers did not fit together, something here would differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim
from caldera.comm import Communicator, run_virtual_ranks

IMAGE = (2, 4, 6)
FILTERS, HIDDEN, CLASSES = 3, 4, 3
BATCHES = (5, 5, 3)  # the last one is smaller


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [
        (generator.normal(size=(n, *IMAGE)), generator.integers(0, CLASSES, n)) for n in BATCHES
    ]


@dataclass
class Network:
    """The variables of the network on one rank, and its training step for any batch size."""

    device: str
    communicator: Communicator | None = None
    initial_scale: float = 1024.0
    plans: dict[int, cd.Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cd.seed(7)
        width = FILTERS * IMAGE[1]
        self.parameters = [
            self.variable("kernel", (FILTERS, IMAGE[0], 3, 3), cd.he_normal()),
            self.variable("scale", (FILTERS,), cd.one()),
            self.variable("shift", (FILTERS,), cd.zero()),
            self.variable("w_in", (width, 4 * HIDDEN), cd.glorot_uniform()),
            self.variable("w_state", (HIDDEN, 4 * HIDDEN), cd.glorot_uniform()),
            self.variable("bias", (4 * HIDDEN,), cd.zero()),
            self.variable("w_out", (HIDDEN, CLASSES), cd.glorot_uniform()),
        ]
        self.running_mean = self.variable("running mean", (FILTERS,), cd.zero())
        self.random = op.var(
            "random state", (2,), fill=np.array([11, 0]), dtype="int64", device=self.device
        )
        self.optimizer = optim.Adam(optim.Cosine(0.05, steps=20, warm_up=2))
        self.loss_scale = optim.LossScale(self.initial_scale, device=self.device)

    def variable(self, name: str, shape: tuple[int, ...], fill: cd.Filler) -> cd.Variable:
        return op.var(name, shape, fill=fill, dtype="float64", device=self.device)

    def step(self, first: int, count: int, total: int) -> cd.Plan:
        """The plan for samples first ... first + count of a batch of `total`."""
        x = op.input("x", (count, *IMAGE), dtype="float64")
        labels = op.input("labels", (count,), dtype="int64")
        kernel, scale, shift, w_in, w_state, bias, w_out = self.parameters

        maps = op.conv2d(x, kernel, padding=1)
        normal, mean = self.batch_norm(maps, scale, shift, total)
        active = op.relu(normal)
        elements = FILTERS * IMAGE[1] * IMAGE[2]
        dropped = op.dropout(active, 0.25, state=self.random, offset=first * elements, stream=3)
        columns = op.reshape(op.transpose(dropped, (3, 0, 1, 2)), (IMAGE[2], count, -1))
        last = self.lstm(columns, w_in, w_state, bias, count)
        per_sample = op.cross_entropy(last @ w_out, labels, reduction="none")
        loss = op.sum(per_sample) / float(total)

        scaled = op.grad(self.loss_scale.scaled(loss), self.parameters)
        gradients, ok = self.loss_scale.unscaled([op.all_sum(g) for g in scaled])
        updates = self.optimizer.apply(self.parameters, gradients, ok=ok)
        updates += self.loss_scale.adapted(ok)
        updates += [
            op.assign(self.running_mean, 0.9 * self.running_mean + 0.1 * mean),
            op.assign(self.random, self.random + np.array([0, 1])),
        ]
        return cd.compile([op.all_sum(loss), *updates], communicator=self.communicator)

    def batch_norm(
        self, x: cd.Expr, scale: cd.Expr, shift: cd.Expr, total: int
    ) -> tuple[cd.Expr, cd.Expr]:
        """Batch normalisation over all ranks."""
        count = float(total * IMAGE[1] * IMAGE[2])
        mean = op.all_sum(op.sum(x, axis=(0, 2, 3))) / count
        centred = x - op.reshape(mean, (1, FILTERS, 1, 1))
        variance = op.all_sum(op.sum(centred * centred, axis=(0, 2, 3))) / count
        factor = scale * op.rsqrt(variance + 1e-5)
        y = centred * op.reshape(factor, (1, -1, 1, 1)) + op.reshape(shift, (1, -1, 1, 1))
        return y, mean

    def lstm(
        self, xs: cd.Expr, w_in: cd.Expr, w_state: cd.Expr, bias: cd.Expr, count: int
    ) -> cd.Expr:
        steps, _, width = xs.shape
        inputs = op.reshape(op.reshape(xs, (steps * count, width)) @ w_in, (steps, count, -1))

        def cell(carry: tuple[cd.Expr, cd.Expr], x: cd.Expr) -> tuple[tuple[cd.Expr, ...], None]:
            h, c = carry
            i, f, g, o = op.split(x + h @ w_state + bias, 4, axis=1)
            c = op.sigmoid(f) * c + op.sigmoid(i) * op.tanh(g)
            return (op.sigmoid(o) * op.tanh(c), c), None

        zero = op.broadcast(np.zeros(()), (count, HIDDEN))
        (h, _), _ = op.scan(cell, (zero, zero), inputs)
        return h

    def train(self, *, capture: bool = False) -> list[float]:
        """One pass over the batches, each rank on its share; the losses."""
        rank = self.communicator.rank if self.communicator else 0
        size = self.communicator.size if self.communicator else 1
        losses = []
        for x, labels in batches():
            total = len(x)
            bounds = [-(-total * r // size) for r in range(size + 1)]
            first, last = bounds[rank], bounds[rank + 1]
            if total not in self.plans:
                self.plans[total] = self.step(first, last - first, total)
                if capture:
                    self.plans[total].capture()
            feeds = {"x": x[first:last], "labels": labels[first:last]}
            losses.append(self.plans[total].run(feeds)[0].item())
        return losses

    def values(self) -> list[np.ndarray]:
        state = [v for kept in self.optimizer.state.values() for v in kept.values()]
        everything = [*self.parameters, self.running_mean, *state, self.loss_scale.scale]
        return [variable.numpy() for variable in everything]


def assert_equal(a: list[np.ndarray], b: list[np.ndarray], tolerance: float) -> None:
    for left, right in zip(a, b, strict=True):
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def test_two_ranks_equal_one() -> None:
    alone = Network("cpu")
    losses = alone.train() + alone.train()
    assert losses[-1] < losses[0]

    # Made one after the other: seeding is global, and ranks here are threads of one process.
    networks = [Network(f"loopback:{rank}") for rank in range(2)]

    def work(communicator: Communicator) -> tuple[list[float], list[np.ndarray]]:
        network = networks[communicator.rank]
        network.communicator = communicator
        return network.train() + network.train(), network.values()

    (first, first_values), (second, second_values) = run_virtual_ranks(2, work)
    np.testing.assert_allclose(first, losses, rtol=1e-12)
    assert first == second
    assert_equal(first_values, second_values, 0)
    assert_equal(first_values, alone.values(), 1e-12)


def test_captured_steps_equal_planned_ones() -> None:
    planned, captured = Network("loopback:0"), Network("loopback:0")
    assert planned.train() + planned.train() == captured.train(capture=True) + captured.train()
    assert_equal(planned.values(), captured.values(), 0)


def test_the_optimised_step_equals_the_plain_one() -> None:
    optimised = Network("cpu")
    plan = optimised.step(0, 5, 5)
    assert len(plan.optimised.order()) < len(plan.original.order())
    assert plan.arena_bytes < plan.naive_bytes


def test_a_step_that_overflows_changes_nothing_but_the_scale() -> None:
    network = Network("cpu", initial_scale=2.0**24)
    network.loss_scale.scale.assign(np.float32(3e38))
    network.parameters[-1].assign(network.parameters[-1].numpy() * 1e308)
    before = [variable.numpy() for variable in network.parameters]
    x, labels = batches()[0]
    network.step(0, 5, 5).run({"x": x, "labels": labels})
    assert_equal(before, [variable.numpy() for variable in network.parameters], 0)
    assert network.optimizer.step.numpy() == 0
    assert network.loss_scale.good_steps.numpy() == 0


@pytest.mark.parametrize("device", ["cpu", "loopback:0"])
def test_the_same_seed_gives_the_same_run(device: str) -> None:
    one, other = Network(device), Network(device)
    assert one.train() == other.train()
    assert_equal(one.values(), other.values(), 0)
