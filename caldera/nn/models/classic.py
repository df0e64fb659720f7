"""Networks of dense layers, and LeNet-5."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.nn.basic import Dense, Dropout, Flatten, Input
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.pooling import Pooling2D


def mlp(
    input_shape: Sequence[int] = (784,),
    classes: int = 10,
    hidden: Sequence[int] = (528, 528, 528),
    activation: str = "relu",
    dropout: float = 0.0,
) -> list[Layer]:
    """Dense layers of the sizes `hidden`, then one for the classes; Glorot's initial weights.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.mlp((784,), classes=10))
    978394
    """
    layers: list[Layer] = [Input(input_shape), Flatten()]
    for units in hidden:
        layers.append(Dense(units, activation))
        if dropout:
            layers.append(Dropout(dropout))
    return [*layers, Dense(classes)]


def lenet5(
    input_shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    activation: str = "relu",
    pooling: str = "max",
) -> list[Layer]:
    """LeNet-5 (LeCun and others, 1998) in today's form: two convolutions, three dense layers.

    The paper has activation="tanh" and pooling="average", with a few weights more in the pooling
    and fewer in the second convolution. Images of 28 x 28 are padded to its 32 x 32.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.lenet5())
    61706
    """
    border = 2 if tuple(input_shape)[-1:] < (32,) else 0
    return [
        Input(input_shape),
        Conv2D(6, 5, padding=border, activation=activation),
        Pooling2D(pooling, 2),
        Conv2D(16, 5, activation=activation),
        Pooling2D(pooling, 2),
        Flatten(),
        Dense(120, activation),
        Dense(84, activation),
        Dense(classes),
    ]
