"""What a strategy is given is looked at when it is made, and the error says how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from caldera import compress, parallel
from caldera.comm import SingleProcess
from caldera.errors import ConfigError
from tests.unit.parallel.ranks import network, samples


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda c: parallel.DataParallel(bucket_bytes="4MB", communicator=c), "an integer"),
        (lambda c: parallel.DataParallel(shards=4.5, communicator=c), "an integer"),
        (lambda c: parallel.DataParallel(compression="topk", communicator=c), "compress.TopK"),
        (lambda c: parallel.DataParallel(compression=compress.TopK, communicator=c), "an object"),
        (lambda c: parallel.DataParallel(communicator="world"), "communicator of caldera.comm"),
        (lambda c: parallel.Hybrid(2, communicator=c), 'axes "data" and "model", got 2'),
        (lambda c: parallel.TensorParallel(["1-Dense"], communicator=c), "names of layers"),
        (lambda c: parallel.PipelineParallel(model=0, communicator=c), "model >= 1"),
        (lambda c: parallel.PipelineParallel(data=0, communicator=c), "data >= 1"),
        (lambda c: parallel.PipelineParallel(micro_batches=2.5, communicator=c), "integer"),
        (lambda c: parallel.ParameterServer("2", communicator=c), "servers >= 1"),
        (lambda c: parallel.LocalSGD(every=1.5, communicator=c), "every >= 1"),
    ],
)
def test_what_is_wrong_is_said(make: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(SingleProcess())


@pytest.mark.parametrize("given", ["data", parallel.DataParallel, 4, SingleProcess()])
def test_fit_takes_strategies(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"parallel: expected a strategy, got .*DataParallel\(\)"):
        network().fit(samples(10), parallel=given, verbose=0)


def test_counts_may_come_from_numpy() -> None:
    alone = SingleProcess()
    assert parallel.DataParallel(shards=np.int64(2), communicator=alone).batch_parts == 2
