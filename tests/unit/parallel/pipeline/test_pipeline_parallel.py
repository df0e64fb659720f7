"""A pipeline equals one process, whatever the stages, parts and schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.base.config import settings
from caldera.comm import Communicator, Mesh, run_virtual_ranks
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.ops.collective import turn
from caldera.errors import CommError, ConfigError, NonFiniteError
from caldera.parallel import DataParallel, PipelineParallel
from caldera.parallel.pipeline import stage_partition
from caldera.train.fit import run_setup
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    Trained,
    alone,
    assert_close,
    network,
    samples,
    strategies_of,
    trained,
    values,
)

pipeline = strategies_of(PipelineParallel)


def dense(**more: Any) -> cd.NeuralNetwork:
    """Five layers that differ, with dropout between them."""
    layers = [
        nn.Input((FEATURES,)),
        nn.Dense(7, activation="tanh"),
        nn.Dropout(0.3),
        nn.Dense(5),
        nn.ReLU(),
        nn.Dense(6, activation="relu"),
        nn.Dense(CLASSES),
    ]
    return network(layers=layers, **more)


def normalised(**more: Any) -> cd.NeuralNetwork:
    layers = [
        nn.Input((FEATURES,)),
        nn.Dense(5, bias=False),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.Dense(4),
        nn.BatchNorm(),
        nn.Dense(CLASSES),
    ]
    return network(layers=layers, **more)


@cache
def one_process(dtype: str, count: int) -> Trained:
    return alone(partial(dense, dtype=dtype), samples(count, dtype), validation=samples(7, dtype))


# One step in float32, three in float64; ten samples do not divide by three, four or eight parts.
# Pipelines of four stages are below, where values cross cuts.
@pytest.mark.parametrize(
    ("ranks", "options", "dtype", "count"),
    [
        (1, {}, "float64", 27),
        (2, {}, "float32", 10),
        (2, {"micro_batches": 1}, "float64", 27),
        (3, {"schedule": "fill-drain"}, "float64", 27),
        (3, {"micro_batches": 8}, "float64", 27),
        (4, {"data": 2}, "float64", 27),
        (4, {"data": 2, "schedule": "fill-drain", "micro_batches": 3}, "float64", 27),
    ],
)
def test_it_equals_one_process_on_the_whole_batch(
    ranks: int, options: dict[str, Any], dtype: str, count: int
) -> None:
    """Dropout has the same masks, and the last batch is smaller than others."""
    found = trained(
        ranks,
        partial(dense, dtype=dtype),
        pipeline(**options),
        samples(count, dtype),
        watch=False,
        validation=samples(7, dtype),
    )
    assert found.same_on_all_ranks()
    assert_close(found, one_process(dtype, count))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: optim.LARS(optim.LinearWarmUp(3, then=0.5), weight_decay=1e-2),
        lambda: optim.LAMB(0.01, clip=optim.ClipNorm(0.1)),
        lambda: optim.SGD(0.1, momentum=0.9, accumulate=2, clip=optim.ClipNorm(0.01)),
        lambda: optim.SGD(0.1, weight_decay=0.1, groups=[optim.Group("bias", 2.0, 0.0)]),
    ],
    ids=["lars", "lamb and clipping", "accumulated", "groups"],
)
def test_every_optimizer_does(optimizer: Any) -> None:
    """Also where it needs something of the gradients of all stages."""
    make = partial(dense, optimizer=optimizer)
    found = trained(3, make, pipeline(micro_batches=2), samples(30), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(30)), 1e-12)


def test_a_stage_may_have_no_parameters() -> None:
    """It takes part in what all stages need, all the same."""
    make = partial(dense, optimizer=lambda: optim.SGD(0.1, clip=optim.ClipNorm(0.01)))
    stages = ["2-Dropout", "3-Dense", "4-ReLU"]
    found = trained(4, make, pipeline(stages, micro_batches=2), samples(20), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(20)), 1e-12)


def test_a_bias_of_one_number_stays_in_its_stage() -> None:
    """The norm of all gradients is what all stages need, and no parameter."""

    def make() -> cd.NeuralNetwork:
        layers = [
            nn.Input((FEATURES,)),
            nn.Dense(1, activation="tanh"),
            nn.LayerNorm(),
            nn.Dense(CLASSES),
        ]
        return network(layers=layers, optimizer=optim.SGD(0.1, clip=optim.ClipNorm(0.01)))

    found = trained(3, make, pipeline(micro_batches=2), samples(20), watch=False)
    assert_close(found, alone(make, samples(20)), 1e-12)


def test_samples_count_by_their_weights() -> None:
    """The weight of the whole batch is known before its first part has gone through."""
    data = samples(23)
    weights = np.random.default_rng(2).uniform(0, 3, 23)
    how = {"sample_weights": weights, "class_weights": [1.0, 2.0, 0.5]}
    found = trained(4, dense, pipeline(data=2, micro_batches=2), data, watch=False, **how)
    assert found.same_on_all_ranks()
    assert_close(found, alone(dense, data, **how), 1e-12)


def test_half_precision_with_a_loss_scale() -> None:
    make = partial(dense, dtype="float32", precision="float16")
    found = trained(3, make, pipeline(micro_batches=2), samples(40, "float32"), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(40, "float32")), 2e-2)


@pytest.mark.parametrize(
    "layers",
    [
        [
            nn.Input((2, 6, 6)),
            nn.Conv2D(3, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Conv2D(4, 3),
            nn.Flatten(),
            nn.Dense(CLASSES),
        ],
        [nn.Input((4, 6)), nn.MultiHeadAttention(2), nn.LayerNorm(), nn.LSTM(6), nn.Dense(CLASSES)],
    ],
    ids=["images", "sequences"],
)
def test_layers_of_all_kinds_flow(layers: list[nn.Layer]) -> None:
    shape = layers[0].shape  # type: ignore[attr-defined]
    x = np.random.default_rng(0).normal(size=(10, *shape))
    data = (x, np.arange(10) % CLASSES)

    def make() -> cd.NeuralNetwork:
        return network(layers=[cd.nn.from_config(cd.nn.to_config(each)) for each in layers])

    found = trained(3, make, pipeline(micro_batches=2), data, watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data), 1e-12)


# --- batch normalisation


def test_batch_normalisation_is_over_a_part() -> None:
    """As one process does that takes a step for every three batches of four samples."""
    data = samples(24)
    found = trained(
        3,
        partial(normalised, batch_size=12),
        pipeline(micro_batches=3),
        data,
        watch=False,
        shuffle=False,
    )
    assert found.same_on_all_ranks()
    slow = partial(
        normalised, batch_size=4, optimizer=lambda: optim.SGD(0.1, momentum=0.9, accumulate=3)
    )
    expected = alone(slow, data, shuffle=False)
    there = values(expected.models[0])
    for name, value in values(found.models[0]).items():
        np.testing.assert_allclose(value, there[name], rtol=1e-12, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(
        found.histories[0]["loss"], expected.histories[0]["loss"], rtol=1e-12
    )


def test_batch_normalisation_is_over_all_pipelines() -> None:
    data = samples(20)
    found = trained(4, normalised, pipeline(data=2, micro_batches=2), data, watch=False)
    assert found.same_on_all_ranks()
    assert_close(
        found, trained(2, normalised, pipeline(stages=1, micro_batches=2), data, watch=False), 1e-12
    )
    whole = trained(4, normalised, pipeline(data=2, micro_batches=1), data, watch=False)
    assert_close(whole, alone(normalised, data), 1e-12)


# --- what crosses the cuts


def built(kind: type[cd.Model]) -> cd.Model:
    model = kind(optimizer="momentum", learning_rate=0.1, dtype="float64", batch_size=10)
    model.ensure_built(samples(1))
    return model


class Skipping(cd.Model):
    """Values go past layers, and the input is needed again at the end."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.first = nn.Dense(5, activation="tanh")
        self.second = nn.Dense(5, activation="tanh")
        self.third = nn.Dense(5)
        self.last = nn.Dense(CLASSES)

    def forward(self, x: cd.Expr) -> cd.Expr:
        a = self.first(x)
        b = self.second(a)
        c = self.third(a + b)
        return self.last(op.concat([c * a, 2.0 * x], axis=1))


