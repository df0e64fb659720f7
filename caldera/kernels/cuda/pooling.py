"""Pooling and its adjoints: one kernel each, a thread for each pixel (or a few of its channels)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caldera.graph.node import Node
from caldera.kernels.cuda.launch import CudaRunner, Launch
from caldera.kernels.cuda.source import flags, kernel_source, type_of
from caldera.kernels.cuda.strided import index_type, indices, is_large, neighbours, strides_of
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.shape import Shape

_THREADS = 256


def _windows(node: Node, image: Shape, pooled: Shape) -> list[int]:
    """What a kernel has to know about the windows, as pool.cuh wants it."""
    attrs = node.attrs
    (rows, columns), (top, left) = attrs["size"], (before for before, _ in attrs["padding"])
    counted = rows * columns if attrs.get("count_padding") else 0
    return [*image, *pooled[2:], rows, columns, *attrs["stride"], top, left,
            *attrs.get("dilation", (1, 1)), counted]  # fmt: skip


def _launch(
    function: str, node: Node, arrays: Sequence[Array], outputs: int, *, adjoint: bool
) -> Runner:
    """A function of pool.cuh on these arrays, the last `outputs` of which it writes.

    Places are counted in the array that has the pixels that are written: the last one but for the
    names of winners.
    """
    written = arrays[-outputs]
    if written.size == 0:
        return CudaRunner([])
    read = arrays[0]
    image, pooled = (written, read) if adjoint else (read, written)
    steps = [strides_of(array) for array in arrays]
    channels = written.shape[1]
    dense = all(own[1] == 1 for own in steps)
    together = 1
    if dense:
        beside = zip(arrays, steps, strict=True)
        together = neighbours(channels, [(each, (n, y, x)) for each, (n, _, y, x) in beside])
    last = channels > 1 and abs(written.strides[1]) < abs(written.strides[3])
    columns = node.attrs["size"][1]
    batch = 1 if adjoint else next(n for n in (3, 2, 1) if columns % n == 0)
    large = is_large(*arrays)
    integer = index_type(large)
    names = [f"a{i}" for i in range(len(arrays))]
    pointers = [
        f"{'' if i >= len(arrays) - outputs else 'const '}{type_of(array)}* {names[i]}"
        for i, array in enumerate(arrays)
    ]
    source = kernel_source(
        "pool.cuh", f"{function}_pixels", _THREADS,
        [*pointers, *(f"Pixels<{integer}> p{i}" for i in range(len(arrays))),
         f"Windows<{integer}> in"],
        f"{function}<{together}, {flags(last)}, {batch}>({', '.join(names)}, "
        f"{', '.join(f'p{i}' for i in range(len(arrays)))}, in);",
    )  # fmt: skip
    blocks = -(-written.size // (together * _THREADS))
    return CudaRunner([Launch(source, f"{function}_pixels", blocks, _THREADS, [
        *arrays, *(indices(own, large) for own in steps),
        indices(_windows(node, image.shape, pooled.shape), large),
    ])])  # fmt: skip


def _bind(function: str, outputs: int, *, adjoint: bool) -> Callable[[Call], Runner]:
    def bind(call: Call) -> Runner:
        arrays = [*call.inputs, *call.outputs]
        return _launch(function, call.node, arrays, outputs, adjoint=adjoint)

    return bind


for _op, _function, _outputs, _adjoint in (
    ("max_pool2d", "max_pool", 2, False),
    ("pool_gather", "pool_gather", 1, False),
    ("pool_scatter", "pool_scatter", 1, True),
    ("avg_pool2d", "mean_pool", 1, False),
    ("avg_pool2d_input", "mean_spread", 1, True),
):
    TABLE.add(Kernel(_op, "cuda", "pixels", _bind(_function, _outputs, adjoint=_adjoint)))
