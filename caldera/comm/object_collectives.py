"""Small values between ranks: as JSON on the wire, so that nothing that arrives can run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator


def gathered(comm: Communicator, value: Any) -> list[Any]:
    """The values of all ranks, on every rank."""
    mine = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([mine.size], np.int64), lengths)
    everything = np.empty(int(lengths.sum()), np.uint8)
    comm.Allgather(mine, everything, lengths.tolist())
    parts = np.split(everything, np.cumsum(lengths)[:-1])
    return [json.loads(part.tobytes()) for part in parts]


def broadcast(comm: Communicator, value: Any, root: int) -> Any:
    """The root's value, on every rank."""
    text = json.dumps(value).encode() if comm.rank == root else b""
    length = np.array([len(text)], np.int64)
    comm.Bcast(length, root)
    buffer = np.frombuffer(bytearray(text or int(length[0])), np.uint8)
    comm.Bcast(buffer, root)
    return json.loads(buffer.tobytes())
