"""Gossip: means with few others, which conserve the mean of all."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import ConfigError
from caldera.parallel import Gossip
from caldera.parallel.averaging.gossip import PATTERNS
from caldera.train.fit import run_setup
from tests.unit.parallel.averaging.test_elastic import small
from tests.unit.parallel.averaging.test_local_sgd import bytes_sent
from tests.unit.parallel.ranks import samples, strategies_of, trained

gossip = strategies_of(Gossip)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
def test_the_mixing_matrix_is_doubly_stochastic(pattern: str, ranks: int) -> None:
    def work(comm: Communicator) -> list[np.ndarray]:
        strategy = Gossip(pattern, communicator=comm)
        return [strategy.mixing_matrix(turn) for turn in range(20)]

    everyone = run_virtual_ranks(ranks, work)
    together = np.eye(ranks)
    for turn, matrix in enumerate(everyone[0]):
        assert all(np.array_equal(other[turn], matrix) for other in everyone)
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(axis=0), 1, rtol=1e-15)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-15)
        together = matrix @ together
    # In the long run everybody has the mean of all.
    spread = np.linalg.norm(together - 1 / ranks, 2)
    assert spread < 0.2, spread


def test_pairs_change_from_turn_to_turn() -> None:
    strategy = run_virtual_ranks(6, lambda comm: Gossip("random pairs", communicator=comm))[0]
    partners = {int(np.flatnonzero(strategy.counts(turn)[0])[-1]) for turn in range(40)}
    assert partners >= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_exchanges_are_the_matrix_conserve_the_mean_and_shrink_differences(
    pattern: str, ranks: int
) -> None:
    """Learning nothing, ranks only gossip."""
    models = [small(batch_size=ranks, learning_rate=1e-300) for _ in range(ranks)]
    before = [
        [
            np.random.default_rng(10 * r + i).normal(size=p.shape)
            for i, p in enumerate(models[r].parameters())
        ]
        for r in range(ranks)
    ]
    turns = 6

    def work(comm: Communicator) -> np.ndarray:
        strategy, model = Gossip(pattern, communicator=comm), models[comm.rank]
        model.fit(samples(ranks), parallel=Gossip(communicator=comm), verbose=0)
        strategy.begin(run_setup(model, strategy))
        for parameter, value in zip(model.parameters(), before[comm.rank], strict=True):
            parameter.assign(value)
        for _ in range(turns):
            strategy.after_step((0.0, 0.0))
        strategy.end()
        return np.concatenate([p.numpy().ravel() for p in model.parameters()])

    after = np.stack(run_virtual_ranks(ranks, work))
    start = np.stack([np.concatenate([v.ravel() for v in mine]) for mine in before])
    expected = start
    pattern_of = PATTERNS[pattern]
    for turn in range(turns):
        counts = pattern_of(ranks, turn, 0)
        expected = counts / counts[0].sum() @ expected
    np.testing.assert_allclose(after, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(after.mean(axis=0), start.mean(axis=0), rtol=1e-12, atol=1e-14)
    assert after.std(axis=0).max() < start.std(axis=0).max()


def test_partners_get_the_same_bits() -> None:
    found = trained(2, small, gossip(pattern="random pairs", every=2), samples(40))
    same = [one == other for one, other in zip(*found.steps, strict=True)]
    assert same == [False, True, False, True]


@pytest.mark.parametrize(
    ("pattern", "ranks", "neighbours"), [("ring", 2, 1), ("ring", 3, 2), ("random pairs", 4, 1)]
)
def test_bytes_are_those_of_the_formula(pattern: str, ranks: int, neighbours: int) -> None:
    """The model to each neighbour."""
    for sent, size in bytes_sent(ranks, gossip(pattern=pattern, every=2)):
        assert sent == 3 * neighbours * size


def test_patterns_that_are_not_known_are_refused() -> None:
    with pytest.raises(ConfigError, match="'ring' or 'random pairs', got 'star'"):
        Gossip("star")
