"""Sharded training equals one process, moves the bytes it should, and saves the memory it says."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.parallel import DataParallel, Sharded
from caldera.train.fit import make_steps, run_setup
from caldera.train.strategy import NO_VOTES, VOTES, Strategy
from tests.unit.parallel.ranks import (
    Trained,
    alone,
    assert_close,
    network,
    samples,
    strategies_of,
    trained,
)

sharded = strategies_of(Sharded)

OPTIMIZERS = {
    "momentum": lambda: optim.SGD(0.1, momentum=0.9),
    "adam": lambda: optim.Adam(0.01),
    "lars": lambda: optim.LARS(optim.LinearWarmUp(3, then=0.5), weight_decay=1e-2),
    "lamb and clipping": lambda: optim.LAMB(0.01, clip=optim.ClipNorm(0.1)),
    "accumulated": lambda: optim.SGD(0.1, momentum=0.9, accumulate=2),
    "groups": lambda: optim.SGD(0.1, weight_decay=0.1, groups=[optim.Group("bias", 2.0, 0.0)]),
}


@cache
def one_process(dtype: str, count: int, optimizer: str = "momentum") -> Trained:
    made = partial(network, OPTIMIZERS[optimizer], dtype=dtype)
    held_out = samples(7, dtype) if optimizer == "momentum" else None
    return alone(made, samples(count, dtype), validation=held_out)


@pytest.mark.parametrize(
    ("dtype", "count", "stage", "ranks", "options"),
    [
        ("float32", 10, 1, 3, {}),
        ("float32", 10, 2, 2, {}),
        ("float32", 10, 3, 3, {}),
        ("float64", 50, 1, 2, {"bucket_bytes": 1}),
        ("float64", 50, 2, 3, {"bucket_bytes": 100}),
        ("float64", 50, 3, 3, {"bucket_bytes": 1}),
        ("float64", 50, 3, 2, {"overlap": False}),
    ],
)
def test_every_stage_equals_one_process(
    dtype: str, count: int, stage: int, ranks: int, options: dict[str, Any]
) -> None:
    found = trained(
        ranks,
        partial(network, OPTIMIZERS["momentum"], dtype=dtype),
        sharded(stage, **options),
        samples(count, dtype),
        watch=False,
        validation=samples(7, dtype),
    )
    assert found.same_on_all_ranks()
    assert_close(found, one_process(dtype, count))


@pytest.mark.parametrize("optimizer", sorted({*OPTIMIZERS} - {"momentum"}))
def test_every_optimizer_does(optimizer: str) -> None:
    """Momentum is above, in every stage."""
    make = partial(network, OPTIMIZERS[optimizer])
    found = trained(2, make, sharded(2, bucket_bytes=100), samples(50), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, one_process("float64", 50, optimizer), 1e-12)


def test_half_precision_with_a_loss_scale() -> None:
    make = partial(network, "momentum", dtype="float32", precision="float16")
    data = samples(40, "float32")
    found = trained(2, make, sharded(2), data, watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data), 2e-2)


def test_one_strategy_goes_on_where_another_ended() -> None:
    """What an optimizer keeps is whole between runs."""
    models = [network(OPTIMIZERS["adam"]) for _ in range(2)]

    def work(comm: Communicator) -> None:
        for strategy in (Sharded(3, communicator=comm), DataParallel(communicator=comm)):
            models[comm.rank].fit(samples(20), parallel=strategy, verbose=0)

    run_virtual_ranks(2, work)
    expected = network(OPTIMIZERS["adam"])
    for _ in range(2):
        expected.fit(samples(20), verbose=0)
    assert_close(Trained(list(models), [cd.History()]), Trained([expected], [cd.History()]), 1e-12)


# --- bytes and memory

WIDE = 64
ELEMENTS = 4 * WIDE * WIDE


def wide() -> cd.NeuralNetwork:
    """Four square layers: what they have divides by any small number of ranks."""
    layers = [nn.Input((WIDE,)), *[nn.Dense(WIDE, activation="tanh", bias=False) for _ in range(4)]]
    return cd.NeuralNetwork(
        layers, loss="mse", optimizer=optim.Adam(0.01), metrics=[], batch_size=8
    )


def _measured(ranks: int, make: Any) -> list[tuple[int, int, int]]:
    """For each rank the bytes it sends in a step, those of its arena, and those it keeps."""
    models = [wide() for _ in range(ranks)]
    x = np.random.default_rng(0).normal(size=(8, WIDE)).astype("float32")

    def work(comm: Communicator) -> tuple[int, int, int]:
        strategy: Strategy = make(comm)
        model = models[comm.rank]
        strategy.begin(run_setup(model, strategy))
        steps = make_steps(model, cd.data.ArrayData(x, x), strategy)
        share = Share.of(0, 8, 8, comm.rank, comm.size)
        plan = steps.training(share)
        strategy.shard()
        feeds = steps.feeds((x[: len(share)], x[: len(share)]), None) | {VOTES: NO_VOTES}
        plan.run(feeds)
        mark = strategy.plan_communicator.traffic.mark()
        plan.run(feeds)
        sent = strategy.plan_communicator.traffic.since(mark).total.bytes_sent
        kept = sum(
            symbol.spec.nbytes
            for symbol in plan.symbols
            if symbol.role == "variable" and symbol.spec.size > 8
        )
        return sent, plan.arena_bytes, kept

    return run_virtual_ranks(ranks, work)


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_and_memory_are_what_the_formulas_say(ranks: int) -> None:
    whole = 4 * ELEMENTS
    one_way = whole * (ranks - 1) // ranks
    rows = {
        "data": _measured(ranks, lambda comm: DataParallel(communicator=comm, algorithm="ring")),
        **{
            f"stage {stage}": _measured(ranks, sharded(stage, bucket_bytes=1))
            for stage in (1, 2, 3)
        },
    }
    # Beside the gradients, a step sums its loss and their votes: a hundred bytes or so.
    sent = {name: max(each[0] for each in found) for name, found in rows.items()}
    # The backward pass needs the weights of all four layers but the first.
    for name, times in {"data": 2, "stage 1": 2, "stage 2": 2, "stage 3": 3 - 1 / 4}.items():
        assert 0 <= sent[name] - times * one_way < 1000, name
    kept = {name: max(each[2] for each in found) for name, found in rows.items()}
    # The parameters, and Adam's two averages of each.
    assert kept == {"data": 3 * whole} | {f"stage {s}": 3 * whole // ranks for s in (1, 2, 3)}
    arena = {name: max(each[1] for each in found) for name, found in rows.items()}
    assert arena["stage 1"] > arena["stage 2"] > arena["stage 3"]


def test_the_forward_pass_begins_before_large_parameters_are_there() -> None:
    """A message that is not full would be filled up by the large layer that comes next."""
    layers = [nn.Input((64,)), nn.Dense(200, activation="relu"), nn.Dense(1500)]
    models = [cd.NeuralNetwork(layers, loss="mse", batch_size=8) for _ in range(2)]

    def work(comm: Communicator) -> list[str]:
        model, strategy = models[comm.rank], Sharded(bucket_bytes=1 << 20, communicator=comm)
        strategy.begin(run_setup(model, strategy))
        x, y = np.zeros((8, 64), "float32"), np.zeros((8, 1500), "float32")
        steps = make_steps(model, cd.data.ArrayData(x, y), strategy)
        plan = steps.training(Share.of(0, 8, 8, comm.rank, comm.size))
        nodes = [step.node for step in plan.schedule.steps]
        is_gather = [getattr(n.attrs.get("message"), "kind", "") == "gather" for n in nodes]
        return [
            n.op.kind if n.op.kind == "product" else "arrived"
            for n, waits in zip(nodes, is_gather, strict=True)
            if (waits and n.op.name == "collective_finish") or n.op.kind == "product"
        ]

    first_layer, second_layer = "product", "product"
    order = run_virtual_ranks(2, work)[0]
    assert order[:4] == ["arrived", first_layer, "arrived", second_layer]


def test_while_steps_run_a_rank_has_only_parts_of_the_parameters() -> None:
    seen: list[str] = []

    class Nosy(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            try:
                run.model.parameters()[0].numpy()
            except ConfigError as error:
                seen.append(str(error))

        def epoch_ends(self, run: cd.Run) -> None:
            assert np.isfinite(run.model.parameters()[0].numpy()).all()

    models = [network() for _ in range(2)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(
            samples(10), parallel=Sharded(3, communicator=comm), verbose=0, callbacks=[Nosy()]
        )

    run_virtual_ranks(2, work)
    assert len(seen) == 2
    assert "expected access between epochs" in seen[0]


def test_an_optimizer_that_needs_the_whole_parameter_is_refused() -> None:
    class Centred(optim.Optimizer):
        def update(
            self, parameter: Any, gradient: Any, state: Any, rate: Any, step: Any
        ) -> tuple[Any, dict[str, Any]]:
            return parameter - rate * (gradient - op.mean(gradient)), {}

    models = [network(lambda: Centred(0.1)) for _ in range(2)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(samples(10), parallel=Sharded(1, communicator=comm), verbose=0)

    with pytest.raises(ConfigError, match=r"Centred: .* use optim.total and optim.length"):
        run_virtual_ranks(2, work)


def test_a_stage_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="stage 1, 2 or 3"):
        Sharded(4)
