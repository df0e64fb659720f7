"""One rank is killed while it trains; the others go on without it, from the last checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import nn, parallel
from caldera.comm import MpiCommunicator, RankLostError, world
from caldera.train.strategy import SingleProcessStrategy, Strategy

EPOCHS = 3
generator = np.random.default_rng(1)
data = generator.normal(size=(20, 6)), generator.integers(0, 3, 20)


class Kill(cd.Callback):
    """Rank 1 of three, in the third epoch: the checkpoint of the first one has been written."""

    def batch_ends(self, run: cd.Run) -> None:
        if run.communicator.size == 3 and run.communicator.rank == 1 and run.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def trained(strategy: Strategy, **how: object) -> cd.Model:
    layers = [nn.Input((6,)), nn.Dense(5), nn.BatchNorm(), nn.Dense(3)]
    model = cd.NeuralNetwork(layers, batch_size=10, dtype="float64", optimizer="momentum")
    model.fit(data, parallel=strategy, epochs=EPOCHS, verbose=0, **how)  # type: ignore[arg-type]
    return model


def main() -> None:
    everyone = world()
    assert isinstance(everyone, MpiCommunicator)
    while True:
        try:
            strategy = parallel.DataParallel(communicator=everyone)
            found = trained(strategy, checkpoint=Path("saved"), resume=True, callbacks=[Kill()])
            break
        except RankLostError:
            everyone = everyone.Shrink()
    expected = trained(SingleProcessStrategy())
    for mine, other in zip(found.parameters(), expected.parameters(), strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-12, atol=1e-12)
    print(f"rank {everyone.rank} of {everyone.size} has what one process has", flush=True)


if __name__ == "__main__":
    main()
