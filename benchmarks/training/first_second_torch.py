"""PyTorch's part of first_second.py: its import, its first training and later steps.

It needs PyTorch and no Caldera.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.training.first_second import EPOCHS, RESNET, Parts

PARTS = Parts()
import torch  # noqa: E402

PARTS.note("import")
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from benchmarks.training.torch_residual import Residual  # noqa: E402


def network(task: str) -> tuple[nn.Module, Tensor, Tensor, int]:
    """Return the network, its samples, their classes and the size of a batch."""
    if task != RESNET:
        x = torch.randn(500, 20)
        layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)]
        return nn.Sequential(*layers), x, (x[:, 0] > 0).long(), 32
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    sizes = [(16, 16, 1)] * 3 + [(16, 32, 2), *[(32, 32, 1)] * 2, (32, 64, 2), *[(64, 64, 1)] * 2]
    blocks = [Residual(*each) for each in sizes]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    x, y = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    return nn.Sequential(*first, *blocks, *last), x, y, 128


def main() -> None:
    """Train and print the seconds of each part."""
    model, x, y, batch = network(sys.argv[sys.argv.index("--task") + 1])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(1 + EPOCHS):
        order = torch.randperm(len(x))
        for rows in order.split(batch):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        PARTS.note("later step" if epoch else "first fit", -(-len(x) // batch) if epoch else 1)
    print(json.dumps(PARTS.found))


if __name__ == "__main__":
    main()
