"""Ensembles: members as one process makes them, and the mean of their predictions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CommError, ConfigError
from caldera.nn.losses import losses
from caldera.parallel import Ensemble
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    Trained,
    alone,
    assert_same,
    network,
    samples,
    strategies_of,
    trained,
    values,
)

ensemble = strategies_of(Ensemble)

DATA = samples(33)


def members(ranks: int, **how: Any) -> Trained:
    return trained(ranks, network, ensemble(), DATA, **how)


@pytest.mark.parametrize(("given", "seeds"), [(None, [0, 1, 2]), ([7, 3, 5], [7, 3, 5])])
def test_members_are_runs_of_one_process_to_the_bit(
    given: list[int] | None, seeds: list[int]
) -> None:
    """Parameters, statistics, momentum, dropout, and the order of the samples."""
    found = trained(3, network, ensemble(seeds=given), DATA, epochs=2)
    expected = [alone(partial(network, seed=seed), DATA, epochs=2) for seed in seeds]
    for model, one in zip(found.models, expected, strict=True):
        assert_same(values(model), values(one.models[0]))
    assert [model.seed for model in found.models] == seeds
    # One history for all: the mean of theirs.
    means = np.mean([one.histories[0]["loss"] for one in expected], axis=0)
    for history in found.histories:
        np.testing.assert_allclose(history["loss"], means, rtol=1e-12)


def probabilities(model: cd.Model, x: np.ndarray) -> np.ndarray:
    logits = model.predict(x)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def test_predictions_are_means_of_probabilities_on_every_rank() -> None:
    models = [network() for _ in range(3)]

    def work(comm: Communicator) -> tuple[cd.History, np.ndarray]:
        strategy = Ensemble(communicator=comm)
        model = models[comm.rank]
        history = model.fit(DATA, parallel=strategy, verbose=0, validation=DATA)
        return history, strategy.predict(model, DATA[0], batch_size=7)

    found = run_virtual_ranks(3, work)
    x, y = DATA
    mean = np.mean([probabilities(model, x) for model in models], axis=0)
    for history, predicted in found:
        assert predicted.tobytes() == found[0][1].tobytes()
        np.testing.assert_allclose(predicted, mean, rtol=1e-12)
        # Validation is about the same means.
        loss = -np.log(mean[np.arange(len(y)), y]).mean()
        assert history["val_loss"][-1] == pytest.approx(loss, rel=1e-12)
        assert history["val_accuracy"][-1] == pytest.approx((mean.argmax(axis=1) == y).mean())


def test_evaluate_is_about_the_mean_of_members() -> None:
    models = [network(seed=seed) for seed in range(2)]

    def work(comm: Communicator) -> dict[str, Any]:
        return models[comm.rank].evaluate(DATA, parallel=Ensemble(communicator=comm))

    x, y = DATA
    mean = np.mean([probabilities(model, x) for model in models], axis=0)
    for found in run_virtual_ranks(2, work):
        assert found["accuracy"] == pytest.approx((mean.argmax(axis=1) == y).mean())


@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy", "kl", "mse", "huber"])
def test_losses_know_what_predictions_stand_for(name: str) -> None:
    loss = losses.make(name)
    prediction = np.random.default_rng(0).normal(size=(4, 3))
    meaning = loss.meaning(op.cast(prediction, "float64"))
    again = loss.meaning(loss.prediction_of(meaning))
    np.testing.assert_allclose(again.numpy(), meaning.numpy(), rtol=1e-12)
    if "cross" in name or name == "kl":
        assert ((meaning.numpy() > 0) & (meaning.numpy() < 1)).all()
        certain = loss.prediction_of(op.cast(np.array([[0.0, 1.0]]), "float32")).numpy()
        assert np.isfinite(certain).all()


def test_regressions_are_averaged_as_they_are() -> None:
    x = np.linspace(-1, 1, 12)[:, None]
    layers = [nn.Input((1,)), nn.Dense(3, activation="tanh"), nn.Dense(1)]
    models = [
        cd.NeuralNetwork(
            [cd.nn.from_config(cd.nn.to_config(each)) for each in layers],
            loss="mse",
            dtype="float64",
        )
        for _ in range(2)
    ]

    def work(comm: Communicator) -> np.ndarray:
        strategy = Ensemble(communicator=comm)
        models[comm.rank].fit((x, x**2), parallel=strategy, verbose=0)
        return strategy.predict(models[comm.rank], x)

    found = run_virtual_ranks(2, work)[1]
    np.testing.assert_allclose(found, (models[0].predict(x) + models[1].predict(x)) / 2, rtol=1e-12)


def test_members_go_on_where_they_were_and_may_begin_with_what_is_given() -> None:
    models = [network() for _ in range(2)]
    weights = np.full((FEATURES, 5), 0.25)
    for model in models:
        model.parameters()[0].assign(weights)

    def work(comm: Communicator) -> None:
        given = Ensemble(start="given", communicator=comm)
        models[comm.rank].fit(DATA, parallel=given, verbose=0)
        models[comm.rank].fit(DATA, parallel=Ensemble(communicator=comm), verbose=0)

    run_virtual_ranks(2, work)
    for seed, model in enumerate(models):
        expected = network(seed=seed)
        for mine, first in zip(expected.parameters(), network().parameters(), strict=True):
            mine.assign(first.numpy())
        expected.parameters()[0].assign(weights)
        expected.fit(DATA, verbose=0)
        expected.fit(DATA, verbose=0)
        assert_same(values(model), values(expected))


def test_nothing_is_sent_while_members_train() -> None:
    models = [network() for _ in range(2)]

    def work(comm: Communicator) -> int:
        strategy = Ensemble(communicator=comm)
        models[comm.rank].fit(DATA, parallel=strategy, verbose=0)
        return strategy.plan_communicator.traffic.total.bytes_sent

    assert run_virtual_ranks(2, work) == [0, 0]


def test_a_wish_of_one_rank_stops_all_at_the_end_of_the_epoch() -> None:
    class Tired(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1:
                run.stop("tired")

    models = [network() for _ in range(2)]

    def work(comm: Communicator) -> tuple[str, int]:
        history = models[comm.rank].fit(
            DATA, parallel=Ensemble(communicator=comm), verbose=0, callbacks=[Tired()], epochs=9
        )
        return history.stopped, models[comm.rank].steps_done

    assert run_virtual_ranks(2, work) == [("tired", 4)] * 2


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match="a different seed for each of 1 ranks, got seeds="):
        Ensemble(seeds=[1, 2])
    with pytest.raises(ConfigError, match="start= 'new' or 'given'"):
        Ensemble(start="old")
    models = [network(layers=[nn.Input((FEATURES,)), nn.Dense(CLASSES)]) for _ in range(2)]

    def work(comm: Communicator) -> np.ndarray:
        return Ensemble(communicator=comm).predict(models[comm.rank], DATA[0][comm.rank :])

    with pytest.raises(CommError, match=r"Ensemble.predict: expected the same on all ranks"):
        run_virtual_ranks(2, work)
