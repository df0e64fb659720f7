"""The network of a model as a graph: built for its inputs, written down for a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.random import seeded
from caldera.errors import ConfigError, DataError
from caldera.nn.basic import Input, shape_text
from caldera.nn.tracing import Context, trace
from caldera.train.model_settings import ModelSettings
from caldera.train.step_graph import (
    AFTER_PARAMETERS,
    ModelSignature,
    StepGraph,
    in_units,
    main_output,
    named_outputs,
)


class NetworkGraph(ModelSettings):
    """A network whose parameters are created for the shapes of its first inputs."""

    samples_traced: int = 2
    """Samples of the batch that is traced to find shapes."""
    whole_batches: ClassVar[bool] = False
    """True if training leaves out an incomplete last batch."""
    step_graph: ClassVar[type[StepGraph]] = StepGraph
    """The class that writes a training step down."""
    sequences_kept: int = 0
    """The number of sequences of which layers keep the states, from batch to batch."""
    _signature: ModelSignature | None
    _open_lengths: bool
    _open_axes: frozenset[tuple[int, int]]

    def step_outputs(self, *inputs: Any) -> Any:
        """Return the values from which a training step begins: the outputs of the network."""
        return self(*inputs)

    @property
    def signature(self) -> ModelSignature:
        """The inputs and outputs for one sample, once the model has been built."""
        if self._signature is None:
            raise ConfigError.build(
                type(self).__name__,
                expected="a model with a known input shape",
                got="a new one",
                hint="call build_for(x), fit or predict first, or start with nn.Input",
            )
        return self._signature

    def input_specs(self) -> tuple[tuple[tuple[int, ...], str], ...] | None:
        """Return the (shape, dtype) of each input for a single sample, or None if not known yet."""
        return None

    def input_names(self) -> list[str]:
        """Return the names of the inputs: the parameters of `forward`."""
        return parameter_names(self.forward)

    @property
    def open_lengths(self) -> bool:
        """True if inputs are sequences of any length, with separate plans for each length."""
        return self._open_lengths

    @property
    def open_axes(self) -> frozenset[tuple[int, int]]:
        """(input, axis of a sample) pairs whose size may differ from batch to batch."""
        if not self._open_lengths:
            return self._open_axes
        return self._open_axes | {(number, 0) for number in range(len(self.signature.inputs))}

    @property
    def takes_mask(self) -> bool:
        """True if a second input marks the real steps of sequences."""
        inputs = self.signature.inputs
        return len(inputs) == 2 and inputs[1][1] == "bool"

    def build_for(self, *samples: Any) -> Context:
        """Make all parameters for batches like these (only shapes and dtypes matter).

        For a network with a custom `forward`, `build_for(nn.Input((3, None, None)))` declares which
        sizes of its samples are open.

        >>> import numpy as np
        >>> import caldera as cd
        >>> from caldera import nn
        >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
        >>> [p.shape for p in model.parameters()]
        [(4, 3), (3,)]
        """
        open_axes: set[tuple[int, int]] = set()
        specs: list[tuple[tuple[int, ...], str]] = []
        for number, x in enumerate(samples):
            if isinstance(x, Input):
                open_axes |= {(number, axis) for axis in x.open_axes}
                specs.append((x.traced_shape, x.dtype or str(np.dtype(self.dtype))))
            else:
                specs.append((np.shape(x)[1:], input_dtype(self.dtype, np.asarray(x))))
        self._open_axes |= open_axes
        return self._trace_once(tuple(specs))

    def build_again(self) -> Context:
        """Make all parameters that do not exist, for the inputs that are known."""
        return self._trace_once(self.signature.inputs)

    def _trace_once(self, specs: tuple[tuple[tuple[int, ...], str], ...]) -> Context:
        self.sequences_kept = max(getattr(layer, "stateful", 0) for layer in self.walk())
        if self.sequences_kept:
            self.samples_traced = self.sequences_kept
        # Parameters depend only on the model's seed, not on other random draws.
        with seeded(self.seed):
            _, outputs, traced = self._expressions(specs, self.samples_traced)
        self._signature = ModelSignature.of(specs, outputs)
        return traced

    def expressions(self, count: int) -> tuple[list[Expr], dict[str, Expr], Context]:
        """Return the network for a batch of `count` samples: inputs, outputs, and layer calls.

        >>> import caldera as cd
        >>> from caldera import nn
        >>> inputs, outputs, traced = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)]).expressions(5)
        >>> [each.shape for each in (*inputs, *outputs.values())]
        [(5, 4), (5, 3)]
        """
        return self.expressions_for(self.signature.inputs, count)

    def expressions_for(
        self, specs: Sequence[tuple[tuple[int, ...], str]], count: int
    ) -> tuple[list[Expr], dict[str, Expr], Context]:
        """Return the same for inputs of other shapes, where sequences may have any length."""
        with seeded(self.seed, AFTER_PARAMETERS):
            inputs, outputs, traced = self._expressions(specs, count)
        if self.target_scale is not None:
            name, prediction = main_output(outputs, self.objective)
            outputs[name] = in_units(prediction, self.target_scale)
        return inputs, outputs, traced

    def open_expressions(self, count: int) -> tuple[list[Expr], dict[str, Expr], Context]:
        """Return `expressions` for callers that vary the number of samples, on whichever axis."""
        return self.expressions(count)

    def check_exportable(self, where: str) -> None:
        """Raise an error unless samples have one size and no layer keeps states between batches."""
        open_axes = type(self).open_expressions is NetworkGraph.open_expressions and self.open_axes
        require(
            not open_axes,
            where,
            "a network for samples of a fixed size, or sequences of a fixed length",
            f"one for any {'length' if self.open_lengths else 'size'}",
            "make it again with all sizes in nn.Input((steps, ...)) and give it the weights: "
            "other.load_weights(model.save(path))",
        )
        kept = next((each for each in self.walk() if getattr(each, "stateful", 0)), None)
        require(
            kept is None,
            where,
            "layers that keep no states between batches",
            f"{kept and kept.path} with stateful=",
            "make the network again with stateful=0 and give it the weights",
        )

    def _expressions(
        self, specs: Sequence[tuple[tuple[int, ...], str]], count: int
    ) -> tuple[list[Expr], dict[str, Expr], Context]:
        inputs: list[Expr] = [
            op.input(f"x{i}", (count, *shape), dtype=dtype)
            for i, (shape, dtype) in enumerate(specs)
        ]
        with trace(dtype=self.dtype, device=self.device) as traced:
            outputs = named_outputs(self.step_outputs(*inputs))
        return inputs, outputs, traced

    def ensure_built(
        self,
        arrays: Sequence[np.ndarray],
        inputs: int | None = None,
        *,
        open_lengths: bool = False,
    ) -> None:
        """Build the model for a batch (inputs, perhaps then targets), or check that it fits.

        `inputs` is the number of arrays that are inputs, if the data define it; with `open_lengths`
        they are sequences of any length.
        """
        if self._signature is None:
            count = inputs or len(inspect.signature(self.forward).parameters)
            self._open_lengths = open_lengths
            self.build_for(*arrays[:count])
        inputs_known = self.signature.inputs
        known = zip(inputs_known, arrays[: len(inputs_known)], strict=True)
        for number, ((shape, _), array) in enumerate(known):
            if array.shape[1:] == shape:
                continue
            open_axes = self.open_axes
            sizes = [None if (number, axis) in open_axes else n for axis, n in enumerate(shape)]
            given = zip(sizes, array.shape[1:], strict=False)
            if array.ndim != 1 + len(shape) or any(n not in (None, got) for n, got in given):
                raise DataError.build(
                    type(self).__name__,
                    expected=f"samples of shape {shape_text(sizes)}",
                    got=f"{array.shape[1:]}",
                    hint="sequences of different lengths begin with nn.Input((None, ...))"
                    if open_lengths and not self.open_lengths
                    else "the first axis counts the samples; a size of None in nn.Input is open",
                )

    def sign_for(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the signature to these sample shapes if the model has open sizes."""
        pairs = zip(arrays, self.signature.inputs, strict=False)
        specs = tuple((array.shape[1:], dtype) for array, (_, dtype) in pairs)
        if self.open_axes and specs != self.signature.inputs:
            _, outputs, _ = self.expressions_for(specs, self.samples_traced)
            self._signature = ModelSignature.of(specs, outputs)


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that can be passed by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind in kinds]


def input_dtype(dtype: Any, array: np.ndarray) -> str:
    """Return the input dtype for an array: floats are converted to the model's dtype."""
    return str(np.dtype(dtype)) if array.dtype.kind == "f" else array.dtype.name
