"""NCCL and staging on a real card; one rank, since NCCL takes one a card."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

import caldera as cd
from caldera.comm import Communicator, NcclCommunicator, SingleProcess
from caldera.core.memory.gpus import card_count
from caldera.core.memory.software import DeviceArray
from caldera.testing.communicators import CONTRACT, Check

pytestmark = pytest.mark.skipif(
    card_count() == 0 or find_spec("cupy.cuda.nccl") is None, reason="no card with NCCL"
)
KINDS: dict[str, Callable[[], Communicator]] = {
    "NCCL": lambda: NcclCommunicator(SingleProcess(), card=0),
    "through the host": SingleProcess,
}


class Buffer:
    """Memory on the card with numbers in it."""

    def __init__(self, values: np.ndarray) -> None:
        self._device = cd.device("cuda:0")
        self._block = self._device.allocate(values.nbytes)
        self._device.copy_in(self._block, 0, values, self._device.stream)
        self.there: DeviceArray = self._device.array(self._block, 0, values.shape, values.dtype)

    def numpy(self) -> np.ndarray:
        here = np.empty(self.there.shape, self.there.dtype)
        self._device.copy_out(here, self._block, 0, here.nbytes, self._device.stream)
        self._device.stream.synchronize()
        return here


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16", ml_dtypes.bfloat16])
def test_every_collective_is_a_copy_at_one_rank(kind: str, dtype: str) -> None:
    comm = KINDS[kind]()
    values = np.arange(-3, 4).astype(dtype)
    calls: dict[str, Callable[[DeviceArray, DeviceArray], None]] = {
        "Allreduce": comm.Allreduce,
        "maximum": lambda send, receive: comm.Allreduce(send, receive, "max"),
        "Reduce": comm.Reduce,
        "ReduceScatter": comm.ReduceScatter,
        "Allgather": comm.Allgather,
        "Alltoall": comm.Alltoall,
        "Iallreduce": lambda send, receive: comm.Iallreduce(send, receive).wait(),
        "Sendrecv": lambda send, receive: comm.Sendrecv(send, 0, receive, 0),
    }
    if np.dtype(dtype).kind != "i":
        calls["mean"] = lambda send, receive: comm.Allreduce(send, receive, "mean")
    for name, call in calls.items():
        send, receive = Buffer(values), Buffer(np.zeros_like(values))
        call(send.there, receive.there)
        np.testing.assert_array_equal(receive.numpy(), values, err_msg=name)
    comm.Bcast(send.there)
    np.testing.assert_array_equal(send.numpy(), values)


def test_a_collective_is_put_between_the_kernels_of_a_stream() -> None:
    comm = NcclCommunicator(SingleProcess(), card=0)
    device = cd.device("cuda:0")
    first, second = Buffer(np.zeros(1 << 20, np.float32)), Buffer(np.ones(1 << 20, np.float32))
    source = np.full(1 << 20, 7, np.float32)
    device.copy_in(first._block, 0, source, device.stream)
    device.stream.launch(lambda: comm.Allreduce(first.there, second.there))
    assert second.numpy()[-1] == 7


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_the_contract(check: Check) -> None:
    check(NcclCommunicator(SingleProcess(), card=0))
