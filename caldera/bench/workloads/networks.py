"""Training steps: the networks, their batches and their optimizers.

Dropout is off and auxiliary heads are left away, so that a step has one result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from caldera import nn
from caldera.bench.workloads.base import Rule, TrainingCase, Workload
from caldera.nn.layer import Layer

WIDTH = 528
DEPTHS = (2, 3, 4, 6, 8)
WORDS = 64
_LETTERS, _STEPS, _UNITS = 128, 128, 256
_CARD_BATCH = 256
"""Of large images on a card."""


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
        rule=Rule("sgd", 0.05, weight_decay=0.001),
        card_epoch=600,
        precisions=precisions,
    )


def _lstm() -> list[Layer]:
    return [
        nn.Input((_STEPS,), dtype="int64"),
        nn.Embedding(WORDS, _UNITS),
        nn.LSTM(_UNITS, return_sequences=True),
        nn.Dense(WORDS),
    ]


def _gpt() -> list[Layer]:
    return nn.models.gpt(_LETTERS, context=_STEPS, width=_UNITS, depth=4, heads=4)


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
        rule=Rule("sgd", rate, momentum=0.9, weight_decay=1e-4),
    )


_SEED = _mlp_case("mlp", 4, ("tf32", "float32"))
_DEPTH_CASES = [_mlp_case(f"{depth} layers", depth) for depth in DEPTHS]

_SINGLE = {
    "the seed's MLP: 784-528-528-528-10, sigmoid, SGD": _SEED,
    "LeNet-5: tanh, average pooling": TrainingCase(
        "lenet5",
        layers=partial(nn.models.lenet5, activation="tanh", pooling="average"),
        batch=128,
        shape=(1, 28, 28),
        dataset="mnist",
        rule=Rule("sgd", 0.01, momentum=0.9),
        card_epoch=468,
    ),
    "ResNet-20 for CIFAR": TrainingCase(
        "resnet20",
        layers=nn.models.resnet20,
        batch=128,
        shape=(3, 32, 32),
        dataset="cifar10",
        rule=Rule("sgd", 0.1, momentum=0.9, weight_decay=1e-4),
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
        layers=_lstm,
        batch=64,
        shape=(_STEPS,),
        classes=WORDS,
        words=WORDS,
        size="medium",
        rule=Rule("adam", 1e-3),
        card_epoch=100,
    ),
    "GPT, 4 layers, 256 wide, 128 tokens": TrainingCase(
        "gpt",
        layers=_gpt,
        batch=16,
        shape=(_STEPS,),
        classes=_LETTERS,
        words=_LETTERS,
        size="medium",
        rule=Rule("adam", 1e-3),
        card_epoch=100,
        attention=True,
        precisions=("bfloat16",),
    ),
}


def networks() -> list[Workload]:
    """Every work that trains a network.

    >>> [work.name for work in networks()][:3]
    ['mlp', 'mlp-depth', 'lenet5']
    """
    found = [Workload(case.name, summary, [case], [case]) for summary, case in _SINGLE.items()]
    depth = Workload(
        "mlp-depth",
        "the seed's figure: time of a step against 2 to 8 layers",
        _DEPTH_CASES,
        [case for case in _DEPTH_CASES if case.depth in (2, 4, 8)],
    )
    return [found[0], depth, *found[1:]]
