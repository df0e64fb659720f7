"""A rank of a parameter server's job is killed the first time, in the middle of an epoch."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import nn, parallel
from caldera.comm import restarted

EPOCHS = 3


class Kill(cd.Callback):
    """One rank, after the first step of the third epoch: the checkpoint of the first one has been
    written by then, while others computed."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def batch_ends(self, run: cd.Run) -> None:
        if run.communicator.rank == self.rank and run.epoch == 2 and not restarted():
            print(f"rank {self.rank} is killed at {time.time()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def run_begins(self, run: cd.Run) -> None:
        if restarted():
            assert run.epoch in (1, 2)
            print(f"rank {run.communicator.rank} goes on", flush=True)


def main(mode: str, victim: int) -> None:
    generator = np.random.default_rng(1)
    data = generator.normal(size=(60, 6)), generator.integers(0, 3, 60)
    model = cd.NeuralNetwork([nn.Input((6,)), nn.Dense(3)], batch_size=10, dtype="float64")
    strategy = parallel.ParameterServer(mode=mode, bound=1 if mode == "stale" else None)
    history = model.fit(
        data,
        parallel=strategy,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[Kill(victim)],
        checkpoint=Path("saved"),
        resume=restarted(),
    )
    assert len(history["loss"]) == EPOCHS


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
