"""Training a small network on ranks that are threads, and alone, to compare the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn
from caldera.comm import Communicator, run_virtual_ranks
from caldera.train.strategy import Strategy

FEATURES, CLASSES = 6, 3
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}

MakeStrategy = Callable[[Communicator], Strategy]


def samples(count: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(count, FEATURES)).astype(dtype)
    return x, generator.integers(0, CLASSES, count)


def network(
    optimizer: Any = "momentum",
    dtype: str = "float64",
    layers: Sequence[nn.Layer] = (),
    **more: Any,
) -> cd.NeuralNetwork:
    """Two dense layers with batch normalisation and dropout between them, unless others are given.

    A new optimizer is made for each network: it keeps state.
    """
    chosen = layers or (
        nn.Input((FEATURES,)),
        nn.Dense(5, bias=False),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Dense(CLASSES),
    )
    made = optimizer() if callable(optimizer) else optimizer
    more = {"learning_rate": 0.1} | more if isinstance(made, str) else more
    return cd.NeuralNetwork(list(chosen), optimizer=made, dtype=dtype, **{"batch_size": 10} | more)


def values(model: cd.Model) -> dict[str, np.ndarray]:
    """Everything that training changes."""
    kept = [*model.parameters(), *model.states(), *model.optimizer.variables()]
    return {each.name: each.numpy() for each in kept}


class Watch(cd.Callback):
    """Notes the parameters after each step."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def batch_ends(self, run: cd.Run) -> None:
        self.seen.append(b"".join(p.numpy().tobytes() for p in run.model.parameters()))


@dataclass
class Trained:
    """What each rank had after training."""

    models: list[cd.Model]
    histories: list[cd.History]
    steps: list[list[bytes]] = field(default_factory=list)

    def same_on_all_ranks(self) -> bool:
        """To the bit, after every step and at the end."""
        first = values(self.models[0])
        return (
            all(history == self.histories[0] for history in self.histories)
            and all(steps == self.steps[0] for steps in self.steps)
            and all(
                np.array_equal(value, first[name])
                for model in self.models
                for name, value in values(model).items()
            )
        )


def strategies_of(kind: Callable[..., Strategy]) -> Callable[..., MakeStrategy]:
    """What takes the arguments of a strategy, and gives what makes it for a rank."""
    return lambda *first, **options: lambda comm: kind(*first, communicator=comm, **options)


def trained(
    ranks: int,
    make: Callable[[], cd.Model],
    strategy: MakeStrategy,
    data: tuple[np.ndarray, ...],
    *,
    watch: bool = True,
    callbacks: Sequence[cd.Callback] = (),
    **how: Any,
) -> Trained:
    """Train on so many ranks. Models are made one after the other: seeding is global."""
    models = [make() for _ in range(ranks)]
    watches = [Watch() for _ in range(ranks)]

    def work(comm: Communicator) -> cd.History:
        watching = [*callbacks, watches[comm.rank]] if watch else callbacks
        return models[comm.rank].fit(
            data, parallel=strategy(comm), verbose=0, callbacks=watching, **how
        )

    histories = run_virtual_ranks(ranks, work)
    return Trained(models, histories, [each.seen for each in watches])


def alone(make: Callable[[], cd.Model], data: tuple[np.ndarray, ...], **how: Any) -> Trained:
    """Train in one process."""
    model = make()
    return Trained([model], [model.fit(data, verbose=0, **how)])


def assert_close(found: Trained, expected: Trained, tolerance: float | None = None) -> None:
    """The same parameters, statistics, optimizer state and history, but for rounding."""
    there = values(expected.models[0])
    here = values(found.models[0])
    assert here.keys() == there.keys()
    if tolerance is None:
        tolerance = TOLERANCE[found.models[0].parameters()[0].numpy().dtype.name]
    for name, value in here.items():
        np.testing.assert_allclose(value, there[name], rtol=tolerance, atol=tolerance, err_msg=name)
    for column in expected.histories[0]:
        if column != "seconds":
            np.testing.assert_allclose(
                found.histories[0][column], expected.histories[0][column], rtol=tolerance
            )


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """The same `values`, to the bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.tobytes() == other[name].tobytes(), name
