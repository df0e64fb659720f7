"""Messages between workers and parameter servers: their encoding and transport.

Each server has a separate communicator. On its rank only the server's thread uses that; the
worker of the same rank passes its messages in memory. On other ranks only the worker uses it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate, pairwise

import numpy as np

from caldera.comm import ANY_SOURCE, Communicator, Request
from caldera.compiler.lazy import Variable
from caldera.compress import Compressor, TopK
from caldera.compress.codecs import Codec, RawCodec
from caldera.compress.compressor import RandomStream, unpack_indices
from caldera.compress.dense import DenseCompressor
from caldera.compress.sparse import SparseCodec, SparseVector
from caldera.core.tensor.dtype import DType, promote
from caldera.errors import ConfigError
from caldera.train.strategy import NO_VOTES

PUSH, BARRIER, LEAVE = range(3)
"""A gradient; all workers wait for each other; the same, and the server ends."""
_PUSH_WORDS, _REPLY_WORDS = 8, 3
PUSH_HEADER_BYTES, REPLY_HEADER_BYTES = 8 * _PUSH_WORDS, 8 * _REPLY_WORDS
"""Header bytes of a push and of a reply."""
_HEAD, _BODY, _REPLY = range(3)
"""Tags."""
_SHORT_NAP_S, _LONG_NAP_S = 2e-5, 5e-4


@dataclass(frozen=True)
class Push:
    """Message of a worker.

    - `number`: the worker's step; `version`: the number of updates its parameters had seen.
    - `ok`: True if the gradient is finite; `weight`: the weight of its samples.
    - `payload`: the gradient, as bytes.
    """

    kind: int
    number: int = 0
    version: int = 0
    ok: bool = True
    weight: float = 0.0
    votes: Sequence[float] = NO_VOTES
    payload: np.ndarray | None = None
    worker: int = -1


@dataclass(frozen=True)
class Reply:
    """Answer of a server: its parameters, the number of updates they include, and the next
    action.
    """

    parameters: np.ndarray
    version: int
    tally: Sequence[float] = NO_VOTES


class Connection(ABC):
    """A worker's end of the line to a server."""

    @abstractmethod
    def send(self, push: Push) -> None:
        """Begin to send."""

    @abstractmethod
    def reply(self) -> Reply | None:
        """Return the answer to the last push, or None if it has not arrived."""


