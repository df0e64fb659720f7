"""Two ranks with the same process and descriptor numbers, as in two containers of one machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from tests.mpi.conftest import ROOT

pytestmark = pytest.mark.cluster
MESSAGES = int(os.environ.get("CALDERA_MESSAGES") or 150)
LONGEST = 8_000_000 if MESSAGES > 150 else 400_000
RANK = f"""
import os, socket, sys
import numpy as np
from caldera.comm.endpoint import Endpoint
from caldera.comm.local_sockets import SocketCommunicator
rank = int(sys.argv[1])
endpoint = Endpoint(rank, {{1 - rank: socket.socket(fileno=int(sys.argv[2]))}})
comm = SocketCommunicator(endpoint, range(2), "world")
# An outbox is made with the first long message: in both at the same descriptor.
draw, wrong = np.random.default_rng(1), 0
for number in range({MESSAGES}):
    length = int(np.exp(draw.uniform(0, np.log({LONGEST}))))
    mine = np.random.default_rng([rank, number]).integers(0, 256, length).astype(np.uint8)
    theirs = np.random.default_rng([1 - rank, number]).integers(0, 256, length).astype(np.uint8)
    got = np.zeros_like(mine)
    comm.Sendrecv(mine, 1 - rank, got, 1 - rank)
    wrong += not np.array_equal(got, theirs)
comm.Barrier()
endpoint.close()
print(os.getpid(), endpoint._outbox.address, any(endpoint._readers.values()), wrong)
"""


def test_ranks_in_two_process_namespaces_read_no_buffer_of_their_own() -> None:
    unshare = shutil.which("unshare")
    apart = [unshare or "unshare", "--pid", "--fork", "--mount-proc"]
    if unshare is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no right to make process namespaces (unshare --pid --fork --mount-proc)")
    ends = socket.socketpair()
    for end in ends:
        end.set_inheritable(True)
    ranks = [
        subprocess.Popen(
            [*apart, sys.executable, "-c", RANK, str(rank), str(end.fileno())],
            env={**os.environ, "PYTHONPATH": str(ROOT), "CALDERA_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[each.fileno() for each in ends],
        )
        for rank, end in enumerate(ends)
    ]
    for end in ends:
        end.close()
    found = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    # The same address in both, which neither could have proven to the other.
    assert found[0] == found[1]
    assert found[0][2:] == ["False", "0"]
