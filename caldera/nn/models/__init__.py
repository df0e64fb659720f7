"""The model zoo: well-known networks as lists of layers, with the published parameter counts."""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.nn.models.alexnet import alexnet
from caldera.nn.models.classic import lenet5, mlp
from caldera.nn.models.googlenet import GoogLeNet, googlenet
from caldera.nn.models.gpt import GPT, gpt
from caldera.nn.models.huggingface import load_huggingface
from caldera.nn.models.inception3 import Inception3, inception3
from caldera.nn.models.lstm import lstm_classifier, text_classifier
from caldera.nn.models.resnet import (
    PaddedShortcut,
    resnet18,
    resnet20,
    resnet34,
    resnet50,
    resnet56,
)
from caldera.nn.models.torchvision import load_torchvision, torchvision_names
from caldera.nn.models.vgg import vgg16

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
]

_guard(globals())
