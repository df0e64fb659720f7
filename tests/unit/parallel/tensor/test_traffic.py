"""What layers in parts exchange, and what a rank keeps of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.data import Share
from caldera.parallel import Hybrid, PipelineParallel, TensorParallel
from caldera.parallel.consistency import messages
from caldera.train.fit import make_steps, run_setup
from caldera.train.strategy import NO_VOTES, VOTES

SAMPLES, WIDTH, HIDDEN, CLASSES = 8, 16, 64, 4


@dataclass
class Step:
    """What a rank did in a step: its messages in words, the bytes it sent along each axis, and
    those of the parameters and of optimizer state."""

    messages: list[str]
    sent: dict[str, int]
    kept: dict[str, int]


def _steps(
    ranks: int,
    layers: Callable[[], list[nn.Layer]],
    shape: tuple[int, ...],
    make: Callable[[Communicator], Hybrid | PipelineParallel],
) -> list[Step]:
    models = [
        cd.NeuralNetwork(layers(), optimizer=optim.Adam(0.01), metrics=[], batch_size=SAMPLES)
        for _ in range(ranks)
    ]
    x = np.random.default_rng(0).normal(size=(SAMPLES, *shape)).astype("float32")
    y = np.arange(SAMPLES) % CLASSES

    def work(comm: Communicator) -> Step:
        strategy, model = make(comm), models[comm.rank]
        strategy.begin(run_setup(model, strategy))
        steps = make_steps(model, cd.data.ArrayData(x, y), strategy)
        share = Share.of(0, SAMPLES, SAMPLES, *strategy.reader)
        plan = steps.training(share)
        strategy.shard()
        own = slice(share.first, share.first + len(share))
        feeds = steps.feeds((x[own], y[own]), None) | {VOTES: NO_VOTES}
        axes = {**strategy.plan_communicator.axes, "all": strategy.plan_communicator}
        before = {name: each.traffic.mark() for name, each in axes.items()}
        plan.run({name: each for name, each in feeds.items() if name in plan.inputs})
        sent = {n: e.traffic.since(before[n]).total.bytes_sent for n, e in axes.items()}
        kept = {
            each.symbol.name: sum(v.node.spec.nbytes for v in model.optimizer.kept_for(each))
            + each.node.spec.nbytes
            for each in model.optimizer.state
        }
        return Step(messages(plan), sent, kept)

    return run_virtual_ranks(ranks, work)


def block() -> list[nn.Layer]:
    """A layer that is left whole, and two that are not."""
    return [
        nn.Input((WIDTH,)),
        nn.Dense(WIDTH, bias=False, name="before"),
        nn.Dense(HIDDEN, activation="relu", name="up"),
        nn.Dense(CLASSES, name="down"),
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_pair_of_layers_needs_one_exchange_each_way(ranks: int) -> None:
    splits = {"up": "auto", "down": "auto"}
    found = _steps(
        ranks,
        block,
        (WIDTH,),
        lambda comm: TensorParallel(splits, algorithm="ring", communicator=comm),
    )
    along = [each for each in found[0].messages if "along model" in each]
    assert along == [f"sum along model of ({SAMPLES}, {CLASSES}) float32"] * 2
    for step in found:
        # A ring sends 2 (n-1)/n of what is summed.
        assert step.sent["model"] == 2 * 2 * (ranks - 1) * SAMPLES * CLASSES * 4 // ranks
        assert step.sent["data"] == 0
        # The weight and two averages of Adam: 1/n of those that are split, and biases of "up".
        assert step.kept["up/weight"] == 3 * WIDTH * HIDDEN * 4 // ranks
        assert step.kept["up/bias"] == 3 * HIDDEN * 4 // ranks
        assert step.kept["down/weight"] == 3 * HIDDEN * CLASSES * 4 // ranks
        assert step.kept["before/weight"] == 3 * WIDTH * WIDTH * 4
        assert step.kept["down/bias"] == 3 * CLASSES * 4


def images() -> list[nn.Layer]:
    return [
        nn.Input((2, 4, 4)),
        nn.Conv2D(4, 3, padding=1, activation="relu", name="conv"),
        nn.Flatten(),
        nn.Dense(HIDDEN, activation="relu", name="up"),
        nn.Dense(CLASSES, name="down"),
    ]


def test_data_parallel_convolutions_before_model_parallel_layers() -> None:
    """Each rank convolves two of eight images. Their features are gathered, and the gradients of
    these come back to the ranks that have the images; large weights never move."""
    ranks, features = 4, 4 * 4 * 4
    found = _steps(
        ranks,
        images,
        (2, 4, 4),
        lambda comm: Hybrid(
            {"model": ranks},
            {"up": "auto", "down": "auto"},
            samples="all",
            algorithm="ring",
            communicator=comm,
        ),
    )
    own = SAMPLES // ranks * features
    along = [each for each in found[0].messages if "along model" in each]
    assert along == [
        f"gather along model of ({own},) float32",
        f"sum along model of ({SAMPLES}, {CLASSES}) float32",
        # Of the loss a rank has that of its own samples: their sum is for the history alone.
        "sum along model of () float32",
        f"sum along model of ({SAMPLES}, {CLASSES}) float32",
        f"scatter along model of ({ranks * own},) float32",
    ]
    moved = 2 * (ranks - 1) * own * 4
    summed = 2 * 2 * (ranks - 1) * SAMPLES * CLASSES * 4 // ranks
    for step in found:
        # The loss is one number more.
        assert 0 < step.sent["model"] - moved - summed <= 2 * (ranks - 1) * 4
    # The gradients of what all ranks have: of the convolution, and the last bias.
    assert found[0].messages[-1] == (
        "sum along all of (4,) float32, (4,) float32, (4, 2, 3, 3) float32"
    )


def test_attention_and_its_block_need_two_exchanges_each_way() -> None:
    def layers() -> list[nn.Layer]:
        return [
            nn.Input((3, WIDTH)),
            nn.TransformerBlock(4),
            nn.GlobalAveragePool(),
            nn.Dense(CLASSES),
        ]

    found = _steps(2, layers, (3, WIDTH), lambda comm: TensorParallel(least=256, communicator=comm))
    along = [each for each in found[0].messages if "along model" in each]
    assert along == [f"sum along model of ({3 * SAMPLES}, {WIDTH}) float32"] * 4


def test_small_layers_are_left_whole() -> None:
    found = _steps(2, block, (WIDTH,), lambda comm: TensorParallel(communicator=comm))
    assert not any("along model" in each for each in found[0].messages)


@pytest.mark.parametrize(("cut", "crossing"), [("up", WIDTH), ("down", HIDDEN // 2)])
def test_whole_values_cross_a_cut_on_every_rank_and_parts_as_parts(cut: str, crossing: int) -> None:
    """Each rank sends to that with its place in the next stage, and gets as much back."""
    splits = {"up": "outputs", "down": "inputs"}
    found = _steps(
        4,
        block,
        (WIDTH,),
        lambda comm: PipelineParallel(
            [cut], micro_batches=2, model=2, splits=splits, communicator=comm
        ),
    )
    for step in found:
        assert step.sent["pipeline"] == SAMPLES * crossing * 4
        assert step.kept["up/weight"] == 3 * WIDTH * HIDDEN * 4 // 2
    # Of a layer that is whole, ranks of its stage have terms of the gradient.
    first = [each for each in found[0].messages if "along stage" in each]
    assert first == [f"sum along stage of ({WIDTH}, {WIDTH}) float32"]
