"""The model zoo: well-known networks as lists of layers, with the published parameter counts."""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.nn.models.image_classifiers import (
    PaddedShortcut,
    alexnet,
    lenet5,
    mlp,
    resnet18,
    resnet20,
    resnet34,
    resnet50,
    resnet56,
    vgg16,
    vgg19,
)
from caldera.nn.models.inception import GoogLeNet, Inception3, googlenet, inception3
from caldera.nn.models.pretrained import load_huggingface, load_torchvision, torchvision_names
from caldera.nn.models.text import GPT, gpt, lstm_classifier, text_classifier

__all__ = [
    "GPT",
    "GoogLeNet",
    "Inception3",
    "PaddedShortcut",
    "alexnet",
    "googlenet",
    "gpt",
    "inception3",
    "lenet5",
    "load_huggingface",
    "load_torchvision",
    "lstm_classifier",
    "mlp",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet50",
    "resnet56",
    "text_classifier",
    "torchvision_names",
    "vgg16",
    "vgg19",
]

_guard(globals())
_answer_foreign(globals())