class ServerEndpoint:
    """Receiving end of a server, for pushes from its own rank and from remote ranks."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._own: deque[Push] = deque()
        self._own_replies: deque[Reply] = deque()
        self._head = np.empty(_PUSH_WORDS)
        self._arriving: Request | None = None
        self._leaving: list[Request] = []
        self._here = communicator.size - 1

    def local_connection(self) -> Connection:
        """Return the connection for the worker of this rank."""
        return _LocalConnection(self._own, self._own_replies)

    def open(self) -> None:
        """Prepare for the steps of an epoch."""
        self._here = self._communicator.size - 1

    def next(self) -> Push:
        """Wait for a message of any worker."""
        nap = _SHORT_NAP_S
        while True:
            if self._own:
                return self._own.popleft()
            if self._arriving is None and self._here:
                self._arriving = self._communicator.Irecv(self._head, ANY_SOURCE, _HEAD)
            if self._arriving is not None and self._arriving.test():
                return self._received(self._arriving.source)
            # MPI would spin, and workers need the core.
            time.sleep(nap)
            nap = min(2 * nap, _LONG_NAP_S)

    def _received(self, worker: int) -> Push:
        self._arriving = None
        kind, number, version, ok, weight, *votes, nbytes = self._head.tolist()
        payload = np.empty(int(nbytes), np.uint8)
        if nbytes:
            self._communicator.Recv(payload, worker, _BODY)
        self._here -= kind == LEAVE
        return Push(int(kind), int(number), int(version), bool(ok), weight, votes, payload, worker)

    def reply(self, worker: int, reply: Reply) -> None:
        """Send an answer to a worker without waiting for its arrival."""
        if worker == self._communicator.rank:
            self._own_replies.append(reply)
            return
        words = np.array([reply.version, *reply.tally])
        message = np.concatenate([words.view(np.uint8), reply.parameters.view(np.uint8)])
        self._leaving = [each for each in self._leaving if not each.test()]
        self._leaving.append(self._communicator.Isend(message, worker, _REPLY))

    def close(self) -> None:
        """Wait until all replies have left."""
        for each in self._leaving:
            each.wait()
        self._leaving = []


class _LocalConnection(Connection):
    """Connection to the server of this rank."""

    def __init__(self, pushes: deque[Push], replies: deque[Reply]) -> None:
        self._pushes = pushes
        self._replies = replies

    def send(self, push: Push) -> None:
        # A server may keep it until others have sent theirs, and the next step writes there.
        kept = None if push.payload is None else push.payload.copy()
        self._pushes.append(replace(push, payload=kept))

    def reply(self) -> Reply | None:
        return self._replies.popleft() if self._replies else None


class RemoteConnection(Connection):
    """Connection to the server of another rank; `elements` is the size of its parameters."""

    def __init__(self, communicator: Communicator, server: int, size: int, dtype: DType) -> None:
        self._communicator = communicator
        self._server = server
        self._dtype = dtype
        self._bytes = REPLY_HEADER_BYTES + size * self._dtype.itemsize
        self._sending: list[Request] = []
        self._arriving: Request | None = None
        self._message = np.empty(0, np.uint8)

    def send(self, push: Push) -> None:
        payload = np.empty(0, np.uint8) if push.payload is None else push.payload
        numbers = (push.kind, push.number, push.version, push.ok, push.weight)
        head = np.array([*numbers, *push.votes, payload.size], np.float64)
        self._sending = [self._communicator.Isend(head, self._server, _HEAD)]
        if payload.size:
            self._sending.append(self._communicator.Isend(payload, self._server, _BODY))
        self._message = np.empty(self._bytes, np.uint8)
        self._arriving = self._communicator.Irecv(self._message, self._server, _REPLY)

    def reply(self) -> Reply | None:
        assert self._arriving is not None
        if not self._arriving.test():
            return None
        for each in self._sending:
            each.wait()
        words = self._message[:REPLY_HEADER_BYTES].view(np.float64).tolist()
        return Reply(self._message[REPLY_HEADER_BYTES:].view(self._dtype), int(words[0]), words[1:])


def replies(connections: Sequence[Connection], check: Callable[[], object]) -> list[Reply]:
    """Wait for the replies of all servers; `check` is called while it waits, and may raise."""
    found: dict[int, Reply] = {}
    nap = _SHORT_NAP_S
    while True:
        for number, connection in enumerate(connections):
            if number not in found and (reply := connection.reply()) is not None:
                found[number] = reply
        if len(found) == len(connections):
            return [found[number] for number in range(len(connections))]
        check()
        time.sleep(nap)
        nap = min(2 * nap, _LONG_NAP_S)


@dataclass(frozen=True, eq=False)
class ServerShard:
    """Parameters of one server, concatenated in its messages.

    - `rank`: the rank of the server.
    """

    rank: int
    parameters: tuple[Variable, ...]

    @cached_property
    def dtype(self) -> DType:
        """Dtype that represents every parameter exactly."""
        return reduce(promote, (each.dtype for each in self.parameters))

    @cached_property
    def size(self) -> int:
        """Number of elements of the parameters."""
        return sum(each.size for each in self.parameters)

    @property
    def nbytes(self) -> int:
        """Size of the parameters in a message."""
        return self.size * self.dtype.itemsize

    def parts(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Return views of a message, by the names of the parameters and in their shapes."""
        edges = accumulate((each.size for each in self.parameters), initial=0)
        return {
            each.name: flat[begin:end].reshape(each.shape)
            for each, (begin, end) in zip(self.parameters, pairwise(edges), strict=True)
        }

    def packed(self, values: Mapping[Variable, Variable]) -> np.ndarray:
        """Return the values of the variables that replace the parameters, as a message."""
        flat = np.empty(self.size, self.dtype)
        for each, part in zip(self.parameters, self.parts(flat).values(), strict=True):
            part[...] = values[each].tensor.numpy()
        return flat


