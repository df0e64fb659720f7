"""Networks that the command line can build, and the options of each network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from caldera.base.registry import nearest
from caldera.errors import ConfigError
from caldera.nn import Layer, models
from caldera.nn.models import GPT


@dataclass(frozen=True)
class ZooNetwork:
    """A function of the zoo.

    `reads_words` is for networks whose inputs are rows of whole numbers. `heads` are auxiliary
    outputs, each with the weight of its loss.
    """

    make: Callable[..., list[Layer]]
    reads_words: bool = False
    heads: Mapping[str, float] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        """Names of the network's options, without options that follow from the data.

        >>> ZOO["mlp"].options
        ['hidden', 'activation', 'dropout']
        """
        known = list(inspect.signature(self.make).parameters)
        if "settings" in known:
            known = [*known[:-1], *(each.name for each in fields(GPT) if each.init)]
        return [name for name in dict.fromkeys(known) if name not in _FROM_DATA]


_FROM_DATA = ("input_shape", "classes", "length", "context", "name", "device")

ZOO: Mapping[str, ZooNetwork] = {
    "mlp": ZooNetwork(models.mlp),
    "lenet5": ZooNetwork(models.lenet5),
    "alexnet": ZooNetwork(models.alexnet),
    "vgg16": ZooNetwork(models.vgg16),
    "vgg19": ZooNetwork(models.vgg19),
    "googlenet": ZooNetwork(models.googlenet, heads={"aux1": 0.3, "aux2": 0.3}),
    "inception3": ZooNetwork(models.inception3, heads={"aux": 0.4}),
    "resnet18": ZooNetwork(models.resnet18),
    "resnet34": ZooNetwork(models.resnet34),
    "resnet50": ZooNetwork(models.resnet50),
    "resnet20": ZooNetwork(models.resnet20),
    "resnet56": ZooNetwork(models.resnet56),
    "lstm_classifier": ZooNetwork(models.lstm_classifier, reads_words=True),
    "text_classifier": ZooNetwork(models.text_classifier, reads_words=True),
    "gpt": ZooNetwork(models.gpt, reads_words=True),
}


def make_layers(
    name: str,
    options: Mapping[str, Any],
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
) -> list[Layer]:
    """Build the layers of a network for samples of this shape, or of the published shape.

    >>> layers = make_layers("mlp", {"hidden": [8]}, (1, 4, 4), 3)
    >>> layers[-1].units
    3
    >>> make_layers("lenet5", {"hidden": [8]})
    Traceback (most recent call last):
    caldera.errors.ConfigError: model lenet5: expected an option it takes, got 'hidden'; known: activation, pooling
    """  # noqa: E501
    network = ZOO[name]
    for option in options:
        if option not in network.options:
            raise ConfigError.build(
                f"model {name}",
                expected="an option it takes",
                got=repr(option),
                hint=nearest(option, network.options) if network.options else "it has none",
            )
    arguments = dict(options)
    if network.reads_words:
        arguments |= _of_words(name, input_shape, classes, options)
    else:
        arguments |= {} if input_shape is None else {"input_shape": tuple(input_shape)}
        arguments |= {} if classes is None else {"classes": classes}
    return network.make(**arguments)


def _of_words(
    name: str, shape: Sequence[int] | None, classes: int | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of networks that read words: row length and vocabulary size."""
    if shape is None or len(shape) != 1 or "vocabulary" not in options:
        raise ConfigError.build(
            f"model {name}",
            expected="rows of words, and the size of the vocabulary",
            got=f"samples of shape {tuple(shape or ())}",
            hint="give data of integers or --input-shape LENGTH, and --vocabulary",
        )
    if name == "gpt":
        return {"context": shape[0]}
    return {"length": shape[0], "classes": classes or 2}
