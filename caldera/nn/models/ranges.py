"""What the arguments of models in the zoo may sensibly be, for `search.space_of`.

The words are those of `Layer.ranges`; ("list", least, most, low, high) is a list of so many whole
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ACTIVATIONS = ("choice", ("relu", "tanh", "gelu", "silu"))

RANGES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "mlp": {
        "hidden": ("list", 1, 4, 32, 1024),
        "activation": _ACTIVATIONS,
        "dropout": ("uniform", 0.0, 0.6),
    },
    "lenet5": {"activation": _ACTIVATIONS, "pooling": ("choice", ("max", "average"))},
    "lstm_classifier": {
        "width": ("whole", 16, 256),
        "units": ("whole", 16, 512),
        "depth": ("whole", 1, 3),
        "bidirectional": ("choice", (False, True)),
        "dropout": ("uniform", 0.0, 0.6),
    },
    "alexnet": {"dropout": ("uniform", 0.2, 0.7)},
    "vgg16": {"dropout": ("uniform", 0.2, 0.7)},
    "gpt": {
        "depth": ("whole", 1, 12),
        "width": ("choice", (64, 128, 256, 512)),
        "heads": ("choice", (2, 4, 8)),
        "dropout": ("uniform", 0.0, 0.3),
    },
}
