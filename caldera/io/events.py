"""TensorBoard event files: TFRecords of Protocol Buffers messages.

TensorBoard shows the files of a folder as one run. A record is a length, bytes, and checksums of
both: CRC-32C (Castagnoli), rotated and offset so that a record may contain records.

The messages are scalars, histograms, texts, hyper-parameters and graphs. The field numbers are
taken from TensorBoard's `event.proto`, `summary.proto`, `tensor.proto`, `graph.proto` and of the
hparams plugin's `plugin_data.proto`. The encoder covers only the types used here (see the encoding
guide of Protocol Buffers): integers as varints, floating-point numbers of 4 and 8 bytes, texts,
bytes and nested messages.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from caldera.base.file_access import file_name

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Return a whole number, seven bits a byte, the lowest first; negative ones as 64 bits.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def whole(field: int, value: int) -> bytes:
    """Return a field that is a whole number, a truth value or a member of an enumeration.

    >>> whole(1, 150).hex()
    '089601'
    """
    return varint(field << 3 | _VARINT) + varint(value)


def single(field: int, value: float) -> bytes:
    """Return a field that is a number of 4 bytes."""
    # NumPy converts too large values to infinity; struct would raise an error.
    with np.errstate(over="ignore"):
        return varint(field << 3 | _FOUR_BYTES) + np.float32(value).tobytes()


def double(field: int, value: float) -> bytes:
    """Return a field that is a number of 8 bytes."""
    return varint(field << 3 | _EIGHT_BYTES) + struct.pack("<d", value)


def doubles(field: int, values: Iterable[float]) -> bytes:
    """Return a field that is many numbers of 8 bytes."""
    return message(field, np.fromiter(values, "<f8").tobytes())


def text(field: int, value: str) -> bytes:
    """Return a field that is a text.

    >>> text(2, "testing").hex()
    '120774657374696e67'
    """
    return message(field, value.encode())


def message(field: int, *parts: bytes) -> bytes:
    """Return a field with a message of these fields, or with bytes."""
    content = b"".join(parts)
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


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
    """Shapes of the outputs."""


# --- values


def scalar(tag: str, value: float) -> bytes:
    """Return a number."""
    return text(1, tag) + single(2, value)


def histogram(tag: str, values: np.ndarray) -> bytes:
    """Return the histogram of values, in equal steps from the least to the largest.

    Values that are not finite are left out.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    finite = finite if finite.size else np.zeros(1)
    counts, edges = np.histogram(finite, BUCKETS)
    parts = [
        double(1, finite.min()),
        double(2, finite.max()),
        double(3, finite.size),
        double(4, finite.sum()),
        double(5, np.square(finite).sum()),
        # A bucket extends from the limit of its predecessor to its own limit: the first is empty.
        doubles(6, edges),
        doubles(7, [0, *counts]),
    ]
    return text(1, tag) + message(5, *parts)


def words(tag: str, content: str) -> bytes:
    """Return a text, which TensorBoard reads as Markdown."""
    tensor = whole(1, _STRING) + message(2) + text(8, content)
    return text(1, tag) + message(8, tensor) + _metadata("text")


def _of_hparams(tag: str, content: bytes) -> bytes:
    # The plugin requires a tensor, but reads only the metadata.
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
    """Return a graph, as the field of an event."""
    return message(4, *[message(1, _node(node)) for node in nodes], message(4, whole(1, 22)))


def _node(node: GraphNode) -> bytes:
    parts = [text(1, node.name), text(2, node.op), *(text(3, name) for name in node.inputs)]
    if node.shapes:
        shapes = [message(7, *[message(2, whole(1, n)) for n in shape]) for shape in node.shapes]
        parts.append(message(5, text(1, "_output_shapes"), message(2, message(1, *shapes))))
    return b"".join(parts)


_numbers = itertools.count()


class EventFile:
    """New file of events in a folder; `flush` makes written events visible to readers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with EventFile(folder) as events:
    ...         events.scalars(0, {"loss": 0.5})
    ...     ".tfevents." in events.path.name
    True
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        now = time.time()
        name = f"{now:.6f}.{file_name(socket.gethostname())}.{os.getpid()}.{next(_numbers)}"
        self.path = Path(folder) / f"events.out.tfevents.{name}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("wb")
        # The first event of a file must contain the version.
        self._write(0, text(3, "brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by tag."""
        self._summary(step, [scalar(tag, value) for tag, value in values.items()])

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Write the histograms of arrays, by tag."""
        self._summary(step, [histogram(tag, array) for tag, array in values.items()])

    def texts(self, step: int, values: Mapping[str, str]) -> None:
        """Write texts in Markdown, by tag."""
        self._summary(step, [words(tag, content) for tag, content in values.items()])

    def hyper_parameters(self, settings: Mapping[str, Setting]) -> None:
        """Write the settings of this run, for the table that compares runs; see `ended`."""
        entries = [message(1, text(1, name), message(2, _value(v))) for name, v in settings.items()]
        started = message(3, *entries, double(5, time.time()))
        self._summary(0, [_of_hparams("_hparams_/session_start_info", started)])

    def ended(self, *, well: bool) -> None:
        """Record the end of the run."""
        ended = message(4, whole(1, _SUCCESS if well else _FAILURE), double(2, time.time()))
        self._summary(0, [_of_hparams("_hparams_/session_end_info", ended)])

    def graph(self, nodes: Iterable[GraphNode]) -> None:
        """Write the graph of this run."""
        self._write(0, graph(nodes))

    def restart(self, step: int) -> None:
        """Invalidate events of earlier files of the folder from this step on."""
        self._write(step, message(7, whole(1, _STARTED)))

    def flush(self) -> None:
        """Flush all data to the system, so that readers see them."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _summary(self, step: int, values: list[bytes]) -> None:
        if values:
            self._write(step, message(5, *[message(1, value) for value in values]))

    def _write(self, step: int, content: bytes) -> None:
        self._file.write(record(double(1, time.time()) + whole(2, step) + content))


_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_entry, range(256)))


def crc32c(data: bytes) -> int:
    """Return the checksum of RFC 3720.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """Return the data as a record.

    >>> record(b"abc").hex()
    '0300000000000000b099490e6162636e57f121'
    """
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    turned = (value >> 15 | value << 17) + _MASK
    return struct.pack("<I", turned & 0xFFFFFFFF)
