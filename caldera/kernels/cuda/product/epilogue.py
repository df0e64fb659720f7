"""What follows a product, in CUDA text: a bias along the columns, an activation, or a sum with what
was there before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.graph.ops.base import widened
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.epilogue import Attributes, apply_epilogue
from caldera.core.graph.program import Body
from caldera.core.tensor.dtype import BY_NAME, DType
from caldera.kernels.common.loops import LoopBody, loop_body_of
from caldera.kernels.common.product import Epilogue
from caldera.kernels.cuda.codegen.expression import HEADER, STORED, computed_type, statements
from caldera.kernels.cuda.product.problem import NOTHING, Multiplication


@dataclass(frozen=True)
class EpilogueCode:
    """How sums of products become stored results."""

    dtype: str
    epilogue: Epilogue = NOTHING
    accumulates: bool = False

    @classmethod
    def of(cls, product: Multiplication) -> EpilogueCode:
        """What a product ends with."""
        return cls(product.dtype.name, product.epilogue, product.accumulation is not None)

    def text(self) -> str:
        """Types T (stored) and S (computed), and `epilogue(x, row, column, given)`."""
        kind = computed_type(self.dtype)
        lines = []
        if self.accumulates:
            # What is multiplied by 0 is not looked at: a nan there has no influence.
            lines += [
                "S alpha = (S)wide(*given.alpha), beta = (S)wide(*given.beta);",
                "S before = beta == (S)0 ? (S)0 : beta * "
                "(S)wide(given.start[row * given.start_row + column * given.start_column]);",
                "x = before + (alpha == (S)0 ? (S)0 : alpha * x);",
            ]
        if self.epilogue.bias:
            lines.append("x = op_add(x, (S)wide(given.bias[column * given.bias_step]));")
        result = "x"
        if self.epilogue.activation is not None:
            more, result = activation_lines(
                self.epilogue.activation, self.epilogue.attributes, kind
            )
            lines += more
        body = "\n    ".join([*lines, f"return Stored<T>::from({result});"])
        return _EPILOGUE.format(header=HEADER, stored=STORED[self.dtype], computed=kind, body=body)


_EPILOGUE = """
#include "{header}"
typedef {stored} T;
typedef {computed} S;
struct EpilogueArguments {{
    const T *bias, *start, *alpha, *beta;
    i64 bias_step, start_row, start_column;
}};
__device__ __forceinline__ T epilogue(S x, i64 row, i64 column, const EpilogueArguments& given) {{
    {body}
}}
"""


@cache
def activation_lines(name: str, attributes: Attributes, kind: str) -> tuple[tuple[str, ...], str]:
    """The lines that compute an activation of x, and the name of what they find."""
    dtype = {"float": "float32", "double": "float64"}[kind]
    x = parameter(0, Spec((), BY_NAME[dtype]))
    result = _in_parts(OPS[name](x, **dict(attributes)))
    found = statements(loop_body_of(fused.node(x, body=Body([x], [result]))), ["x"])
    return tuple(found.lines), found.outputs[0]


@cache
def epilogue_loop_body(dtype: DType, epilogue: Epilogue) -> LoopBody:
    """The loop that finishes results which are there: they are its first input, the bias, if there
    is one, the second."""
    given = [parameter(index, Spec((), dtype)) for index in range(1 + epilogue.bias)]

    @widened
    def end(result: Node, *bias: Node) -> Node:
        return apply_epilogue(result, bias, epilogue.activation, epilogue.attributes)

    return loop_body_of(fused.node(*given, body=Body(given, [_in_parts(end(*given))])))


def _in_parts(node: Node) -> Node:
    """The same made of ops that are not made of others."""
    inputs = tuple(_in_parts(given) for given in node.inputs)
    if node.op.decompose is not None:
        return _in_parts(node.op.decompose(*inputs, **node.attrs))
    return node.op.rebuild(node, inputs)
