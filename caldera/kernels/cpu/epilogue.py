"""A product with its bias and activation: BLAS into the output, then one loop over it in place."""

from __future__ import annotations

from caldera.graph.body import Body, rewrite
from caldera.graph.node import Node, Spec
from caldera.graph.opdef import OPS, Nodes, as_tuple, parameter
from caldera.graph.ops.control import fused
from caldera.graph.ops.elementwise import add
from caldera.graph.ops.product import matmul
from caldera.kernels.cpu.scratch import computed_in, through_float32
from caldera.kernels.table import TABLE, Call, Kernel, Runner


def _parts(node: Node, inputs: tuple[Spec, ...]) -> tuple[Node, Node | None]:
    """The product, and the loop that follows it, on inputs of these specs."""
    arguments = [parameter(i, spec) for i, spec in enumerate(inputs)]
    product = matmul(*arguments[:2], ta=node.attrs["ta"], tb=node.attrs["tb"])
    bias = arguments[2:]
    if not bias and node.attrs["activation"] is None:
        return product, None
    stand_in = parameter(0, product.spec)
    result = stand_in
    for each in bias:
        result = add(result, each)
    if node.attrs["activation"] is not None:
        result = OPS[node.attrs["activation"]](result, **dict(node.attrs["attributes"]))
    body = Body([stand_in, *bias], _expanded((result,)))
    return product, fused(stand_in, *bias, body=body)


def _expanded(outputs: Nodes) -> Nodes:
    """The same in ops that are not made of others."""

    def expand(node: Node) -> Node | None:
        if node.op.decompose is None:
            return None
        return as_tuple(node.op.decompose(*node.inputs, **node.attrs))[0]

    while (better := rewrite(outputs, expand)) != outputs:
        outputs = better
    return outputs


def _kernel(node: Node) -> Kernel:
    return TABLE.candidates(node, "cpu")[0]


def _workspace(node: Node) -> int:
    """The two parts run one after the other, so they share it."""
    inputs = tuple(Spec(given.shape, computed_in(given.dtype)) for given in node.inputs)
    return max(_kernel(part).workspace(part) for part in _parts(node, inputs) if part is not None)


def _bind(call: Call) -> Runner:
    inputs = tuple(Spec(array.shape, array.dtype) for array in call.inputs)
    product, rest = _parts(call.node, inputs)
    multiply = _kernel(product).bind(
        Call(product, call.outputs, call.inputs[:2], call.workspace, call.communicator)
    )
    if rest is None:
        return multiply
    given = (*call.outputs, *call.inputs[2:])
    finish = _kernel(rest).bind(Call(rest, call.outputs, given, call.workspace))

    def run() -> None:
        multiply()
        finish()

    return run


_bind_any, _workspace_any = through_float32(_bind, _workspace)
TABLE.add(Kernel("matmul_epilogue", "cpu", "blas", _bind_any, workspace=_workspace_any))
