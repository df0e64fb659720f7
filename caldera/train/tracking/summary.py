"""`model.summary()`: every layer with its shape, parameters, operations, memory, work and depth."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.amounts import bytes_text
from caldera.nn.layer import Layer
from caldera.nn.tracing import Context, LayerCall
from caldera.train.tracking.work_depth import Work, layer_flops, layer_nodes, layer_work


@dataclass(frozen=True)
class Row:
    """One layer of a summary, for one sample."""

    path: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    trainable: int
    flops: int
    nbytes: int
    work: tuple[Work, ...]


@dataclass(frozen=True)
class Summary:
    """What a model is made of; printing it gives a table with exact totals.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3), nn.Sigmoid(), nn.Dense(2)])
    >>> model.summary(show=False).parameters
    23
    """

    name: str
    rows: tuple[Row, ...]
    parameters: int
    trainable: int
    flops: int
    parameter_bytes: int
    activation_bytes: int

    def __str__(self) -> str:
        header = ("layer", "kind", "output", "parameters", "FLOPs", "memory", "work", "depth")
        body = [_cells(row) for row in self.rows]
        widths = [max(len(cells[i]) for cells in [header, *body]) for i in range(len(header))]
        lines = [self.name, _line(header, widths), "-" * (sum(widths) + 2 * len(widths) - 2)]
        for row, cells in zip(self.rows, body, strict=True):
            lines.append(_line(cells, widths))
            lines += [
                " " * (sum(widths[:6]) + 12) + f"{each.method}: W {each.work:,} D {each.depth}"
                for each in row.work[1:]
            ]
        lines += [
            f"parameters  {self.parameters:,} ({self.trainable:,} trained), "
            f"{bytes_text(self.parameter_bytes)}",
            f"one sample  {self.flops:,} FLOPs forward, "
            f"{bytes_text(self.activation_bytes)} of activations",
        ]
        return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
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


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return "  ".join(left + right).rstrip()


def summarise(model: Layer, traced: Context, batch: int) -> Summary:
    """The summary of a model, from a trace of it on `batch` samples."""
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


def _row(call: LayerCall, batch: int, counted: set[int]) -> Row:
    own = [] if id(call.layer) in counted else call.layer.parameters()
    counted.add(id(call.layer))
    nodes = layer_nodes(call.inputs, call.outputs)
    output = call.outputs[0]
    return Row(
        path=call.layer.path,
        kind=type(call.layer).__name__,
        shape=output.shape[1:],
        parameters=sum(p.size for p in own),
        trainable=0 if call.layer.frozen else sum(p.size for p in own),
        flops=layer_flops(nodes) // batch,
        nbytes=sum(o.node.spec.nbytes for o in call.outputs) // batch,
        work=tuple(Work(w.method, w.work // batch, w.depth) for w in layer_work(nodes)),
    )
