"""`NeuralNetwork`: the model that is made of a list of layers, and made again by `cd.load`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import canonical, is_float
from caldera.errors import ConfigError, DataError, DeviceError
from caldera.io.files import Source, file_name_of
from caldera.nn import (
    BatchNorm,
    Conv2D,
    Input,
    Layer,
    MaxPool2D,
    Rescale,
    Sequential,
    from_config,
    network,
    trace,
)
from caldera.nn.losses import losses
from caldera.nn.metrics import metrics
from caldera.optim import Optimizer, optimizers
from caldera.train.model import Model
from caldera.train.model_settings import GivenLoss
from caldera.train.saving.model_file import (
    SETTINGS,
    model_bytes,
    read_content,
    read_schema,
    read_tensors,
)
from caldera.train.saving.snapshot import (
    assign_all,
    model_variables,
    progress_bytes,
    restore_progress,
)

_MOST_INPUTS = 64

_LEAST_PIXELS = 8
"""A side of images, at least; smaller ones may well be feature maps."""


class NeuralNetwork(Model):
    """A network made of a list of layers.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork(
    ...     [nn.Input((8, 8)), nn.Flatten(), nn.Dense(32), nn.Sigmoid(), nn.Dense(10)],
    ...     "cross_entropy", "adam", batch_size=100, epochs=5, learning_rate=1e-3)
    >>> sum(p.size for p in model.parameters())
    2410
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: GivenLoss = "cross_entropy",
        optimizer: str | Optimizer = "adam",
        **settings: Any,
    ) -> None:
        super().__init__(loss=loss, optimizer=optimizer, **settings)
        if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
            raise ConfigError.build(
                "NeuralNetwork",
                expected="a list of layers",
                got=repr(layers),
                hint="as in NeuralNetwork([nn.Input((4,)), nn.Dense(3)])",
            )
        self.network = Sequential(list(layers))
        _tell_channels_last(layers)
        specs = self.input_specs()
        if specs is not None:
            self._trace_once(specs)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Its layers, in their order: those of a trained network may be part of another one.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> trained = cd.NeuralNetwork([nn.Input((8,)), nn.Dense(32), nn.ReLU(), nn.Dense(10)])
        >>> *kept, _ = trained.layers
        >>> for layer in kept:
        ...     layer.freeze()
        >>> model = cd.NeuralNetwork([*kept, nn.Dense(3)])
        >>> len(model.parameters()), len(model.trainable())
        (4, 2)
        """
        return tuple(self.network.layers)

    def sequence(self) -> Sequential | None:
        # A subclass may do more than its list of layers, and only its class can make it again.
        return self.network if type(self) is NeuralNetwork else None

    def children(self) -> Iterator[tuple[str, Layer]]:
        return self.network.children()

    def forward(self, *inputs: Expr) -> Any:
        return self.network.forward(*inputs)

    def input_specs(self) -> tuple[tuple[tuple[int, ...], str], ...] | None:
        first = self.network.layers[0] if self.network.layers else None
        if not isinstance(first, Input):
            return None
        dtype = first.dtype or str(np.dtype(self.dtype))
        shape = first.traced_shape
        has_mask = first.is_open and is_float(canonical(dtype))
        return ((shape, dtype), *([(shape[:1], "bool")] if has_mask else []))

    @property
    def open_lengths(self) -> bool:
        first = self.network.layers[0] if self.network.layers else None
        return self._open_lengths or (isinstance(first, Input) and first.is_open)

    def __reduce__(self) -> Any:
        # A network that knows its shapes is what its file is; one that does not has no weights yet.
        if type(self) is not NeuralNetwork or self._signature is None:
            return super().__reduce__()
        return from_pickle, (model_bytes(self), progress_bytes(self), self.device.name)


def _tell_channels_last(layers: Sequence[Layer]) -> None:
    """Warn where a convolution would take the columns of images for their channels."""
    first = layers[0]
    if not isinstance(first, Input) or first.layout == "NHWC" or len(first.shape) != 3:
        return
    height, width, channels = first.shape
    looks_so = channels in (1, 3) and height == width and (width or 0) >= _LEAST_PIXELS
    after = next((each for each in layers[1:] if not isinstance(each, BatchNorm | Rescale)), None)
    if looks_so and isinstance(after, Conv2D | MaxPool2D):
        warnings.warn(
            f"nn.Input({first.shape}) is read as {height} channels of {width} x {channels} pixels; "
            f"images with the channels last are nn.Input({first.shape}, layout='NHWC')",
            stacklevel=3,
        )


def from_pickle(model: bytes, progress: bytes, device: str) -> NeuralNetwork:
    """What a pickle of a network calls, and nothing else: the bytes of a model file, and how far
    training has come (see `progress_bytes`). It is on the device of this name if that is here.

    >>> import pickle
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    >>> pickle.loads(pickle.dumps(model)).parameters()[0].name
    '1-Dense/weight'
    """
    made = load_model(io.BytesIO(model))
    restore_progress(made, progress)
    with suppress(DeviceError):
        made.to(device)
    return made


# --- from a model file


def load_model(path: Source) -> NeuralNetwork:
    """The network that `save` wrote: layers, weights, loss, optimizer and settings.

    `path` may be a file that is open. Only registered layers are made; everything is checked
    before memory is taken. A model with a `forward` of its own needs its class: make it, and use
    its `load_weights`.

    >>> import caldera as cd
    >>> cd.load("no/such/file.caldera")
    Traceback (most recent call last):
    caldera.errors.DataError: load_safetensors_metadata file.caldera:
    expected a file at no/such/file.caldera, got no folder no/such
    """
    where = file_name_of(path)
    content = read_content(path)
    require(
        content["kind"] == "NeuralNetwork",
        where,
        "a NeuralNetwork",
        f"the weights of {content['class']!r}",
        f"make a {content['class']} and call its load_weights(path)",
    )
    inputs = _inputs(content["inputs"], where)
    settings = settings_from_config(content["settings"], where)
    schema = read_schema(content, where)
    _check_sizes(content, inputs, settings["dtype"], where)
    tensors = read_tensors(path, content)
    model = NeuralNetwork(layers_from_config(content["layers"], where), **settings)
    if model.input_specs() is None:
        # Only shape and dtype matter, so one number stands for all.
        model.build_for(*[np.broadcast_to(np.zeros((), kind), (2, *s)) for s, kind in inputs])
    assign_all(model_variables(model), tensors, where)
    model.schema = schema
    model._open_lengths = content.get("open_lengths", False) is True
    return model


def layers_from_config(config: Any, where: str) -> list[Any]:
    """The layers that a file describes."""
    if not isinstance(config, list):
        raise DataError.build(where, expected="a list of layers", got=repr(config)[:100])
    whole = from_config({"layer": "Sequential", "layers": config})
    assert isinstance(whole, Sequential)
    return list(whole.layers)


def _inputs(given: Any, where: str) -> list[tuple[tuple[int, ...], str]]:
    try:
        if not 0 < len(given) <= _MOST_INPUTS:
            raise ValueError(f"{len(given)} inputs")
        return [(tuple(int(n) for n in shape), str(dtype)) for shape, dtype in given]
    except (TypeError, ValueError) as problem:
        raise DataError.build(
            where, expected="shape and dtype of each input", got=str(problem)
        ) from None


def settings_from_config(given: Any, where: str) -> dict[str, Any]:
    """What `settings_of` described, as a network takes it."""
    if not isinstance(given, Mapping) or set(given) != set(SETTINGS):
        got = ", ".join(given) if isinstance(given, Mapping) else repr(given)
        raise DataError.build(where, expected="settings " + ", ".join(SETTINGS), got=got[:200])
    require(
        isinstance(given["loss"], Mapping) and isinstance(given["metrics"], list),
        where,
        "losses by name and a list of metrics",
        "others",
        error=DataError,
    )
    return {
        **given,
        "loss": {name: losses.from_config(each) for name, each in given["loss"].items()},
        "optimizer": optimizers.from_config(given["optimizer"]),
        "metrics": [metrics.from_config(each) for each in given["metrics"]],
    }


def _check_sizes(
    content: Mapping[str, Any],
    inputs: list[tuple[tuple[int, ...], str]],
    dtype: str,
    where: str,
) -> None:
    """Compare what the layers need with what the file holds, without making any variable."""
    outline = network(layers_from_config(content["layers"], where))
    with trace(allocate=False, dtype=dtype):
        outline(*[op.input(f"x{i}", (2, *s), dtype=kind) for i, (s, kind) in enumerate(inputs)])
    needed = {name: list(each.shape) for name, each in model_variables(outline).items()}
    held = {name: each["shape"] for name, each in content["tensors"].items()}
    if needed != held:
        differing = sorted(name for name in needed | held if needed.get(name) != held.get(name))
        raise DataError.build(
            where,
            expected="the weights that its layers need",
            got="; ".join(f"{n}: {held.get(n)} for {needed.get(n)}" for n in differing[:8]),
            hint="the file is damaged",
        )
