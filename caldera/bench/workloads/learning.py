"""Trainings to a test accuracy, on one process and on several: levels 2 and 3.

On scikit-learn's digits, which every machine has; with the data pipeline inside the clock.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from caldera import nn
from caldera.bench.workloads.base import LearningCase, Rule, TrainingCase, Workload
from caldera.nn.layer import Layer

RANKS = (1, 2, 4)
SCHEMES = ("allreduce", "server", "averaging", "top-k", "quantized")
WEAK_SCALING = "weak-scaling"
_TARGET = 0.95


def _convolutional() -> list[Layer]:
    return [
        nn.Input((1, 8, 8)),
        nn.Conv2D(16, 3),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Dense(10),
    ]


_MLP = TrainingCase(
    "mlp",
    layers=partial(nn.models.mlp, (64,), hidden=(128,), activation="tanh"),
    batch=48,
    shape=(64,),
    rule=Rule("sgd", 0.2),
)
_CNN = TrainingCase(
    "cnn", layers=_convolutional, batch=48, shape=(1, 8, 8), rule=Rule("sgd", 0.1, momentum=0.9)
)


def _grown(ranks: int) -> TrainingCase:
    """With 48 samples on each rank, and steps as much larger (the linear scaling rule)."""
    rate = ranks * _MLP.rule.learning_rate
    return replace(_MLP, batch=ranks * _MLP.batch, rule=replace(_MLP.rule, learning_rate=rate))


def _case(name: str, network: TrainingCase, ranks: int = 1, scheme: str = "") -> LearningCase:
    return LearningCase(
        name,
        network=network,
        dataset="digits",
        epochs=40,
        target=_TARGET,
        ranks=ranks,
        scheme=scheme,
    )


def learning() -> list[Workload]:
    """Every work that trains to an accuracy.

    >>> [work.name for work in learning()]
    ['training', 'distributed', 'weak-scaling']
    """
    alone = [_case("digits mlp", _MLP), _case("digits cnn", _CNN)]
    scaled = [_case(f"allreduce, {ranks} ranks", _MLP, ranks, "allreduce") for ranks in RANKS]
    others = [_case(f"{scheme}, 2 ranks", _MLP, 2, scheme) for scheme in SCHEMES[1:]]
    grown = [
        _case(
            f"allreduce, {ranks} ranks, batch of {_grown(ranks).batch}",
            _grown(ranks),
            ranks,
            "allreduce",
        )
        for ranks in RANKS
    ]
    return [
        Workload(
            "training",
            "digits to 95% of the test samples, data pipeline included",
            alone,
            alone[:1],
        ),
        Workload(
            "distributed",
            "the same on ranks in threads: strong scaling, compression",
            [*scaled, *others],
            [*scaled[:2], others[2]],
        ),
        Workload(WEAK_SCALING, "the same with a batch that grows with the ranks", grown, grown[:2]),
    ]