class Shared(cd.Model):
    """The first layer is used once more, later."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.first = nn.Dense(FEATURES, activation="tanh")
        self.second = nn.Dense(FEATURES, activation="tanh")
        self.last = nn.Dense(CLASSES)

    def forward(self, x: cd.Expr) -> cd.Expr:
        return self.last(self.first(self.second(self.first(x))))


@pytest.mark.parametrize("kind", [Skipping, Shared])
@pytest.mark.parametrize("options", [{}, {"data": 2, "micro_batches": 2}], ids=["one", "two"])
def test_values_and_parameters_may_cross_cuts(
    kind: type[cd.Model], options: dict[str, Any]
) -> None:
    """Of one pipeline of four stages, and of two pipelines of two."""
    make = partial(built, kind)
    found = trained(4, make, pipeline(**options), samples(20), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(20)), 1e-12)


class Pointing(cd.Model):
    """Integers cross the cut as well, and a first layer is not trained."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.first = nn.Dense(5, activation="tanh")
        self.last = nn.Dense(CLASSES)

    def forward(self, x: cd.Expr) -> cd.Expr:
        a = self.first(x)
        return self.last(a) * op.cast(1 + op.reshape(op.argmax(a, axis=1), (-1, 1)), x.dtype)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_has_no_gradient_may_cross_a_cut(frozen: bool) -> None:
    def make() -> cd.Model:
        model = built(Pointing)
        model.first.freeze(frozen)  # type: ignore[attr-defined]
        return model

    found = trained(2, make, pipeline(stages=["last"], micro_batches=2), samples(20), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(20)), 1e-12)


