"""Layers that are computed in parts equal one process, in every mix of axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import dmath as dm
from caldera import nn, op, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import ConfigError
from caldera.parallel import DataParallel, Hybrid, Layouts, TensorParallel
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    Trained,
    alone,
    assert_close,
    network,
    samples,
    trained,
)

LAYERS: dict[str, Callable[[], list[nn.Layer]]] = {
    # By outputs (of which 2 or 3 ranks have different numbers), then by inputs; and again.
    "dense": lambda: [
        nn.Input((FEATURES,)),
        nn.Dense(5, bias=False),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Dense(7, activation="tanh"),
        nn.Dense(4, activation="relu"),
        nn.Dense(CLASSES),
    ],
    # Channels stay apart through normalisation, pooling and flattening.
    "images": lambda: [
        nn.Input((FEATURES,)),
        nn.Reshape((1, 2, 3)),
        nn.Conv2D(5, 3, padding=1),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.MaxPool2D(2, stride=1),
        nn.Conv2D(4, 3, padding=1, activation="relu"),
        nn.Conv2D(4, 1),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Dense(6, activation="gelu"),
        nn.Dense(CLASSES),
    ],
    # Three heads on two ranks.
    "attention": lambda: [
        nn.Input((FEATURES,)),
        nn.Reshape((3, 2)),
        nn.Dense(12),
        nn.TransformerBlock(3, dropout=0.2, causal=True),
        nn.GlobalAveragePool(),
        nn.Dense(CLASSES),
    ],
    # Two heads of queries for each head of keys: the attention stays whole.
    "shared keys": lambda: [
        nn.Input((FEATURES,)),
        nn.Reshape((3, 2)),
        nn.Dense(8),
        nn.MultiHeadAttention(4, key_heads=2),
        nn.GlobalAveragePool(),
        nn.Dense(CLASSES),
    ],
}

MESHES: dict[str, tuple[int, Callable[[Communicator], Hybrid]]] = {
    "2": (2, lambda comm: TensorParallel(least=1, communicator=comm)),
    "3": (3, lambda comm: TensorParallel(least=1, communicator=comm)),
    "2 x 2": (4, lambda comm: Hybrid({"data": 2, "model": 2}, least=1, communicator=comm)),
    "samples over 3": (
        3,
        lambda comm: Hybrid({"model": 3}, least=1, samples="all", communicator=comm),
    ),
    "samples over 2 x 2": (
        4,
        lambda comm: Hybrid({"model": 2, "data": -1}, least=1, samples="all", communicator=comm),
    ),
}


def made(layers: str = "dense", dtype: str = "float64", **more: Any) -> cd.NeuralNetwork:
    return network(layers=LAYERS[layers](), dtype=dtype, **{"batch_size": 11} | more)


@cache
def one_process(layers: str, dtype: str, count: int) -> Trained:
    return alone(partial(made, layers, dtype), samples(count, dtype), validation=samples(7, dtype))


# One step in float32, three in float64; eleven samples do not divide by two, three or four.
# Dense layers on "2 x 2" are below, with LARS.
@pytest.mark.parametrize(
    ("layers", "mesh", "dtype", "count"),
    [
        ("dense", "2", "float32", 11),
        ("images", "2 x 2", "float32", 11),
        ("attention", "samples over 3", "float32", 11),
        ("dense", "3", "float64", 33),
        ("images", "3", "float64", 33),
        ("images", "samples over 2 x 2", "float64", 33),
        ("attention", "2 x 2", "float64", 33),
        ("shared keys", "2", "float64", 33),
    ],
)
def test_it_equals_one_process_on_the_whole_batch(
    layers: str, mesh: str, dtype: str, count: int
) -> None:
    ranks, strategy = MESHES[mesh]
    found = trained(
        ranks,
        partial(made, layers, dtype),
        strategy,
        samples(count, dtype),
        watch=False,
        validation=samples(7, dtype),
    )
    assert found.same_on_all_ranks()
    assert_close(found, one_process(layers, dtype, count))


@pytest.mark.parametrize("samples_over", ["data", "all"])
def test_shares_may_be_empty(samples_over: str) -> None:
    """Batches of two samples over three groups of two ranks."""
    data = samples(4)
    mesh = {"data": 3, "model": 2}
    found = trained(
        6,
        partial(made, batch_size=2),
        watch=False,
        data=data,
        strategy=lambda comm: Hybrid(mesh, least=1, samples=samples_over, communicator=comm),
    )
    assert found.same_on_all_ranks()
    assert_close(found, alone(partial(made, batch_size=2), data), 1e-12)


def test_samples_count_by_their_weights() -> None:
    data = samples(22)
    how = {"sample_weights": np.random.default_rng(2).uniform(0, 3, 22)}
    ranks, strategy = MESHES["samples over 2 x 2"]
    found = trained(ranks, made, strategy, data, watch=False, **how)
    assert found.same_on_all_ranks()
    assert_close(found, alone(made, data, **how), 1e-12)


OPTIMIZERS = {
    "lars": lambda: optim.LARS(optim.LinearWarmUp(3, then=0.5), weight_decay=1e-2),
    "lamb and clipping": lambda: optim.LAMB(0.01, clip=optim.ClipNorm(0.1)),
    "accumulated": lambda: optim.Adam(0.01, accumulate=2),
    "groups": lambda: optim.SGD(0.1, weight_decay=0.1, groups=[optim.Group("bias", 2.0, 0.0)]),
}


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_does(optimizer: str) -> None:
    """Lengths are those of whole parameters, whether ranks have parts of them or not."""
    make = partial(made, optimizer=OPTIMIZERS[optimizer])
    meshes = {"lars": "2 x 2", "lamb and clipping": "3"}
    ranks, strategy = MESHES[meshes.get(optimizer, "2")]
    found = trained(ranks, make, strategy, samples(33), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(33)), 1e-12)


def test_half_precision_with_a_loss_scale() -> None:
    make = partial(made, "dense", "float32", precision="float16")
    data = samples(33, "float32")
    found = trained(2, make, MESHES["2"][1], data, watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data), 2e-2)


class Odd(cd.Model):
    """A weight that is used twice, a memory to attend to, and values that are mixed."""

    def __init__(self, **how: Any) -> None:
        self.widen = nn.Dense(8, name="widen")
        self.mix = nn.Dense(8, activation="tanh")
        self.attend = nn.MultiHeadAttention(2)
        self.read = nn.LSTM(5)
        self.end = nn.Dense(CLASSES)
        super().__init__(loss="cross_entropy", optimizer="momentum", dtype="float64", **how)

    def forward(self, x: Any) -> Any:
        wide = self.widen(op.reshape(x, (x.shape[0], 3, 2)))
        mixed = self.mix(self.mix(wide)) + wide[:, ::-1]
        mask = op.transpose(x, (1, 0))[:3] > -1.0
        seen = self.attend(mixed, wide, mask=op.transpose(mask, (1, 0)))
        joined = (
            op.concat([seen, mixed], axis=2)
            + op.matmul(seen, op.transpose(self.mix.weight))[:, :, :1]
        )
        return self.end(op.softmax(self.read(joined), axis=1))


@pytest.mark.parametrize("mesh", ["2", "samples over 3"])
def test_models_of_all_shapes(mesh: str) -> None:
    ranks, strategy = MESHES[mesh]
    if ranks == 3:
        splits = {"mix": "inputs", "widen": "outputs", "end": "auto"}
        strategy = partial(_over_samples, splits)

    def make() -> cd.Model:
        # Seeding is global: parameters are made here, not on the threads of the ranks.
        model = Odd(learning_rate=0.1, batch_size=10)
        model.predict(samples(1)[0])
        return model

    found = trained(ranks, make, strategy, samples(20), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(20)), 1e-12)


def _over_samples(splits: dict[str, str], comm: Communicator) -> Hybrid:
    return Hybrid({"model": 3}, splits, samples="all", communicator=comm)


@pytest.mark.parametrize("samples_over", ["data", "all"])
def test_devices_with_memory_of_their_own(samples_over: str) -> None:
    """Data lie there, and steps are captured and replayed."""
    models = [made(device=f"loopback:{rank}") for rank in range(2)]

    def work(comm: Communicator) -> None:
        strategy = Hybrid({"model": 2}, least=1, samples=samples_over, communicator=comm)
        models[comm.rank].fit(samples(22), parallel=strategy, verbose=0, epochs=2)

    run_virtual_ranks(2, work)
    expected = made()
    expected.fit(samples(22), verbose=0, epochs=2)
    for model in models:
        for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-11, atol=1e-12)


def test_one_strategy_goes_on_where_another_ended() -> None:
    models = [made(optimizer=lambda: optim.Adam(0.01)) for _ in range(2)]

    def work(comm: Communicator) -> None:
        for strategy in (MESHES["2"][1](comm), DataParallel(communicator=comm)):
            models[comm.rank].fit(samples(22), parallel=strategy, verbose=0)
        found = models[comm.rank].evaluate(samples(7), parallel=MESHES["2"][1](comm))
        assert found == pytest.approx(models[comm.rank].evaluate(samples(7)))

    run_virtual_ranks(2, work)
    expected = made(optimizer=lambda: optim.Adam(0.01))
    for _ in range(2):
        expected.fit(samples(22), verbose=0)
    assert_close(Trained(list(models), [cd.History()]), Trained([expected], [cd.History()]), 1e-12)


def test_one_rank_needs_no_others() -> None:
    strategy = lambda comm: TensorParallel(least=1, communicator=comm)  # noqa: E731
    found = trained(1, made, strategy, samples(22))
    assert_close(found, alone(made, samples(22)), 0)


def test_any_rank_may_ask_to_stop() -> None:
    models = [made() for _ in range(2)]

    class Tired(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1 and run.step == 2:
                run.stop("tired")

    def work(comm: Communicator) -> tuple[str, int]:
        model = models[comm.rank]
        strategy = MESHES["2"][1](comm)
        history = model.fit(
            samples(44), parallel=strategy, verbose=0, epochs=9, callbacks=[Tired()]
        )
        return history.stopped, model.steps_done

    assert run_virtual_ranks(2, work) == [("tired", 3)] * 2


# --- what is refused


def _refused(message: str, splits: dict[str, str], ranks: int = 2) -> None:
    models = [made("attention") for _ in range(ranks)]

    def work(comm: Communicator) -> None:
        strategy = TensorParallel(splits, communicator=comm)
        models[comm.rank].fit(samples(10), parallel=strategy, verbose=0)

    with pytest.raises(ConfigError, match=message):
        run_virtual_ranks(ranks, work)


def test_splits_that_cannot_be_are_refused() -> None:
    _refused(
        r"splits\['2-Danse'\]: expected one of .*, 2-Dense, .*, got '2-Danse'", {"2-Danse": "auto"}
    )
    _refused(
        r"expected one of outputs, auto for 3 ranks, got 'inputs'; .* 12 outputs and 2 inputs",
        {"2-Dense": "inputs"},
        ranks=3,
    )
    _refused(
        r"got 'heads'; each rank needs at least one .*: there are 3 heads",
        {"3-TransformerBlock/attention": "heads"},
        ranks=4,
    )
    words = "rows, columns, inputs, replicated, auto"
    with pytest.raises(ConfigError, match=rf"splits\['2-Dense'\]: expected one of {words}, a lay"):
        TensorParallel({"2-Dense": "across"})


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match='lengths of the axes "data" and "model"'):
        Hybrid({"depth": 2})
    with pytest.raises(ConfigError, match='samples="data" or "all"'):
        Hybrid({"model": 1}, samples="some")


def test_while_steps_run_a_rank_has_only_its_parts() -> None:
    seen: list[str] = []

    class Nosy(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            by_name = {each.name: each for each in run.model.parameters()}
            assert by_name["7-Dense/bias"].numpy().shape == (CLASSES,)
            try:
                by_name["1-Dense/weight"].numpy()
            except ConfigError as error:
                seen.append(str(error))

    models = [made() for _ in range(2)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(
            samples(11), parallel=MESHES["2"][1](comm), verbose=0, callbacks=[Nosy()]
        )

    run_virtual_ranks(2, work)
    assert len(seen) == 2
    assert "while each rank stores only a part" in seen[0]


WORDS: dict[str, tuple[int, Callable[[Communicator], Hybrid]]] = {
    "columns": (2, lambda comm: TensorParallel({"5-Dense": "columns"}, communicator=comm)),
    "by classes": (
        3,
        lambda comm: TensorParallel({nn.Dense: "columns", -1: "rows"}, communicator=comm),
    ),
    "a layout, on a mesh": (
        4,
        lambda comm: Hybrid(
            {"data": 2, "model": 2},
            {"5-Dense": dm.Columns(), "6-Dense": {"weight": dm.Blocks(rows=2)}},
            communicator=comm,
        ),
    ),
    "of all ranks' samples": (
        2,
        lambda comm: Hybrid(
            {"model": 2}, {1: "columns", 5: "replicated"}, samples="all", communicator=comm
        ),
    ),
    "parameters alone": (
        2,
        lambda comm: Layouts({"5-Dense": "outputs", "6-Dense": "inputs"}, communicator=comm),
    ),
}


@pytest.mark.parametrize("words", WORDS)
def test_layers_are_split_in_one_language(words: str) -> None:
    """That of `Layouts`, and its words for parameters alone, in all strategies."""
    ranks, strategy = WORDS[words]
    found = trained(ranks, partial(made, "dense"), strategy, samples(33), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, one_process_of_33(), 1e-11)


@cache
def one_process_of_33() -> Trained:
    return alone(partial(made, "dense"), samples(33))
