"""A file of events: TensorBoard shows the files of a folder as one run.

It is a TFRecord file. A record is a length, bytes, and checksums of both: CRC-32C (Castagnoli),
turned and shifted so that a record may hold records.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from caldera.base.file_names import file_name
from caldera.io.events import messages
from caldera.io.events.messages import GraphNode, Setting

_numbers = itertools.count()


class EventFile:
    """A new file of events in a folder. What was written is on its way to the disk after `flush`.

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
        self._write(0, messages.version())

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers by tag."""
        self._summary(step, [messages.scalar(tag, value) for tag, value in values.items()])

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """How the elements of arrays are distributed, by tag."""
        self._summary(step, [messages.histogram(tag, array) for tag, array in values.items()])

    def texts(self, step: int, values: Mapping[str, str]) -> None:
        """Texts in Markdown, by tag."""
        self._summary(step, [messages.words(tag, content) for tag, content in values.items()])

    def hyper_parameters(self, settings: Mapping[str, Setting]) -> None:
        """What this run is made with; say how it ended with `ended`."""
        self._summary(0, [messages.hyper_parameters(settings, time.time())])

    def ended(self, *, well: bool) -> None:
        """This run is over."""
        self._summary(0, [messages.run_ended(well, time.time())])

    def graph(self, nodes: Iterable[GraphNode]) -> None:
        """The graph of this run."""
        self._write(0, messages.graph(nodes))

    def restart(self, step: int) -> None:
        """From this step on, nothing counts that other files of the folder have."""
        self._write(step, messages.restarted())

    def flush(self) -> None:
        """Hand everything to the system, where readers see it."""
        self._file.flush()

    def close(self) -> None:
        """Nothing more will be written."""
        self._file.close()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _summary(self, step: int, values: list[bytes]) -> None:
        if values:
            self._write(step, messages.summary(*values))

    def _write(self, step: int, content: bytes) -> None:
        self._file.write(record(messages.event(time.time(), step, content)))


_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


def _table() -> tuple[int, ...]:
    entries = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """The data as a record.

    >>> record(b"abc").hex()
    '0300000000000000b099490e6162636e57f121'
    """
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    turned = (value >> 15 | value << 17) + _MASK
    return struct.pack("<I", turned & 0xFFFFFFFF)
