"""A fixed number of shards: the same bits whatever the number of ranks."""

from __future__ import annotations

import pytest

from caldera.comm import Communicator
from caldera.errors import ConfigError
from caldera.parallel import DataParallel
from tests.unit.parallel.ranks import alone, assert_close, network, samples, trained, values


def shards(comm: Communicator) -> DataParallel:
    return DataParallel(shards=5, communicator=comm)


def test_results_are_the_same_bits_for_any_number_of_ranks() -> None:
    """Batch normalisation, dropout, a smaller last batch, and shards without samples."""
    data, held_out = samples(13), samples(7)
    runs = {
        ranks: trained(ranks, network, shards, data, validation=held_out, watch=ranks > 1)
        for ranks in (1, 2, 3)
    }
    first = values(runs[1].models[0])
    for ranks, run in runs.items():
        assert run.same_on_all_ranks()
        for name, value in values(run.models[0]).items():
            assert value.tobytes() == first[name].tobytes(), (ranks, name)
        for column in ("loss", "accuracy", "val_loss"):
            assert run.histories[0][column] == runs[1].histories[0][column]
    assert_close(runs[3], alone(network, data, validation=held_out), 1e-12)


def test_every_rank_needs_a_shard() -> None:
    with pytest.raises(ConfigError, match="at least one shard for each of 3 ranks"):
        trained(3, network, lambda comm: DataParallel(shards=2, communicator=comm), samples(4))
