"""Summary of a model layer by layer, its training configuration, and its graph of blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caldera.base.configurable import Configurable
from caldera.base.formatting import bytes_text, html_table, note, table_lines
from caldera.compiler.lazy import Expr
from caldera.core.graph import Node, topological
from caldera.errors import ConfigError
from caldera.nn import Context, Layer, LayerCall, to_config
from caldera.train.tracking.run_record import BlockRecord

if TYPE_CHECKING:
    from caldera.train.model import Model


_HEAD = ("layer", "kind", "output", "parameters", "FLOPs", "memory", "work", "depth")


@dataclass(frozen=True)
class LayerRow:
    """One layer of a summary, for one sample."""

    path: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    trainable: int
    flops: int
    nbytes: int
    work: tuple[WorkDepth, ...]


@dataclass(frozen=True)
class Summary:
    """Components of a model; printing it shows a table with exact totals.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3), nn.Sigmoid(), nn.Dense(2)])
    >>> model.summary(show=False).parameters
    23
    """

    name: str
    rows: tuple[LayerRow, ...]
    parameters: int
    trainable: int
    flops: int
    parameter_bytes: int
    activation_bytes: int

    def __str__(self) -> str:
        head, *body = table_lines([_HEAD, *map(_cells, self.rows)], left=range(3))
        lines = [self.name, head, "-" * len(head)]
        work_starts = head.index("memory") + len("memory  ")
        for row, line in zip(self.rows, body, strict=True):
            lines.append(line)
            lines += [
                " " * work_starts + f"{each.method}: W {each.work:,} D {each.depth}"
                for each in row.work[1:]
            ]
        lines += self._totals()
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = map(_cells, self.rows)
        totals = "".join(map(note, self._totals()))
        return note(self.name, strong=True) + html_table(_HEAD, rows, numbers=range(3, 8)) + totals

    def _totals(self) -> list[str]:
        return [
            f"parameters  {self.parameters:,} ({self.trainable:,} trained), "
            f"{bytes_text(self.parameter_bytes)}",
            f"one sample  {self.flops:,} FLOPs forward, "
            f"{bytes_text(self.activation_bytes)} of activations",
        ]


def _cells(row: LayerRow) -> tuple[str, ...]:
    first = row.work[0] if row.work else None
    return (
        row.path,
        row.kind,
        "x".join(map(str, row.shape)) or "scalar",
        f"{row.parameters:,}",
        f"{row.flops:,}",
        bytes_text(row.nbytes),
        f"{first.work:,}" if first else "",
        str(first.depth) if first else "",
    )


def summarise(model: Layer, traced: Context, batch: int) -> Summary:
    """Summarise a model, from a trace with `batch` samples."""
    calls = [call for call in traced.calls if call.layer is not model]
    counted: set[int] = set()
    rows = [_row(call, batch, counted) for call in calls if not list(call.layer.children())]
    # Operations that a model's own forward adds between its layers belong to the whole.
    (whole,) = [call for call in traced.calls if call.layer is model]
    parameters = model.parameters()
    return Summary(
        name=type(model).__name__,
        rows=tuple(rows),
        parameters=sum(p.size for p in parameters),
        trainable=sum(p.size for p in model.trainable()),
        flops=layer_flops(layer_nodes(whole.inputs, whole.outputs)) // batch,
        parameter_bytes=sum(p.tensor.nbytes for p in parameters),
        activation_bytes=sum(row.nbytes for row in rows),
    )


def _row(call: LayerCall, batch: int, counted: set[int]) -> LayerRow:
    own = [] if id(call.layer) in counted else call.layer.parameters()
    counted.add(id(call.layer))
    nodes = layer_nodes(call.inputs, call.outputs)
    output = call.outputs[0]
    return LayerRow(
        path=call.layer.path,
        kind=type(call.layer).__name__,
        shape=output.shape[1:],
        parameters=sum(p.size for p in own),
        trainable=0 if call.layer.frozen else sum(p.size for p in own),
        flops=layer_flops(nodes) // batch,
        nbytes=sum(o.node.spec.nbytes for o in call.outputs) // batch,
        work=tuple(WorkDepth(w.method, w.work // batch, w.depth) for w in layer_work(nodes)),
    )


# --- work and depth: number of multiplications, and length of the longest chain of steps
#
# The formulas for convolutions are taken from Ben-Nun and Hoefler, "Demystifying Parallel and
# Distributed Deep Learning" (table of convolution methods). They are work W and depth D of the
# direct method, im2col, FFT and Winograd with m x m tiles. Two errors of the printed table are
# corrected: a tile has alpha = m + r - 1 rows (Lavin and Gray), and each of its alpha**2 elements
# costs a multiplication for each pair of channels.


@dataclass(frozen=True)
class WorkDepth:
    """Work (multiplications) and depth (steps, with unlimited processors)."""

    method: str
    work: int
    depth: int


def _log2(n: int) -> int:
    return math.ceil(math.log2(n)) if n > 1 else 0


def convolution_work(node: Node, tile: int = 4) -> list[WorkDepth]:
    """Return the table's four rows for a convolution.

    Winograd only for square kernels, stride 1.
    """
    images, out_channels, out_height, out_width = node.shape
    _, channels, kernel_height, kernel_width = node.inputs[1].shape
    in_channels = node.inputs[0].shape[1]
    (top, bottom), (left, right) = node.attrs["padding"]
    height = node.inputs[0].shape[2] + top + bottom
    width = node.inputs[0].shape[3] + left + right
    groups = node.attrs["groups"]
    direct = node.spec.size * channels * kernel_height * kernel_width
    depth = _log2(channels) + _log2(kernel_height) + _log2(kernel_width)
    transforms = out_channels * channels + images * in_channels + images * out_channels
    area = height * width
    fourier = round(area * math.log2(max(area, 2)) * transforms)
    fourier += area * images * channels * out_channels
    rows = [
        WorkDepth("direct", direct, depth),
        WorkDepth("im2col", direct, depth),
        WorkDepth("FFT", fourier, 2 * _log2(area) + _log2(channels)),
    ]
    plain = node.attrs["stride"] == (1, 1) and node.attrs["dilation"] == (1, 1)
    if plain and kernel_height == kernel_width > 1 and groups == 1:
        r, m = kernel_height, tile
        alpha = m + r - 1
        tiles = images * math.ceil(out_height / m) * math.ceil(out_width / m)
        moved = alpha * (r * r + alpha * r + 2 * alpha * alpha + alpha * m + m * m)
        winograd = moved + out_channels * channels * tiles * alpha * alpha
        rows.append(
            WorkDepth("Winograd", winograd, 2 * _log2(r) + 4 * _log2(alpha) + _log2(channels))
        )
    return rows


def layer_nodes(inputs: tuple[Expr, ...], outputs: tuple[Expr, ...]) -> list[Node]:
    """Return the nodes that a layer added between its inputs and its outputs."""
    before = set(topological([given.node for given in inputs]))
    return [node for node in topological([e.node for e in outputs]) if node not in before]


def layer_flops(nodes: list[Node]) -> int:
    """Return the floating-point operations of these nodes."""
    return sum(node.op.count_flops(node) for node in nodes)


def layer_work(nodes: list[Node]) -> list[WorkDepth]:
    """Work and depth of a layer: by method for convolutions, directly for products."""
    for node in nodes:
        if node.op.name == "conv2d":
            return convolution_work(node)
    products = [node for node in nodes if node.op.name == "matmul"]
    if not products:
        return []
    inner = max(n.inputs[0].shape[-2 if n.attrs["ta"] else -1] for n in products)
    return [WorkDepth("direct", sum(n.op.count_flops(n) for n in products) // 2, _log2(inner))]


# --- what a model is trained with


def hyper_parameters(model: Model) -> dict[str, bool | int | float | str]:
    """Return loss, optimizer with its arguments, batch size, epochs, precision, seed, device.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], learning_rate=0.5)
    >>> found = hyper_parameters(model)
    >>> found["optimizer"], found["optimizer/learning_rate"], found["batch_size"]
    ('Adam', 0.5, 32)
    """
    found: dict[str, Any] = {
        "model": model.name or type(model).__name__,
        "parameters": sum(each.size for each in model.parameters()),
        "loss": ", ".join(repr(loss) for loss in model.objective.losses.values()),
        "optimizer": type(model.optimizer).__name__,
    }
    found |= {f"optimizer/{k}": v for k, v in model.optimizer.arguments().items() if v is not None}
    found |= {
        "batch_size": model.batch_size,
        "epochs": model.epochs,
        "dtype": str(model.dtype),
        "precision": model.precision or str(model.dtype),
        "seed": model.seed,
        "device": model.device.name,
    }
    return {k: v if isinstance(v, bool | int | float | str) else repr(v) for k, v in found.items()}


def training_config(model: Model) -> dict[str, Any]:
    """Return the layers, losses and optimizer of a model with all their arguments.

    These must be equal on all ranks, or each would train a different model.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.tracking.summary import training_config
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dropout(0.5)], loss="mse", optimizer="sgd")
    >>> training_config(model)["layer 1-Dropout"]["rate"]
    0.5
    """
    rules = [_described(each) for each in model.between_epochs]
    found: dict[str, Any] = {"optimizer": _described(model.optimizer), "batch sizes": rules}
    for name, loss in model.objective.losses.items():
        found[f"loss {name}".strip()] = [_described(loss), model.objective.weights.get(name, 1.0)]
    for name, layer in model.children():
        try:
            found[f"layer {name}"] = to_config(layer)
        except ConfigError:
            found[f"layer {name}"] = type(layer).__name__
    return found


def _described(given: Configurable) -> Any:
    """Return the configuration as saved in files, or the class name if it cannot be saved."""
    try:
        return given.config()
    except ConfigError:
        return type(given).__name__


MOST_BLOCKS = 40
"""Maximum number of blocks; with more, inner layers are folded into the outer layer."""
_INPUT = -1


def blocks_of(model: Model) -> list[BlockRecord]:
    """Return the layers of a model for one sample, in the order in which they compute.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3), nn.ReLU()])
    >>> [(each.kind, each.reads) for each in blocks_of(model)]
    [('Dense', [-1]), ('ReLU', [0])]
    """
    _, _, traced = model.expressions(model.samples_traced)
    inner = [call for call in traced.calls if call.layer is not model]
    calls = [call for call in inner if not call.inside]
    if len(calls) > MOST_BLOCKS:
        calls = _outermost(inner)
    calls = [call for call in calls if type(call.layer).__name__ != "Input"]
    makers: dict[Node, int] = {}
    found = []
    for number, call in enumerate(calls):
        reads = sorted({each for given in call.inputs for each in _read(given.node, makers)})
        found.append(
            BlockRecord(
                call.layer.path,
                type(call.layer).__name__,
                list(call.outputs[0].shape[1:]),
                sum(each.size for each in call.layer.parameters()),
                reads or [_INPUT],
            )
        )
        # A layer may return its input unchanged: later readers of that value then read from this
        # layer.
        makers |= {output.node: number for output in call.outputs}
    return found


def _outermost(calls: list[LayerCall]) -> list[LayerCall]:
    found, place = [], 0
    while place < len(calls):
        found.append(calls[place])
        place += 1 + calls[place].inside
    return found


def _read(node: Node, makers: Mapping[Node, int]) -> set[int]:
    """Return the blocks that a value depends on, past ops of the model itself."""
    found: set[int] = set()
    seen: set[Node] = set()
    pending = [node]
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        symbol = each.attrs.get("symbol")
        if each in makers:
            found.add(makers[each])
        elif symbol is not None and symbol.role == "input":
            found.add(_INPUT)
        else:
            pending += each.inputs
    return found
