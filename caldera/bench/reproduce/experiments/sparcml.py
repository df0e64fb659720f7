"""The keynote's table of SparCML: sparse and quantised allreduce of an MLP's gradients."""

from __future__ import annotations

import numpy as np

from caldera.bench.reproduce.experiment import BESIDE, Context, Experiment, Outcome, Row, holds
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compress import compressors

RANKS = 8
SHAPES = ((784, 528), (528,), (528, 528), (528,), (528, 10), (10,))
"""Of an MLP on MNIST."""
SEED = {"Piz Daint": (3.65, 4.53), "EC2": (19.12, 22.97)}
"""How many times as fast training is, and (second) its communication."""


def run(context: Context) -> Outcome:
    """Bytes on the wire of Top16_Q4 beside a dense allreduce, of the same gradients."""
    steps = 2 if context.quick else 10

    def work(communicator: Communicator) -> tuple[float, float]:
        draw = np.random.default_rng(communicator.rank)
        compressor = compressors.make("top16_q4")
        dense = sparse = 0
        for _ in range(steps):
            for number, shape in enumerate(SHAPES):
                gradient = draw.standard_normal(shape).astype(np.float32)
                before = communicator.traffic.total.bytes_sent
                communicator.Allreduce(gradient, np.empty_like(gradient))
                middle = communicator.traffic.total.bytes_sent
                compressor.exchange(str(number), gradient, communicator)
                dense += middle - before
                sparse += communicator.traffic.total.bytes_sent - middle
        return float(dense), float(sparse)

    context.tell(f"{RANKS} ranks")
    found = run_virtual_ranks(RANKS, work)
    dense, sparse = (sum(each[i] for each in found) for i in (0, 1))
    gain = dense / sparse
    rows = [
        Row(f"bytes of a dense allreduce over those of Top16_Q4, {RANKS} ranks", "above 1",
            f"{gain:.1f}", holds(gain > 1.0)),
    ]  # fmt: skip
    for system, (training, exchange) in SEED.items():
        rows.append(Row(f"{system}: communication, times as fast", f"{exchange}",
                        f"{gain:.1f} if bytes are all that counts", BESIDE,
                        predicted=True))  # fmt: skip
        rows.append(Row(f"{system}: training, times as fast", f"{training}",
                        f"at most {gain:.1f}", BESIDE, predicted=True))  # fmt: skip
    samples = {"dense bytes of each rank": [each[0] for each in found],
               "sparse bytes of each rank": [each[1] for each in found]}  # fmt: skip
    left = ["VGG-19 on 8 and AlexNet on 16 nodes with 4 bits"]
    return Outcome(rows, [], samples, left)


EXPERIMENTS = [
    Experiment("sparcml", "Keynote, SparCML", "Gradients of an MLP on MNIST are exchanged many "
               "times faster as the 16 largest of 512 with 4 bits", run),
]  # fmt: skip