def test_a_block_may_be_cut_inside() -> None:
    def make() -> cd.NeuralNetwork:
        block = nn.Residual([nn.Dense(FEATURES, activation="relu"), nn.Dense(FEATURES)])
        return network(layers=[nn.Input((FEATURES,)), block, nn.Dense(CLASSES)])

    stages = ["1-Residual/1-Dense", "2-Dense"]
    found = trained(3, make, pipeline(stages, micro_batches=2), samples(20), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(20)), 1e-12)


class SharedNorm(cd.Model):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.norm = nn.BatchNorm()
        self.layer = nn.Dense(FEATURES)
        self.last = nn.Dense(CLASSES)

    def forward(self, x: cd.Expr) -> cd.Expr:
        return self.last(self.norm(self.layer(self.norm(x))))


def test_statistics_that_two_stages_change_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"norm/running_mean in stages \[0, 1\].*cut the model"):
        trained(2, partial(built, SharedNorm), pipeline(stages=["layer"]), samples(10), watch=False)


# --- runs


def test_a_mesh_may_be_given() -> None:
    def strategy(comm: Communicator) -> PipelineParallel:
        mesh = Mesh(comm, {"pipeline": 2, "data": 2})
        return PipelineParallel(mesh=mesh, micro_batches=2)

    found = trained(4, dense, strategy, samples(20), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(dense, samples(20)), 1e-12)


def test_evaluation_is_shared_by_all_ranks() -> None:
    model = dense(metrics=["accuracy", "confusion_matrix"])
    data = samples(17)
    expected = model.evaluate(data)

    def work(comm: Communicator) -> dict[str, Any]:
        strategy = PipelineParallel(communicator=comm, data=2)
        return model.evaluate(data, parallel=strategy, batch_size=5)

    for found in run_virtual_ranks(4, work):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)
        np.testing.assert_array_equal(found["confusion_matrix"], expected["confusion_matrix"])


