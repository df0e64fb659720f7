"""Training workloads: single steps of networks, and trainings to a test accuracy.

Steps run without dropout and without auxiliary heads, so that a step has one result. Trainings to
an accuracy (levels 2 and 3) run on one process and on several. They use scikit-learn's digits,
which are available on every machine, and their time includes the data pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from caldera import nn
from caldera.bench.workloads.base import BenchWorkload, LearningCase, TrainingCase, UpdateRule
from caldera.nn.layer import Layer

WIDTH = 528
DEPTHS = (2, 3, 4, 6, 8)
WORDS = 64
_LETTERS, _STEPS, _UNITS = 128, 128, 256
_CARD_BATCH = 256
"""Batch size for large images on a GPU."""


def _mlp(depth: int) -> list[Layer]:
    return nn.models.mlp((784,), hidden=(WIDTH,) * (depth - 1), activation="sigmoid")


def _mlp_case(name: str, depth: int, precisions: tuple[str, ...] = ("tf32",)) -> TrainingCase:
    return TrainingCase(
        name,
        layers=partial(_mlp, depth),
        batch=100,
        shape=(784,),
        depth=depth,
        dataset="mnist",
        rule=UpdateRule("sgd", 0.05, weight_decay=0.001),
        card_epoch=600,
        precisions=precisions,
    )


def _images(
    name: str, layers: Callable[[], list[Layer]], batch: int, pixels: int, rate: float
) -> TrainingCase:
    return TrainingCase(
        name,
        layers=layers,
        batch=batch,
        shape=(3, pixels, pixels),
        classes=1000,
        size="large",
        card_batch=_CARD_BATCH,
        precisions=("bfloat16",),
        rule=UpdateRule("sgd", rate, momentum=0.9, weight_decay=1e-4),
    )


_SEED = _mlp_case("mlp", 4, ("tf32", "float32"))
_DEPTH_CASES = [_mlp_case(f"{depth} layers", depth) for depth in DEPTHS]

_SINGLE = {
    "the paper's MLP: 784-528-528-528-10, sigmoid, SGD": _SEED,
    "LeNet-5: tanh, average pooling": TrainingCase(
        "lenet5",
        layers=partial(nn.models.lenet5, activation="tanh", pooling="average"),
        batch=128,
        shape=(1, 28, 28),
        dataset="mnist",
        rule=UpdateRule("sgd", 0.01, momentum=0.9),
        card_epoch=468,
    ),
    "ResNet-20 for CIFAR": TrainingCase(
        "resnet20",
        layers=nn.models.resnet20,
        batch=128,
        shape=(3, 32, 32),
        dataset="cifar10",
        rule=UpdateRule("sgd", 0.1, momentum=0.9, weight_decay=1e-4),
        card_epoch=390,
        precisions=("bfloat16",),
    ),
    "AlexNet, 224 pixels": _images(
        "alexnet", partial(nn.models.alexnet, dropout=0.0), 32, 224, 0.01
    ),
    "VGG-16, 224 pixels": _images("vgg16", partial(nn.models.vgg16, dropout=0.0), 16, 224, 0.001),
    "GoogLeNet with batch normalisation, 224 pixels": _images(
        "googlenet", partial(nn.models.googlenet, auxiliary=False), 32, 224, 0.01
    ),
    "Inception v3, 299 pixels": _images(
        "inception3", partial(nn.models.inception3, auxiliary=False), 16, 299, 0.01
    ),
    "ResNet-50, 224 pixels": _images("resnet50", nn.models.resnet50, 16, 224, 0.01),
    "LSTM, 256 units, 128 steps": TrainingCase(
        "lstm",
        layers=lambda: [
            nn.Input((_STEPS,), dtype="int64"),
            nn.Embedding(WORDS, _UNITS),
            nn.LSTM(_UNITS, return_sequences=True),
            nn.Dense(WORDS),
        ],
        batch=64,
        shape=(_STEPS,),
        classes=WORDS,
        words=WORDS,
        size="medium",
        rule=UpdateRule("adam", 1e-3),
        card_epoch=100,
    ),
    "GPT, 4 layers, 256 wide, 128 tokens": TrainingCase(
        "gpt",
        layers=partial(nn.models.gpt, _LETTERS, context=_STEPS, width=_UNITS, depth=4, heads=4),
        batch=16,
        shape=(_STEPS,),
        classes=_LETTERS,
        words=_LETTERS,
        size="medium",
        rule=UpdateRule("adam", 1e-3),
        card_epoch=100,
        attention=True,
        precisions=("bfloat16",),
    ),
}


def networks() -> list[BenchWorkload]:
    """Return the workloads of training steps.

    >>> [work.name for work in networks()][:3]
    ['mlp', 'mlp-depth', 'lenet5']
    """
    found = [BenchWorkload(case.name, summary, [case], [case]) for summary, case in _SINGLE.items()]
    depth = BenchWorkload(
        "mlp-depth",
        "the paper's figure: time of a step against 2 to 8 layers",
        _DEPTH_CASES,
        [case for case in _DEPTH_CASES if case.depth in (2, 4, 8)],
    )
    return [found[0], depth, *found[1:]]


RANKS = (1, 2, 4)
SCHEMES = ("allreduce", "server", "averaging", "top-k", "quantized")
WEAK_SCALING = "weak-scaling"
_TARGET = 0.95


_MLP = TrainingCase(
    "mlp",
    layers=partial(nn.models.mlp, (64,), hidden=(128,), activation="tanh"),
    batch=48,
    shape=(64,),
    rule=UpdateRule("sgd", 0.2),
)
_CNN = TrainingCase(
    "cnn",
    layers=lambda: [
        nn.Input((1, 8, 8)),
        nn.Conv2D(16, 3),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Dense(10),
    ],
    batch=48,
    shape=(1, 8, 8),
    rule=UpdateRule("sgd", 0.1, momentum=0.9),
)


def _grown(ranks: int) -> TrainingCase:
    """Return the case with 48 samples per rank, and the learning rate scaled linearly."""
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


def learning() -> list[BenchWorkload]:
    """Return the workloads that train to an accuracy.

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
        BenchWorkload(
            "training",
            "digits to 95% of the test samples, data pipeline included",
            alone,
            alone[:1],
        ),
        BenchWorkload(
            "distributed",
            "the same on ranks in threads: strong scaling, compression",
            [*scaled, *others],
            [*scaled[:2], others[2]],
        ),
        BenchWorkload(
            WEAK_SCALING, "the same with a batch that grows with the ranks", grown, grown[:2]
        ),
    ]
