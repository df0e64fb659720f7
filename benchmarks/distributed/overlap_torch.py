"""What overlap.py measures, by torch: DistributedDataParallel over gloo, one thread a rank.

A step that exchanges no gradients is one under `no_sync`, with a sum of the losses; one that
exchanges them afterwards sums them in one message. It is started by overlap.py.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from itertools import pairwise

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.distributed.overlap import BUCKET_BYTES, STEPS, TURNS, UNTIMED, take_cores


def network_of(name: str) -> tuple[tuple[int, ...], nn.Sequential]:
    """The shape of a sample, and the layers."""
    if name == "mlp":
        widths = (784, 528, 528, 528)
        hidden = [
            layer
            for here, there in pairwise(widths)
            for layer in (nn.Linear(here, there), nn.Sigmoid())
        ]
        return (784,), nn.Sequential(*hidden, nn.Linear(528, 10))
    convolutions = [
        layer
        for here, there in ((3, 32), (32, 64))
        for layer in (
            nn.Conv2d(here, there, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(there, there, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
    ]
    dense = [nn.Flatten(), nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 10)]
    return (3, 32, 32), nn.Sequential(*convolutions, *dense)


class Trainer:
    """Steps of one network in each of the three ways."""

    def __init__(self, network: str, rows: int) -> None:
        shape, layers = network_of(network)
        self.model = DistributedDataParallel(layers, bucket_cap_mb=BUCKET_BYTES / 2**20)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.x, self.y = torch.randn(rows, *shape), torch.randint(0, 10, (rows,))

    def step(self, way: str) -> None:
        self.optimizer.zero_grad()
        if way == "both":
            loss = self._loss()
            loss.backward()
        else:
            with self.model.no_sync():
                loss = self._loss()
                loss.backward()
        total = loss.detach().clone()
        distributed.all_reduce(total)
        if way == "after":
            slopes = [each.grad for each in self.model.parameters() if each.grad is not None]
            flat = torch.cat([each.reshape(-1) for each in slopes])
            distributed.all_reduce(flat)
            flat /= distributed.get_world_size()
            for each, part in zip(slopes, flat.split([s.numel() for s in slopes]), strict=True):
                each.copy_(part.view_as(each))
        self.optimizer.step()
        total.item()

    def _loss(self) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.x), self.y)


def main(network: str, rate: str, batch: int, cores: int, address: str) -> None:
    rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    take_cores(rank, ranks, cores)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{address}:29500", rank=rank, world_size=ranks
    )
    trainer = Trainer(network, batch // ranks)
    times: dict[str, list[float]] = {"alone": [], "after": [], "both": []}
    for turn in range(TURNS[rate] + 1):
        for way, found in times.items():
            for step in range(UNTIMED + (STEPS if turn else 1)):
                began = time.perf_counter()
                trainer.step(way)
                if turn and step >= UNTIMED:
                    found.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps([statistics.median(found) for found in times.values()]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
