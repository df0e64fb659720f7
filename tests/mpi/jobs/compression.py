"""Compressors over MPI: the bits that ranks in threads get, on every rank."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from caldera.comm import Communicator, run_virtual_ranks, world
from caldera.compress import QSGD, Compressor, Lossless, RandomK, TopK
from caldera.compress.sparse import ALGORITHMS


def compressors() -> list[Compressor]:
    """One of each kind of exchange."""
    made: list[Compressor] = [QSGD(4), Lossless(), RandomK(0.1)]
    for name in ALGORITHMS:
        made += [TopK(16, block=512, bits=4, algorithm=name), TopK(0.05, algorithm=name)]
    return made


def digest(comm: Communicator) -> str:
    """Two steps with each compressor; all bits of what came out."""
    found = hashlib.blake2b(digest_size=16)
    for compressor in compressors():
        for step in range(2):
            rng = np.random.default_rng([comm.rank, step])
            # Whole numbers: sums are exact in any order, which for RandomK is MPI's business.
            gradients = {
                name: rng.integers(-50, 50, size=shape).astype(np.float32)
                for name, shape in {"w": (60, 70), "b": (70,)}.items()
            }
            compressor.exchange_all(gradients, comm)
            for gradient in gradients.values():
                found.update(gradient.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    everybody = world()
    size = everybody.size
    digests = everybody.gather_objects(digest(everybody))
    if everybody.rank == 0:
        expected = run_virtual_ranks(size, digest)
        if digests == expected and len(set(digests)) == 1:
            print("the same bits", flush=True)
        else:
            sys.exit(f"over MPI {digests}, in threads {expected}")
