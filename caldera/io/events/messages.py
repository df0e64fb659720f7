"""What TensorBoard reads: scalars, histograms, texts, hyper-parameters, graphs.

The numbers of the fields are those of TensorBoard's own `event.proto`, `summary.proto`,
`tensor.proto`, `graph.proto` and of the hparams plugin's `plugin_data.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from caldera.io.events.wire import double, doubles, message, single, text, whole

BUCKETS = 64
_FLOAT, _STRING = 1, 7
"""Types of a tensor."""
_STARTED = 1
"""The state of a session log."""
_SUCCESS, _FAILURE = 1, 2

Setting = bool | int | float | str


@dataclass(frozen=True)
class GraphNode:
    """A node of the graph that TensorBoard draws; slashes in names make boxes."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of its outputs."""


def event(seconds: float, step: int, *content: bytes) -> bytes:
    """An event at a time (seconds since 1970) and a step."""
    return double(1, seconds) + whole(2, step) + b"".join(content)


def version() -> bytes:
    """What the first event of a file has to say."""
    return text(3, "brain.Event:2")


def restarted() -> bytes:
    """Of this step or later ones, nothing that was written before counts."""
    return message(7, whole(1, _STARTED))


def summary(*values: bytes) -> bytes:
    """Values that belong to one step."""
    return message(5, *[message(1, value) for value in values])


# --- values


def scalar(tag: str, value: float) -> bytes:
    """A number."""
    return text(1, tag) + single(2, value)


def histogram(tag: str, values: np.ndarray) -> bytes:
    """How values are distributed, in equal steps from the least to the largest.

    Values that are not finite have no place among them, and are left out.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        finite = np.zeros(1)
    counts, edges = np.histogram(finite, BUCKETS)
    parts = [
        double(1, finite.min()),
        double(2, finite.max()),
        double(3, finite.size),
        double(4, finite.sum()),
        double(5, np.square(finite).sum()),
        # A bucket reaches from the limit of the one before to its own: the first is empty.
        doubles(6, edges),
        doubles(7, [0, *counts]),
    ]
    return text(1, tag) + message(5, *parts)


def words(tag: str, content: str) -> bytes:
    """A text, which TensorBoard reads as Markdown."""
    tensor = whole(1, _STRING) + message(2) + text(8, content)
    return text(1, tag) + message(8, tensor) + _metadata("text")


def hyper_parameters(settings: Mapping[str, Setting], started: float) -> bytes:
    """What a run was made with, for the table that compares runs."""
    entries = [message(1, text(1, name), message(2, _value(v))) for name, v in settings.items()]
    return _of_hparams("_hparams_/session_start_info", message(3, *entries, double(5, started)))


def run_ended(well: bool, seconds: float) -> bytes:
    """How a run ended, for the same table."""
    ended = message(4, whole(1, _SUCCESS if well else _FAILURE), double(2, seconds))
    return _of_hparams("_hparams_/session_end_info", ended)


def _of_hparams(tag: str, content: bytes) -> bytes:
    # The plugin wants a tensor, but looks only at the metadata.
    nothing = whole(1, _FLOAT) + message(2, message(2, whole(1, 0)))
    return text(1, tag) + message(8, nothing) + _metadata("hparams", content)


def _value(value: Setting) -> bytes:
    if isinstance(value, bool):
        return whole(4, value)
    return text(3, value) if isinstance(value, str) else double(2, value)


def _metadata(plugin: str, content: bytes = b"") -> bytes:
    return message(9, message(1, text(1, plugin), message(2, content)))


# --- graphs


def graph(nodes: Iterable[GraphNode]) -> bytes:
    """A graph, as the field of an event."""
    producer = message(4, whole(1, 22))
    return message(4, *[message(1, _node(node)) for node in nodes], producer)


def _node(node: GraphNode) -> bytes:
    parts = [text(1, node.name), text(2, node.op), *(text(3, name) for name in node.inputs)]
    if node.shapes:
        shapes = [message(7, *[message(2, whole(1, n)) for n in shape]) for shape in node.shapes]
        parts.append(message(5, text(1, "_output_shapes"), message(2, message(1, *shapes))))
    return b"".join(parts)
