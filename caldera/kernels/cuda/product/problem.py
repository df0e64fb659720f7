"""A matrix product as the kernels of a card take it: arrays with any distances between their
elements, and what is done to the result on its way out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import as_strided

from caldera.core.graph.memory_format import dense_strides
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import DType
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.epilogue import Epilogue
from caldera.kernels.common.product import Product
from caldera.kernels.cuda.codegen.merged_axes import Axis, axes_of, elements, merged
from caldera.kernels.table import Array, Call

MOST_BATCH_AXES = 4
"""Axes before the matrices' that one launch takes, once they are merged."""
NOTHING = Epilogue()
"""Neither bias nor activation."""
FIRST_OPERAND = {"matmul": 0, "matmul_epilogue": 0, "matmul_accumulate": 1}


def described(spec: Spec) -> np.ndarray:
    """An array that lies as a value does, without its memory: only its strides may be asked for."""
    strides = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)
    return as_strided(np.empty(1, spec.dtype), spec.shape, strides)


def described_call(node: Node) -> Call:
    """A node with arrays without memory: what its kernel will be given, as far as is known."""
    inputs = tuple(described(given.outputs[0]) for given in node.inputs)
    return Call(node, tuple(described(spec) for spec in node.outputs), inputs)


@dataclass(frozen=True)
class Accumulation:
    """beta start + alpha (the product): alpha and beta are arrays of one number."""

    start: Array
    alpha: Array
    beta: Array


@dataclass(frozen=True, eq=False)
class Multiplication:
    """out = epilogue(left right + bias), or out = beta start + alpha left right."""

    left: Array
    right: Array
    out: Array
    epilogue: Epilogue = NOTHING
    bias: Array | None = None
    accumulation: Accumulation | None = None
    compute: str | None = None
    """"tf32" allows tensor cores to round float32 operands; None does not."""

    @classmethod
    def of(cls, call: Call) -> Multiplication:
        """The product that a call of an op of the family of `matmul` computes."""
        node, first = call.node, FIRST_OPERAND[call.node.op.name]
        product = Product.of(call, *call.inputs[first : first + 2])
        found = cls(product.left, product.right, product.out, compute=node.attrs.get("compute"))
        if node.op.name == "matmul_accumulate":
            start, _, _, alpha, beta = call.inputs
            return replace(found, accumulation=Accumulation(start, alpha, beta))
        if node.op.name == "matmul_epilogue":
            biases = [array.reshape(-1, copy=False) for array in call.inputs[2:]]
            return replace(found, epilogue=Epilogue.of(node), bias=biases[0] if biases else None)
        return found

    @property
    def extent(self) -> tuple[int, int, int]:
        """Rows, columns, and the length of each sum."""
        rows, columns = self.out.shape[-2:]
        return rows, columns, self.left.shape[-1]

    @property
    def dtype(self) -> DType:
        """The dtype of the result."""
        return self.out.dtype

    @cached_property
    def batch(self) -> tuple[Axis, ...]:
        """The axes before the matrices', merged: strides of left, right and out."""
        shape: Shape = self.out.shape[:-2]
        arrays = (self.left, self.right, self.out)
        return tuple(merged(axes_of(shape, *(_batch_strides(each, shape) for each in arrays))))

    @property
    def count(self) -> int:
        """How many products there are."""
        return elements(self.batch)

    def parts(self) -> list[Multiplication]:
        """The same as products with few enough batch axes for one launch."""
        if len(self.batch) <= MOST_BATCH_AXES:
            return [self]
        return [part for entry in self.entries() for part in entry.parts()]

    def transposed(self) -> Multiplication:
        """The product of the transposed matrices, which is the transposed result."""
        left, right = (each.swapaxes(-1, -2) for each in (self.right, self.left))
        return replace(self, left=left, right=right, out=self.out.swapaxes(-1, -2))

    def entries(self) -> list[Multiplication]:
        """The products at each index of the first axis."""
        left, right = (_broadcast(each, self.out.shape[:-2]) for each in (self.left, self.right))
        return [
            replace(self, left=left[index], right=right[index], out=self.out[index])
            for index in range(self.out.shape[0])
        ]


def _batch_strides(array: Array, batch: Shape) -> tuple[int, ...]:
    """The distances along the batch axes, in elements: 0 where an array is repeated."""
    own = array.shape[:-2]
    strides = [
        0 if n == 1 else stride // array.itemsize
        for n, stride in zip(own, array.strides, strict=False)
    ]
    return (*[0] * (len(batch) - len(own)), *strides)


def _broadcast(array: Array, batch: Shape) -> Array:
    strides = [each * array.itemsize for each in _batch_strides(array, batch)]
    shape = (*batch, *array.shape[-2:])
    seen = as_strided(array.view(np.ndarray), shape, (*strides, *array.strides[-2:]))
    return seen.view(type(array))