def server_ranks(servers: int, ranks: int) -> list[int]:
    """Return the ranks of the servers, as far from one another as may be: on several machines if
    there are several.

    >>> from caldera.parallel.asynchronous.transport import server_ranks
    >>> server_ranks(1, 4), server_ranks(2, 4), server_ranks(3, 4)
    ([0], [0, 2], [0, 1, 2])
    """
    return [server * ranks // servers for server in range(servers)]


def deal(nbytes: Sequence[int], servers: int) -> list[int]:
    """Return the server of each parameter: the largest first, with similar bytes for each.

    >>> from caldera.parallel.asynchronous.transport import deal
    >>> deal([24, 20, 8], servers=2)
    [0, 1, 1]
    """
    loads = [0] * servers
    owner = [0] * len(nbytes)
    for index in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[index] = loads.index(min(loads))
        # At least one, so that parameters without elements are dealt out as well.
        loads[owner[index]] += max(nbytes[index], 1)
    return owner


def deal_parameters(parameters: Sequence[Variable], ranks: Sequence[int]) -> list[ServerShard]:
    """Assign whole parameters to the servers at these ranks, with similar bytes for each.

    >>> from caldera import op
    >>> from caldera.parallel.asynchronous.transport import deal_parameters
    >>> a, b, c = op.var("a", (6,)), op.var("b", (5,)), op.var("c", (2,))
    >>> [[each.name for each in shard.parameters] for shard in deal_parameters([a, b, c], [0, 2])]
    [['a'], ['b', 'c']]
    """
    if len(parameters) < len(ranks):
        raise ConfigError.build(
            "ParameterServer",
            expected=f"at most {len(parameters)} servers, one a parameter",
            got=f"servers={len(ranks)}",
        )
    owner = deal([each.node.spec.nbytes for each in parameters], len(ranks))
    return [
        ServerShard(rank, tuple(p for i, p in enumerate(parameters) if owner[i] == server))
        for server, rank in enumerate(ranks)
    ]


_RESIDUAL, _STEP = "residual", "step"


class PushCodec(ABC):
    """Encodes pushes with a compressor and stores the compression error.

    With `feedback`, the error of a push is added to the next push of the same parameter.
    """

    def __init__(self, seed: int, rank: int, *, feedback: bool) -> None:
        self._seed = seed
        self._rank = rank
        self._feedback = feedback
        self._steps = 0
        self._residuals: dict[ServerShard, np.ndarray] = {}

    @abstractmethod
    def _encoded(
        self,
        shard: ServerShard,
        gradient: np.ndarray,
        residual: np.ndarray | None,
        chance: RandomStream,
    ) -> np.ndarray:
        """Return the encoded gradient; `residual` receives the part that is not sent."""

    @abstractmethod
    def decoded(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        """Return the gradient of `count` elements that a message encodes."""

    def begin(self, shards: Sequence[ServerShard]) -> None:
        """Reset residuals before a run."""
        self._steps = 0
        if self._feedback:
            self._residuals = {shard: np.zeros(shard.size, shard.dtype) for shard in shards}

    def encoded(self, shard: ServerShard, gradient: np.ndarray) -> np.ndarray:
        """Return the bytes of a gradient."""
        chance = RandomStream(self._seed, self._steps, f"push to rank {shard.rank}")
        residual = self._residuals.get(shard)
        message = self._encoded(shard, gradient, residual, chance)
        if residual is not None:
            # Infinities and nans are sent, so that the step shows them, but must not stay.
            residual[~np.isfinite(residual)] = 0
        return message

    def step_taken(self) -> None:
        """Select new random draws for the next step."""
        self._steps += 1

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of this rank to checkpoint, by "kind/parameter"."""
        return {
            f"{_RESIDUAL}/{name}": part
            for shard, flat in self._residuals.items()
            for name, part in shard.parts(flat).items()
        } | {f"{_STEP}/pushes": np.array([self._steps])}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what `state` gave."""
        self._steps = int(state[f"{_STEP}/pushes"][0])
        for shard, flat in self._residuals.items():
            for name, part in shard.parts(flat).items():
                part[...] = state[f"{_RESIDUAL}/{name}"]


class DensePushCodec(PushCodec):
    """Messages with all elements, encoded by a compressor."""

    def __init__(self, compressor: DenseCompressor, rank: int) -> None:
        super().__init__(compressor.seed, rank, feedback=compressor.feedback)
        self._code = compressor.code

    def _encoded(
        self,
        shard: ServerShard,
        gradient: np.ndarray,
        residual: np.ndarray | None,
        chance: RandomStream,
    ) -> np.ndarray:
        whole = gradient if residual is None else gradient + residual
        message = self._code.encode(whole, chance.of(self._rank))
        if residual is not None:
            residual[...] = whole - self.decoded(message, shard.size, shard.dtype)
        return message

    def decoded(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        return self._code.decode(message, count, dtype)


class TopKPushCodec(PushCodec):
    """Sends only the largest elements, of each parameter or of a server's whole shard."""

    def __init__(self, compressor: TopK, rank: int) -> None:
        super().__init__(compressor.seed, rank, feedback=True)
        self._compressor = compressor

    def _code(self, dtype: DType) -> Codec:
        return self._compressor.quantiser or RawCodec(dtype)

    def _encoded(
        self,
        shard: ServerShard,
        gradient: np.ndarray,
        residual: np.ndarray | None,
        chance: RandomStream,
    ) -> np.ndarray:
        assert residual is not None
        added = [part.reshape(-1) for part in shard.parts(gradient).values()]
        vector = self._compressor.take(residual, added, chance)
        coding = SparseCodec(self._code(vector.values.dtype), chance, self._rank, residual)
        (message,) = coding.encode(vector, [(0, vector.length)], stage=0, owner=self._rank)
        return message

    def decoded(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        places, values = unpack_indices(message, count)
        return SparseVector(
            count, places, self._code(dtype).decode(values, places.size, dtype)
        ).dense()


def push_codec(compressor: Compressor, rank: int) -> PushCodec:
    """Return the codec that pushes gradients with a compressor, or raise if it cannot."""
    if not compressor.mean:
        if isinstance(compressor, DenseCompressor):
            return DensePushCodec(compressor, rank)
        if isinstance(compressor, TopK) and not compressor.momentum:
            return TopKPushCodec(compressor, rank)
    raise ConfigError.build(
        "ParameterServer",
        expected="compression= Cast, QSGD, TernGrad, OneBit, Lossless, or TopK without momentum, "
        "with mean=False",
        got=repr(compressor),
        hint="other schemes need all ranks simultaneously, or define no message of a single "
        "gradient",
    )
