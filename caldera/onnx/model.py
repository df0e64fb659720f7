"""`load`: a file of ONNX as a model that predicts, and that can be trained further."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Never

import numpy as np

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.node import Spec, Symbol
from caldera.core.tensor.dtype import DType, canonical, float32, is_float
from caldera.errors import ConfigError
from caldera.nn.tracing import Context
from caldera.onnx.operators.registry import NeedsValue, Value
from caldera.onnx.reading import Declared, Graph, Program, read_model
from caldera.onnx.translate import translate
from caldera.train.data_adapters import prediction_arrays
from caldera.train.model import Model


def load(path: str | os.PathLike[str], **settings: Any) -> ImportedModel:
    """Load a model from an ONNX file; its inputs must have samples on the first axis.

    `settings` are the arguments of `cd.Model` (loss, optimizer, batch_size, ...), for further
    training. Floating-point arrays in the file become its parameters, and the statistics of batch
    normalisation its states. Only known operators of the file are executed.

    >>> load("no/such/model.onnx")
    Traceback (most recent call last):
    caldera.errors.DataError: onnx model.onnx: expected a model file, got no/such/model.onnx
    """
    return ImportedModel(read_model(path), **settings)


class ImportedModel(Model):
    """A model that a file of ONNX describes; made by `load`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = cd.onnx.load(cd.onnx.export(model, Path(folder) / "small.onnx"))
    >>> x = np.ones((5, 4), np.float32)
    >>> np.allclose(again.predict(x), model.predict(x))
    True
    """

    def __init__(self, program: Program, **settings: Any) -> None:
        self.program = program
        graph = program.graph
        self._fed = [each for each in graph.inputs if each.name not in graph.constants]
        wrong = [each.name for each in self._fed if each.kind != "tensor" or each.shape == ()]
        require(
            not wrong and self._fed,
            "onnx load",
            "tensors with an axis of samples as inputs",
            ", ".join(wrong) or "none",
            hint="run it with caldera.onnx.Backend",
        )
        fixed = {
            each.shape[0] for each in self._fed if each.shape and isinstance(each.shape[0], int)
        }
        self.fixed_batch = fixed.pop() if len(fixed) == 1 else None
        if self.fixed_batch:
            self.samples_traced = self.fixed_batch
            settings.setdefault("batch_size", self.fixed_batch)
        self._file_dtype = _dtype_of(graph)
        settings.setdefault("dtype", self._file_dtype.name)
        loss = settings.get("loss", "cross_entropy")
        if len(graph.outputs) > 1 and not isinstance(loss, Mapping):
            settings["loss"] = {graph.outputs[0].name: loss}
        super().__init__(**settings)
        self._replaced: dict[str, Variable] = {}
        if (specs := self.input_specs()) is not None:
            self._trace_once(specs)

    def open_expressions(self, count: int) -> tuple[list[Expr], dict[str, Expr], Context]:
        """The network with `count` along the axis that the file leaves open, first or not."""
        if self.fixed_batch is None:
            return self.expressions(count)
        open_sizes = {
            (i, axis): name
            for i, each in enumerate(self._fed)
            for axis, name in enumerate(each.shape or ())
            if not isinstance(name, int)
        }
        names = set(open_sizes.values())
        # With several open sizes none is known to be the batch; all keep their sizes from the data.
        is_one = len(open_sizes) == 1 or (len(names) == 1 and None not in names)
        specs = tuple(
            (
                tuple(
                    count if is_one and (i, axis) in open_sizes else n
                    for axis, n in enumerate(shape, 1)
                ),
                dtype,
            )
            for i, (shape, dtype) in enumerate(self.signature.inputs)
        )
        return self._expressions(specs, self.fixed_batch)

    @property
    def open_axes(self) -> frozenset[tuple[int, int]]:
        """The axes that the file leaves open."""
        if self._signature is None:
            return frozenset()
        return frozenset(
            (number, axis)
            for number, (shape, _) in enumerate(self.signature.inputs)
            for axis in range(len(shape))
            if not isinstance((self._fed[number].shape or (None,) * 99)[1 + axis], int)
        )

    def input_specs(self) -> tuple[tuple[tuple[int, ...], str], ...] | None:
        found = [_spec(each) for each in self._fed]
        if any(each is None for each in found):
            return None
        return tuple(each for each in found if each is not None)

    def ensure_built(
        self,
        arrays: Sequence[np.ndarray],
        inputs: int | None = None,
        *,
        open_lengths: bool = False,
    ) -> None:
        super().ensure_built(arrays, len(self._fed), open_lengths=open_lengths)

    def build(self, *inputs: Expr) -> None:
        graph = self.program.graph
        candidates = {
            name: array
            for name, array in graph.constants.items()
            if array.dtype == self._file_dtype and array.ndim
        }
        for name in self._asked_for_now(inputs, candidates):
            del candidates[name]
        statistics = {
            name
            for call in graph.calls
            if call.operator == "BatchNormalization"
            for name in call.inputs[3:5]
        }
        for name, array in candidates.items():
            make = self.state if name in statistics else self.parameter
            self._replaced[name] = make(name, array.shape, array)

    def _asked_for_now(
        self, inputs: Sequence[Expr], candidates: Mapping[str, np.ndarray]
    ) -> set[str]:
        """Arrays that decide about shapes: they are read now, so training cannot change them."""
        fixed: set[str] = set()
        while True:
            stand_ins = {
                name: Variable(Symbol(name, Spec(array.shape, canonical(self.dtype)), "variable"))
                for name, array in candidates.items()
                if name not in fixed
            }
            try:
                self._translated(inputs, stand_ins)
            except NeedsValue as needed:
                asked = {each.name for each in needed.symbols if each.name in stand_ins}
                if not asked or any(each.role != "variable" for each in needed.symbols):
                    raise ConfigError.build(
                        "onnx load",
                        expected="a model whose shapes do not depend on input values",
                        got=str(needed),
                        hint="run it with caldera.onnx.Backend",
                    ) from None
                fixed |= asked
            else:
                return fixed

    def _translated(self, inputs: Sequence[Expr], arrays: Mapping[str, Value]) -> list[Value]:
        fed = {each.name: value for each, value in zip(self._fed, inputs, strict=True)}
        return translate(self.program, {**arrays, **fed}).outputs

    def forward(self, *inputs: Expr) -> Any:
        outputs = self._translated(inputs, self._replaced)
        if len(outputs) == 1:
            return outputs[0]
        names = [each.name for each in self.program.graph.outputs]
        return dict(zip(names, outputs, strict=True))

    def predict(self, *inputs: Any, batch_size: int | None = None, **unknown: Never) -> np.ndarray:
        """Return the model's results for each sample.

        A model with a fixed batch size computes in batches of exactly that size.
        """
        if not self.fixed_batch:
            return super().predict(*inputs, batch_size=batch_size, **unknown)
        arrays = prediction_arrays(self, inputs)
        samples = len(arrays[0])
        missing = -samples % self.fixed_batch if samples else 0
        filled = [np.concatenate([each, each[-1:].repeat(missing, 0)]) for each in arrays]
        return super().predict(*filled, batch_size=self.fixed_batch, **unknown)[:samples]


def _spec(declared: Declared) -> tuple[tuple[int, ...], str] | None:
    """Return shape and dtype of a sample, if the file declares them."""
    if declared.shape is None or declared.dtype is None:
        return None
    sizes = [size for size in declared.shape[1:] if isinstance(size, int)]
    if len(sizes) != len(declared.shape) - 1:
        return None
    return tuple(sizes), canonical(declared.dtype).name


def _dtype_of(graph: Graph) -> DType:
    """Return the floating-point dtype of most elements of the graph's constants."""
    counts: dict[DType, int] = {}
    for array in graph.constants.values():
        if is_float(array.dtype):
            counts[array.dtype] = counts.get(array.dtype, 0) + array.size
    return max(counts, key=lambda dtype: counts[dtype]) if counts else float32
