"""Nodes of the ops and the sizes that no network of `kernel_problems.py` has.

Between them every kernel of the CPU is on trial at least once, except those that
`special_kernels.py` lists with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from benchmarks.kernels.kernel_problems import Problem, nodes_of
from caldera import op
from caldera.bench.workloads.kernels import DESIGN_CONVOLUTIONS
from caldera.compiler.lazy import Expr
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import OPS
from caldera.core.graph.ops.few_bits import GROUPS, dequantise, few_bits_linear
from caldera.core.graph.ops.int8 import (
    GROUP,
    PANEL,
    int8_conv2d,
    int8_conv2d_relu,
    int8_linear,
)
from caldera.core.graph.program import program_of
from caldera.errors import CalderaError
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE

_numbers = count()


def _input(*shape: int, dtype: str = "float32") -> Expr:
    return op.input(f"x{next(_numbers)}", shape, dtype)


def _with_gradients(function: Callable[..., Expr], *inputs: Expr) -> list[Expr]:
    """Return the result, and the gradients of all inputs for a given gradient of the result."""
    y = function(*inputs)
    given = _input(*y.shape, dtype=y.dtype.name)
    return [y, *op.grad(op.sum(y * given), list(inputs))]


# --- convolutions


def _convolution(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dtype: str = "float32",
    convolve: Callable[..., Expr] = op.conv2d,
    **how: Any,
) -> list[Expr]:
    return _with_gradients(
        lambda images, filters: convolve(images, filters, **how),
        _input(*x, dtype=dtype),
        _input(*w, dtype=dtype),
    )


def _convolutions() -> Iterator[tuple[str, list[Expr]]]:
    for images, channels, height, width, filters, sides, stride, padding in DESIGN_CONVOLUTIONS:
        x, w = (images, channels, height, width), (filters, channels, *sides)
        yield "design table", _convolution(x, w, stride=stride, padding=padding)
    for channels, size, side in ((64, 56, 3), (256, 14, 3), (128, 28, 5)):
        how = {"padding": side // 2, "groups": channels}
        shape = (32, channels, size, size)
        yield "depthwise", _convolution(shape, (channels, 1, side, side), **how)
    for channels, size, side in ((16, 64, 11), (32, 32, 17), (64, 28, 9)):
        shape, w = (1, channels, size, size), (channels, channels, side, side)
        yield "large filters", _convolution(shape, w, padding=side // 2)
    for channels, size, results, side in ((64, 56, 64, 3), (512, 7, 512, 3), (256, 14, 1024, 1)):
        shape, w = (1, channels, size, size), (results, channels, side, side)
        yield "one image", _convolution(shape, w, padding=side // 2)
    yield "few channels", _convolution((64, 3, 32, 32), (16, 3, 3, 3), padding=1)
    yield "few channels", _convolution((64, 8, 32, 32), (8, 8, 3, 3), padding=1)
    yield "groups", _convolution((32, 256, 14, 14), (256, 8, 3, 3), padding=1, groups=32)
    yield "dilated", _convolution((16, 64, 28, 28), (64, 64, 3, 3), padding=2, dilation=2)
    yield "strided", _convolution((16, 64, 28, 28), (128, 64, 3, 3), padding=1, stride=2)
    yield "1x1 /2", _convolution((32, 64, 56, 56), (128, 64, 1, 1), stride=2)
    yield "1x1", _convolution((16, 256, 14, 14), (1024, 256, 1, 1))
    for dtype in ("float64", "bfloat16"):
        for side in (1, 3):
            shape, w = (16, 64, 28, 28), (64, 64, side, side)
            yield "dtypes", _convolution(shape, w, dtype, padding=side // 2)
    yield "dtypes", _convolution((16, 64, 28, 28), (128, 64, 1, 1), "bfloat16", stride=2)
    yield "dtypes", _convolution((16, 256, 14, 14), (256, 256, 3, 3), "bfloat16", padding=1)


def _sequences() -> Iterator[tuple[str, list[Expr]]]:
    """One-dimensional convolutions, as in WaveNet, TCN and networks for speech."""
    for channels, length, results, taps, dilation in (
        (64, 4096, 64, 2, 16),
        (64, 4096, 64, 1, 1),
        (32, 1024, 32, 7, 4),
        (80, 1000, 256, 3, 1),
        (1, 16000, 32, 25, 1),
    ):
        for dtype in ("float32", "bfloat16"):
            reach = (taps - 1) * dilation
            yield (
                "sequences",
                _convolution(
                    (4, channels, length),
                    (results, channels, taps),
                    dtype,
                    op.conv1d,
                    padding=(reach, 0),
                    dilation=dilation,
                ),
            )


def _norm_sums() -> Iterator[tuple[str, Sequence[Node]]]:
    """Convolutions with the sums of a batch normalisation."""
    for channels, size, results, side, stride in (
        (6, 28, 6, 5, 1),
        (16, 24, 16, 11, 1),
        (64, 28, 128, 1, 1),
        (64, 28, 64, 3, 2),
        (16, 28, 16, 3, 1),
    ):
        image, filters = _input(8, channels, size, size), _input(results, channels, side, side)
        scale, shift = _input(results), _input(results)
        y = op.conv2d(image, filters, padding=side // 2, stride=stride)
        normal = op.relu(op.batch_norm(y, scale, shift)[0])
        last = op.conv2d(normal, _input(results, results, side, side), padding=side // 2)
        given = _input(*last.shape)
        found = op.grad(op.sum(last * given), [image, filters, scale, shift])
        yield "norms", [each.node for each in (last, *found)]


# --- products


def _matrices() -> Iterator[tuple[str, list[Expr]]]:
    for dtype in ("float64", "float16", "bfloat16"):
        for m, n, k in ((100, 528, 784), (16, 16, 16), (512, 512, 512), (2048, 1024, 256)):
            a, b = _input(m, k, dtype=dtype), _input(k, n, dtype=dtype)
            yield "products", [op.matmul(a, b)]
    for m, n, k in (
        (8, 8, 8),
        (32, 10, 64),
        (2, 64, 4096),
        (32, 32, 20000),
        (512, 512, 512),
        (100, 784, 528),
        (512, 2048, 1024),
        (256, 256, 8192),
    ):
        yield "products", [op.matmul(_input(m, k), _input(k, n))]
    yield "products", [op.matmul(_input(256, 12, 12), _input(256, 12, 12))]
    yield "products", [op.matmul(_input(64, 128, 64), _input(64, 64, 128))]
    yield (
        "products",
        [op.matmul(_input(256, 8192, dtype="bfloat16"), _input(8192, 256, dtype="bfloat16"))],
    )
    for rows in (1, 2, 3):
        for dtype in ("float32", "bfloat16"):
            x, w = _input(rows, 1024, dtype=dtype), _input(1024, 4096, dtype=dtype)
            yield "few rows", [op.matmul(x, w)]
            yield "few rows", [op.relu(op.matmul(x, w) + _input(4096, dtype=dtype))]
    for m, n, k in ((128, 512, 784), (1024, 1024, 256), (32, 64, 64), (64, 64, 8192)):
        for dtype in ("float32", "bfloat16"):
            x, w = _input(m, k, dtype=dtype), _input(k, n, dtype=dtype)
            for finish in (op.relu, op.gelu):
                yield "layers", [finish(op.matmul(x, w) + _input(n, dtype=dtype))]


def _factorisations() -> Iterator[tuple[str, list[Expr]]]:
    for shape in ((512, 16, 16), (32, 64, 64), (512, 512)):
        a = _input(*shape)
        b = _input(*shape[:-1], 8)
        yield "matrices", [op.solve(a, b), op.inverse(a), *op.slogdet(a), op.cholesky(a)]
        yield "matrices", [*op.qr(a), *op.eigh(a), *op.svd(a)]


def _few_bits() -> Iterator[tuple[str, Sequence[Node]]]:
    """Weights of 8 and of 4 bits."""
    for rows, inputs, outputs in ((1, 1024, 4096), (8, 1024, 1024), (256, 1024, 1024)):
        panels = outputs // PANEL
        weight = _input(panels, inputs // GROUP, PANEL, GROUP, dtype="int8")
        scale, x = _input(outputs), _input(rows, inputs)
        given = (x.node, weight.node, scale.node)
        yield "weights of 8 bits", [int8_linear(*given, columns=outputs, step=None)]
        for bits, dtype in ((8, "int8"), (4, "uint8")):
            codes = _input(outputs, inputs * bits // 8, dtype=dtype).node
            steps = _input(outputs, 1 if bits == 8 else inputs // GROUPS[0]).node
            if rows <= 8:
                yield f"weights of {bits} bits", [few_bits_linear(x.node, codes, steps)]
            else:
                yield f"weights of {bits} bits", [dequantise(codes, steps, columns=inputs)]
    for channels, size, filters, side in ((64, 28, 64, 3), (256, 14, 256, 1), (3, 32, 16, 3)):
        panels, groups = -(-filters // PANEL), -(-channels // GROUP)
        weight = _input(panels, side, side, groups, PANEL, GROUP, dtype="int8").node
        scale, shift = (_input(panels * PANEL).node for _ in "ab")
        images = _input(8, channels, size, size).node
        how = {"stride": (1, 1), "padding": ((side // 2,) * 2,) * 2, "dilation": (1, 1)}
        how |= {"filters": filters, "step": None}
        found = int8_conv2d(images, weight, scale, shift, **how)
        more = _input(*found.shape).node
        yield "weights of 8 bits", [found]
        yield "weights of 8 bits", [int8_conv2d_relu(images, weight, scale, shift, more, **how)]


# --- rows, images and loops


def _rows() -> Iterator[tuple[str, list[Expr]]]:
    for shape in ((512, 256), (64, 4096), (16, 1000), (4, 1 << 18), (64, 1009)):
        halves = op.rfft(_input(*shape))
        whole = op.fft(op.cast(_input(*shape), "complex64"))
        pairs = op.fft(op.view_as_complex(_input(*shape, 2)))
        yield "signals", [halves, op.irfft(halves, n=shape[-1]), pairs, whole]
    for shape in ((128, 1000), (8, 1 << 17)):
        x = _input(*shape)
        yield "rows", [op.sort(x, axis=-1), op.cumsum(x, axis=-1)]
    for shape, axis in (((128, 10), 1), ((8192, 64), 1), ((32, 21, 64, 64), 1), ((8, 1 << 17), 1)):
        x = _input(*shape)
        found = [reduce(x, axis=axis) for reduce in (op.argmax, op.argmin, op.max, op.min, op.prod)]
        yield "rows", found
    for dtype in ("float32", "float64"):
        for shape, axis in (((8192, 256), 1), ((8192, 256), 0), ((64, 4096), 1), ((512, 64), 0)):
            yield "rows", [op.sum(_input(*shape, dtype=dtype), axis=axis)]
    sizes = ((50_000, 2048, 256), (64, 8192, 256), (1000, 64, 16), (10, 16, 8))
    for words, additions, width in sizes:
        table, places = _input(words, width), _input(additions, dtype="int64")
        yield "embedding", _with_gradients(lambda t, p=places: op.gather(t, p, axis=0), table)
    words, contexts = (np.arange(count) % 5000 for count in (512, 512 * 6))
    yield (
        "word vectors",
        [*op.skip_gram(_input(2, 5000, 128), words, contexts.reshape(512, 6), 0.1)],
    )
    for shape in ((128, 1000), (16384, 64)):
        x, places = _input(*shape), _input(shape[0], 8, dtype="int64")
        picked = _with_gradients(lambda t, p=places: op.take_along_axis(t, p, axis=1), x)
        yield "rows", picked
    for dtype in ("float16", "bfloat16"):
        yield "conversions", [op.cast(_input(4_000_000), dtype)]
        yield "conversions", [op.cast(_input(4_000_000, dtype=dtype), "float32")]
    logits, labels = _input(32, 100, 29), _input(32, 20, dtype="int64")
    yield "speech", _with_gradients(lambda x: op.ctc_loss(x, labels), logits)


def _images() -> Iterator[tuple[str, list[Expr]]]:
    for shape in ((4096, 1000), (128, 10)):
        x = _input(*shape)
        yield "rows", _with_gradients(lambda rows: op.softmax(rows, axis=-1), x)
        yield "rows", _with_gradients(lambda rows: op.log_softmax(rows, axis=-1), x)
        targets = op.softmax(_input(*shape), axis=-1)
        yield "rows", _with_gradients(lambda rows, t=targets: op.cross_entropy(rows, t), x)
    for shape in ((32, 64, 28, 28), (128, 16, 32, 32)):
        x, scale, shift = _input(*shape), _input(shape[1]), _input(shape[1])
        mean, variance = _input(shape[1]), _input(shape[1])
        yield "norms", _with_gradients(lambda x: op.local_response_norm(x), x)
        yield "norms", _with_gradients(lambda *each: op.batch_norm(*each)[0], x, scale, shift)
        yield (
            "norms",
            _with_gradients(lambda *each: op.group_norm(each[0], 8, *each[1:]), x, scale, shift),
        )
        finished = _with_gradients(lambda *each: op.relu(op.batch_norm(*each)[0]), x, scale, shift)
        yield "norms", finished
        windows = {"stride": 2, "padding": 1}
        yield "pooling", _with_gradients(lambda x, how=windows: op.max_pool2d(x, 3, **how), x)
        still = op.batch_norm(x, scale, shift, mean, variance)
        yield "norms", [still]
        yield "norms", [op.relu(still)]
        yield "random", [op.random_uniform(shape), op.random_normal(shape)]
        (slope,) = op.grad(op.sum(op.max_pool2d(x, 2) * _input(*shape[:2], *_halved(shape))), [x])
        twice = _input(*slope.shape)
        given = _input(*shape[:2], *_halved(shape))
        (first,) = op.grad(op.sum(op.max_pool2d(x, 2) * given), [x])
        yield "pooling", list(op.grad(op.sum(first * twice), [given]))


def _halved(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(each // 2 for each in shape[2:])


MOST_OPERANDS = 3


def _loops() -> Iterator[tuple[str, Sequence[Node]]]:
    """Every element-wise op alone, and movements that passes would join with others."""
    x = _input(64, 1024).node
    yield "movement", [OPS["split"].node(x, axis=1, sizes=(256, 768))]
    yield "movement", [OPS["pad"](x, widths=((1, 1), (0, 64)), value=0.0)]
    yield "movement", [OPS["unslice"](x, shape=(66, 1024), bounds=((1, 65, 1), (0, 1024, 1)))]
    spectrum = _input(64, 513, 2).node
    yield "movement", [OPS["mirror"](spectrum, axis=1, begin=1, end=512, others=(0,))]
    for each in list(OPS.values()):
        if each.kind == "elementwise" and TABLE.has(each.name, "cpu"):
            for shape in ((512, 1024), (128, 128)):
                node = _loop(each, shape)
                if node is not None:
                    yield "loops", [node]


def _loop(each: Any, shape: tuple[int, ...]) -> Node | None:
    """Return a node of an element-wise op on the first supported operands; None without any."""
    for dtype in ("float32", "bool", "int64"):
        for operands in range(1, MOST_OPERANDS + 1):
            given = [_input(*shape, dtype=dtype).node for _ in range(operands)]
            if each.name == "where":
                given[0] = _input(*shape, dtype="bool").node
            try:
                node = each(*given)
                with np.errstate(all="ignore"):
                    evaluate(node, [np.ones(one.shape, one.dtype) for one in node.inputs])
                return node
            except (CalderaError, TypeError, ValueError, IndexError):
                continue
    return None


# --- all of them


def other_problems(family: str) -> Iterator[Problem]:
    """Yield nodes of ops and sizes that are not in the networks."""
    makers: tuple[Callable[[], Iterator[tuple[str, Sequence[Any]]]], ...] = (
        _convolutions,
        _sequences,
        _norm_sums,
        _matrices,
        _factorisations,
        _few_bits,
        _rows,
        _images,
        _loops,
    )
    for make in makers:
        for where, outputs in make():
            wanted = [each.node if isinstance(each, Expr) else each for each in outputs]
            if make is _loops:
                yield from (Problem(where, node) for node in wanted)
                continue
            for node in nodes_of(program_of(wanted), family):
                yield Problem(where, node)
