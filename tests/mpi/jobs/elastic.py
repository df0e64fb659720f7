"""Training that loses a rank, continues with one, and is joined by another: `elastic.py FOLDER`.

Without a role this file supervises the job; as "train" it is one of its ranks, as "alone" a single
process that trains without interruption.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import nn
from caldera.comm import supervision, world
from caldera.comm.supervision import launch

EPOCHS, LOST_AFTER, BACK_AFTER = 6, 2, 3


class Machines(cd.Callback):
    """Ends rank 1 after some epochs, and has its machine come back later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def epoch_ends(self, run: object) -> None:
        ranks, here = world().size, world().rank
        epoch = run.epoch  # type: ignore[attr-defined]
        if here == 0:
            with (self.folder / "epochs").open("a") as file:
                file.write(f"{epoch}:{ranks} ")
        if epoch == LOST_AFTER and ranks == 2 and here == 1 and not self._slots("lost"):
            self._slots("lost", "yes")
            self._slots("slots", "1")
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == BACK_AFTER and ranks == 1:
            self._slots("slots", "2")
            # The supervisor looks at the machines, and sends the ranks a signal.
            until = time.monotonic() + 120.0
            while not self._slots("grows") and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(3.0)

    def _slots(self, name: str, value: str = "") -> bool:
        if value:
            write(self.folder / name, value)
        return (self.folder / name).exists()


def write(path: Path, text: str) -> None:
    """Write a file that another process reads: it is never seen empty."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def train(folder: Path, *, alone: bool) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 6))
    layers = [nn.Input((6,)), nn.Dense(8, activation="tanh"), nn.BatchNorm(), nn.Dense(1)]
    model = cd.NeuralNetwork(
        layers,
        loss="mean_squared",
        optimizer="momentum",
        learning_rate=0.05,
        dtype="float64",
        batch_size=20,
        epochs=EPOCHS,
    )
    callbacks = [] if alone else [Machines(folder)]
    saved = None if alone else folder / "run"
    model.fit((x, x[:, :1]), checkpoint=saved, resume=not alone, callbacks=callbacks, verbose=0)
    if world().rank == 0:
        np.save(
            folder / f"weights-{world().size}.npy",
            np.concatenate([np.ravel(each.numpy()) for each in model.parameters()]),
        )


def supervise(folder: Path) -> int:
    slots = folder / "slots"
    write(slots, "2")
    report = supervision.report

    def say(line: str) -> None:
        report(line)
        if line.startswith("more machines"):
            write(folder / "grows", "yes")

    supervision.report = say
    supervision.live_slots = lambda hosts, environment: {"localhost": int(slots.read_text())}
    program = [__file__, str(folder), "train"]
    job = supervision.Supervisor(
        lambda ranks, hosts: launch(ranks, program), 1, 2, restarts=1, look_s=0.2
    )
    return job.run()


if __name__ == "__main__":
    folder, role = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    if role:
        train(folder, alone=role == "alone")
    else:
        sys.exit(supervise(folder))
