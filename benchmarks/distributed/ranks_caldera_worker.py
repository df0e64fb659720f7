"""Caldera's ranks in ranks_torch.py, which starts them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import caldera as cd
from benchmarks.distributed import ranks_cases as shared
from caldera import nn, optim, parallel
from caldera.comm import world
from caldera.train.run import Run
from caldera.train.strategy import Strategy


def model_of(network: str) -> cd.NeuralNetwork:
    """Return a network as both frameworks train it."""
    if network == "mlp":
        layers = nn.models.mlp((784,), hidden=shared.HIDDEN, activation="sigmoid")
    elif network == "resnet20":
        layers = nn.models.resnet20()
    else:
        blocks = [nn.TransformerBlock(shared.HEADS, causal=True) for _ in range(shared.DEPTH)]
        layers = [
            nn.Input((shared.CONTEXT,), dtype="int64"),
            nn.Embedding(shared.WORDS, shared.WIDTH),
            nn.PositionalEmbedding(shared.CONTEXT),
            *blocks,
            nn.LayerNorm(),
            nn.Dense(shared.WORDS),
        ]
    rule = optim.SGD(shared.RATE, momentum=shared.MOMENTUM)
    return cd.NeuralNetwork(layers, optimizer=rule, batch_size=shared.BATCH[network], metrics=[])


def batch_of(network: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the batch of every step."""
    generator, count = np.random.default_rng(1), shared.BATCH[network]
    shape = (count, *shared.SHAPE[network])
    if network == "gpt":
        words = generator.integers(0, shared.WORDS, (count, shared.CONTEXT + 1))
        return words[:, :-1], words[:, 1:]
    return generator.standard_normal(shape, np.float32), generator.integers(0, 10, count)


def write(network: str, folder: Path) -> None:
    """Write the weights and the batch of a network, for the other framework."""
    weights = [each.numpy().astype(np.float32).ravel() for each in model_of(network).parameters()]
    shared.write_array(folder / f"{network}.weights", "f", np.concatenate(weights).tobytes())
    x, y = batch_of(network)
    shared.write_array(folder / f"{network}.x", "q" if network == "gpt" else "f", x.tobytes())
    shared.write_array(folder / f"{network}.y", "q", y.tobytes())


def strategy_of(case: shared.RanksCase) -> Strategy:
    """Return the strategy of a case."""
    if case.strategy == "sharded":
        return parallel.Sharded(3)
    if case.strategy == "pipeline":
        stages, pipelines, parts = shared.pipeline_shape(case.network, world().size)
        return parallel.PipelineParallel(stages, micro_batches=parts, data=pipelines)
    packed = {
        "data": None,
        "powersgd": cd.compress.PowerSGD(shared.POWER_RANK),
        "bf16": cd.compress.Cast("bfloat16"),
    }
    return parallel.DataParallel(compression=packed[case.strategy])


class Pauses(cd.Callback):
    """Ends of steps, for the clock of turns."""

    def __init__(self, clock: shared.TurnClock) -> None:
        self.clock = clock

    def batch_ends(self, run: Run) -> None:
        self.clock.step_ends()


def main(folder: Path, first: int, cases: list[shared.RanksCase]) -> None:
    """Train each case in the turns that the parent gives."""
    cd.settings.update(accelerator="cpu")
    everyone = world()
    shared.take_cores(everyone.rank, everyone.size)
    for index, case in enumerate(cases, first):
        turns = shared.Turns(folder, "Caldera")
        clock = shared.TurnClock(turns, index, case, everyone.rank == 0)
        x, y = batch_of(case.network)
        x, y = (np.concatenate([each] * case.total_steps) for each in (x, y))
        history = model_of(case.network).fit(
            (x, y),
            epochs=1,
            shuffle=False,
            parallel=strategy_of(case),
            callbacks=[Pauses(clock)],
            verbose=0,
        )
        clock.report(history["loss"][-1])


if __name__ == "__main__":
    shared.take_session()
    main(Path(sys.argv[1]), int(sys.argv[2]), shared.from_json(sys.argv[3]))