def test_a_part_is_computed_when_it_is_its_turn() -> None:
    plans: list[Plan] = []

    class Seen(PipelineParallel):
        def compiled(self, make: Callable[[], Plan]) -> Plan:
            plans.append(super().compiled(make))
            return plans[-1]

    dense().fit(samples(9), batch_size=9, parallel=Seen(micro_batches=3), verbose=0)
    products, since = [], 0
    for step in plans[0].schedule.steps:
        since += step.node.op.kind == "product"
        if step.node.op is turn:
            products.append((step.node.attrs["action"].split()[0], since))
            since = 0
    # Four layers forward; back, the gradients of their weights and of three inputs.
    assert products == [("forward", 4), ("backward", 7)] * 3


def test_while_steps_run_a_rank_has_its_stage_alone() -> None:
    seen: dict[int, list[str]] = {}

    class Nosy(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            found = seen.setdefault(run.communicator.rank, [])
            for each in [*run.model.parameters(), *run.model.optimizer.variables()]:
                with suppress(ConfigError):
                    each.numpy()
                    found.append(each.name)

        def epoch_ends(self, run: cd.Run) -> None:
            assert all(np.isfinite(each.numpy()).all() for each in run.model.parameters())

    models = [
        network(layers=[nn.Input((FEATURES,)), nn.Dense(4), nn.Dense(CLASSES)]) for _ in range(2)
    ]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(
            samples(10),
            parallel=PipelineParallel(communicator=comm),
            verbose=0,
            callbacks=[Nosy()],
        )

    run_virtual_ranks(2, work)
    for rank, layer in enumerate(("1-Dense", "2-Dense")):
        parameters = [f"{layer}/weight", f"{layer}/bias"]
        kept = [f"{name}/velocity" for name in parameters]
        assert seen[rank] == [*parameters, "step", "learning rate", *kept]


def test_one_strategy_goes_on_where_another_ended() -> None:
    """What an optimizer keeps is whole between runs."""
    make = partial(dense, optimizer=lambda: optim.Adam(0.01))
    models = [make() for _ in range(2)]

    def work(comm: Communicator) -> None:
        for strategy in (PipelineParallel(communicator=comm), DataParallel(communicator=comm)):
            models[comm.rank].fit(samples(20), parallel=strategy, verbose=0)

    run_virtual_ranks(2, work)
    expected = make()
    for _ in range(2):
        expected.fit(samples(20), verbose=0)
    assert_close(Trained(list(models), [cd.History()]), Trained([expected], [cd.History()]), 1e-12)


def test_a_bad_sample_is_found_on_all_ranks() -> None:
    x, y = samples(20)
    x[13] = np.inf
    models = [dense() for _ in range(2)]

    def work(comm: Communicator) -> str:
        with pytest.raises(NonFiniteError) as caught:
            models[comm.rank].fit(
                (x, y), parallel=PipelineParallel(communicator=comm), verbose=0, shuffle=False
            )
        return str(caught.value)

    first, second = run_virtual_ranks(2, work)
    assert first == second
    assert "first in sample 3 of the batch" in first


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 0}, "micro_batches >= 1"),
        ({"schedule": "zigzag"}, "'1f1b' or 'fill-drain'"),
        ({"balance": "weight"}, "balance 'operations' or 'time'"),
        ({"stages": 3}, "2 ranks that are as many as stages times pipelines"),
        ({"stages": ["a", "b"]}, "2 ranks that are as many as stages times pipelines"),
        ({"data": 3}, "2 ranks that are as many as stages times pipelines"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_virtual_ranks(2, lambda comm: PipelineParallel(communicator=comm, **options))


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (2, {"stages": ["nowhere"]}, "begin with layers of the model: 0-Input, 1-Dense"),
        (3, {"stages": ["5-Dense", "3-Dense"]}, "in the order in which the model calls"),
        (8, {}, "at least 8 layers"),
    ],
)
def test_cuts_that_cannot_be_are_refused(ranks: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(ranks, dense, pipeline(**options), samples(10), watch=False)


def test_ranks_with_different_cuts_are_told() -> None:
    names = ["3-Dense", "5-Dense"]

    def strategy(comm: Communicator) -> PipelineParallel:
        return PipelineParallel(stages=[names[comm.rank]], communicator=comm)

    with pytest.raises(CommError, match="the same on all ranks"):
        trained(2, dense, strategy, samples(10), watch=False)


# --- stages that take as long as each other


def blocks(**more: Any) -> cd.NeuralNetwork:
    """Most operations are those of the last two layers."""
    small = [nn.Dense(FEATURES, activation="tanh") for _ in range(3)]
    layers = [nn.Input((FEATURES,)), *small, nn.BatchNorm(), nn.Dense(60), nn.Dense(CLASSES)]
    return network(layers=layers, **more)


def begun(ranks: int, make: Callable[[], cd.Model], **options: Any) -> list[list[str]]:
    """The layers with which the stages of a run begin, as each rank says before the first step."""
    models = [make() for _ in range(ranks)]

    def work(comm: Communicator) -> list[str]:
        strategy = PipelineParallel(communicator=comm, **options)
        strategy.begin(run_setup(models[comm.rank], strategy))
        return strategy.begins_with

    return run_virtual_ranks(ranks, work)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bodies that were timed, on a machine where nothing but tanh takes any time."""
    bodies: list[Any] = []

    def seconds(body: Any, device: Any, precision: Any) -> float:
        bodies.append(body)
        return 1e-9 + sum(node.op.name == "tanh" for node in body.order())

    monkeypatch.setattr(stage_partition, "_seconds", seconds)
    return bodies


@pytest.mark.parametrize(
    ("options", "deterministic", "cut"),
    [
        ({}, False, "6-Dense"),
        ({"balance": "time"}, False, "3-Dense"),
        ({"balance": "time"}, True, "6-Dense"),
        ({"balance": "time", "model": 2, "least": 1}, False, "3-Dense"),
    ],
)
def test_stages_may_take_as_long_as_each_other(
    options: dict[str, Any], deterministic: bool, cut: str, timed: list[Any]
) -> None:
    ranks = 2 * options.get("model", 1)
    with settings.override(deterministic=deterministic):
        assert begun(ranks, blocks, **options) == [[cut]] * ranks
    # Two of the seven are alike, and rank 0 alone looks.
    assert len(timed) == (6 if options and not deterministic else 0)


def test_stages_that_were_timed_equal_one_process(timed: list[Any]) -> None:
    data = samples(20)
    strategy = pipeline(balance="time", model=2, least=1, micro_batches=1)
    found = trained(4, blocks, strategy, data, watch=False)
    assert timed
    assert found.same_on_all_ranks()
    assert_close(found, alone(blocks, data), 1e-12)


@pytest.mark.parametrize("precision", [None, "float16"])
def test_layers_are_timed(precision: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all kinds, and without a trace in the model."""

    def make() -> cd.NeuralNetwork:
        layers = [
            nn.Input((4,), dtype="int64"),
            nn.Embedding(5, 6),
            nn.LSTM(6),
            nn.Dropout(0.5),
            nn.BatchNorm(),
            nn.Dense(CLASSES),
        ]
        return network(layers=layers, dtype="float32", precision=precision)

    seen: list[float] = []
    times = stage_partition._seconds
    monkeypatch.setattr(
        stage_partition, "_seconds", lambda *given: seen.append(times(*given)) or 1.0
    )
    if precision is None:
        begun(2, make, balance="time")
    else:
        data = np.zeros((20, 4), "int64"), np.arange(20) % CLASSES
        trained(2, make, pipeline(balance="time", micro_batches=2), data, watch=False)
    assert len(seen) == 6
    assert min(seen) > 0


@pytest.mark.parametrize(("frozen", "cut"), [(False, "3-Dense"), (True, "4-Dense")])
def test_operations_are_those_of_both_ways(frozen: bool, cut: str) -> None:
    """Four equal layers. Of those that are not trained only the way forward counts."""

    def make() -> cd.NeuralNetwork:
        dense = [nn.Dense(FEATURES) for _ in range(4)]
        for layer in dense[:2] if frozen else []:
            layer.freeze()
        return network(layers=[nn.Input((FEATURES,)), *dense])

    assert begun(2, make) == [[cut]] * 2
