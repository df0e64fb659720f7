"""`NeuralNetwork`: a model built from a list of layers, which `cd.load` can restore."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from caldera.base.arguments import checked, guarded, require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import canonical, is_float
from caldera.errors import ConfigError, DeviceError
from caldera.io.files import Source, file_name_of
from caldera.nn.basic import Input, Sequential
from caldera.nn.convolution import Conv2D
from caldera.nn.few_bits import LEAST_INPUTS, WeightFormat, weight_format_of
from caldera.nn.layer import Layer
from caldera.nn.normalisation import BatchNorm
from caldera.nn.pooling import MaxPool2D
from caldera.nn.preprocessing import Rescale
from caldera.optim import Optimizer
from caldera.train.model import Model
from caldera.train.model_settings import GivenLoss
from caldera.train.quantise import (
    WEIGHTS,
    Quantisation,
    comparison,
    few_bits_of,
    quantised_config,
    take_weights,
    with_weight_format,
)
from caldera.train.saving.model_file import (
    layers_from_config,
    model_bytes,
    read_content,
    read_network,
    read_schema,
    read_tensors,
    settings_from_config,
    settings_of,
)
from caldera.train.saving.snapshot import (
    assign_all,
    model_variables,
    progress_bytes,
    restore_progress,
)

_LEAST_PIXELS = 8
"""A side of images, at least; smaller ones may well be feature maps."""


@guarded
class NeuralNetwork(Model):
    """Network built from a list of layers.

    Args:
        layers: Layers in the order of the forward pass; `nn.Input` has the shape of a sample.
        loss: Name of a loss, object of `nn.losses`, or function of predictions and targets.
        optimizer: Name of an optimizer, or object of `optim`.
        params: Settings in a dict, as `**settings`.
        **settings: `learning_rate`, `batch_size`, `epochs`, `metrics`, `precision`, `device`,
            `seed` and further settings of `Model`.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork(
    ...     [nn.Input((8, 8)), nn.Flatten(), nn.Dense(32), nn.Sigmoid(), nn.Dense(10)],
    ...     "cross_entropy", "adam", batch_size=100, epochs=5, learning_rate=1e-3)
    >>> sum(p.size for p in model.parameters())
    2410
    """

    quantisation: Quantisation | None = None
    """Comparison with the network that this one was quantised from."""

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: GivenLoss = "cross_entropy",
        optimizer: str | Optimizer = "adam",
        params: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(loss=loss, optimizer=optimizer, **{**(params or {}), **settings})
        if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
            raise ConfigError.build(
                "NeuralNetwork",
                expected="a list of layers",
                got=repr(layers),
                hint="for example NeuralNetwork([nn.Input((4,)), nn.Dense(3)])",
            )
        self.network = Sequential(list(layers))
        _mark_channels_last(layers)
        specs, first = self.input_specs(), layers[0]
        if specs is not None and isinstance(first, Input):
            axes = first.open_axes
            self._open_axes = frozenset((n, a) for n in range(len(specs)) for a in axes)
            self._trace_once(specs)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers of the network, in order; trained layers may be reused in another network.

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

    @checked
    def quantise(
        self,
        kind: str = "int8",
        *,
        samples: Any = None,
        ends: bool = False,
        data: Any = None,
        group: int = 64,
    ) -> NeuralNetwork:
        """Return a copy for inference, with weights of 8 bits or fewer.

        "int8" rounds the weights of dense layers and of convolutions of images to 8 bits, with a
        scale for each output. Inputs are rounded to 8 bits for each row or image, or in steps that
        fit the inputs seen for `samples`. A batch normalisation after a convolution becomes part
        of its weights. The first and the last layer with weights keep their precision unless
        `ends`; convolutions with groups and other layers always keep it.

        "int8-weights" rounds the matrices of dense layers, attention and embeddings, also those
        inside a GPT, to 8 bits with a scale for each output. "int4-weights" rounds them to 4 bits
        with a scale for each `group` of inputs. Inputs stay as they are. Predictions for a few rows
        read fewer bytes, so that text is generated faster.

        "ternary" packs five weights of ternary layers in a byte, and eight of binary ones, without
        any change of the results. With `data`, both networks are evaluated: `quantisation` has the
        results, and `print` shows the change.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> digits = cd.data.digits()
        >>> layers = nn.models.mlp(digits.shape, hidden=(64, 64))
        >>> model = cd.NeuralNetwork(layers, seed=1)
        >>> _ = model.fit(digits.train, epochs=5, verbose=0)
        >>> small = model.quantise(data=digits.test)
        >>> small.quantisation.layers, abs(small.quantisation.change["accuracy"]) < 0.01
        (('3-Dense',), True)
        """
        kinds = ("int8", *WEIGHTS, "ternary")
        require(kind in kinds, "quantise", f"one of {', '.join(kinds)}", repr(kind))
        require(self.sequence(), "quantise", "a NeuralNetwork", type(self).__name__)
        is_float = all(weight_format_of(each) is None for each in self.walk())
        require(is_float, "quantise", "weights in floating point", "weights of a few bits")
        is_plain = kind == "int8" or (samples is None and not ends)
        require(is_plain, "quantise", "samples= and ends= for 'int8' only", repr(kind))
        if kind in WEIGHTS:
            config = with_weight_format(self, WeightFormat(WEIGHTS[kind], group))
        else:
            config, paths = quantised_config(self, kind, samples, ends=ends)
        settings = settings_from_config(settings_of(self), "quantise")
        made = _network(config, self.signature.inputs, settings, "quantise")
        if kind in WEIGHTS:
            paths = tuple(each.path for each in made.walk() if few_bits_of(each))
            require(paths, "quantise", f"matrices of at least {LEAST_INPUTS} inputs", "none")
        take_weights(made, self)
        made.schema, made._open_lengths = self.schema, self._open_lengths
        made.to(self.device)
        made.quantisation = comparison(made, self, paths, data)
        return made

    def __reduce__(self) -> Any:
        # A network with known shapes is pickled as its model file; without shapes it has no weights
        # yet.
        if type(self) is not NeuralNetwork or self._signature is None:
            return super().__reduce__()
        return from_pickle, (model_bytes(self), progress_bytes(self), self.device.name)


def _mark_channels_last(layers: Sequence[Layer]) -> None:
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
            stacklevel=4,
        )


def from_pickle(model: bytes, progress: bytes, device: str) -> NeuralNetwork:
    """Restore a pickled network, the only function that its pickle calls.

    `model` has the bytes of a model file, `progress` the training progress (see `progress_bytes`).
    The network is moved to `device` if that exists here.

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


@checked
def load_model(path: Source) -> NeuralNetwork:
    """Load a network written by `save`: layers, weights, loss, optimizer and settings.

    `path` may be an open file. Only registered layers are created; everything is checked before
    memory is allocated. A model with a custom `forward` needs its class: create an instance and
    call its `load_weights`.

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
    inputs, settings = read_network(content, where)
    schema = read_schema(content, where)
    tensors = read_tensors(path, content)
    model = _network(content["layers"], inputs, settings, where)
    assign_all(model_variables(model), tensors, where)
    model.schema = schema
    model._open_lengths = content.get("open_lengths", False) is True
    return model


def _network(
    config: Any,
    inputs: Sequence[tuple[tuple[int, ...], str]],
    settings: dict[str, Any],
    where: str,
) -> NeuralNetwork:
    """Build the network of described layers, with new weights."""
    model = NeuralNetwork(layers_from_config(config, where), **settings)
    if model.input_specs() is None:
        # Only shape and dtype matter, so one number is broadcast to the whole array.
        model.build_for(*[np.broadcast_to(np.zeros((), kind), (2, *s)) for s, kind in inputs])
    return model
