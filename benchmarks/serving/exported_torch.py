"""The networks of exported.py as TorchScript files; run with PyTorch's Python.

    python benchmarks/serving/exported_torch.py FOLDER mlp|wide|lenet5|lstm

FOLDER has weights.npz, in the order of Caldera's parameters.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


class LSTM(nn.Module):
    """The last state of a recurrent layer, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the outputs of sequences."""
        states, _ = self.lstm(x)
        return self.last(states[:, -1])


def made(name: str) -> nn.Module:
    """Return a network with random weights."""
    if name == "mlp":
        return nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )
    if name == "wide":
        return nn.Sequential(
            nn.Linear(784, 528), nn.ReLU(), nn.Linear(528, 528), nn.ReLU(), nn.Linear(528, 10)
        )
    return LSTM()


def main() -> None:
    """Write the network."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    network, given = made(name), np.load(folder / "weights.npz")
    weights: list[Any] = [given[key] for key in given.files]
    state = network.state_dict()
    for (key, value), weight in zip(state.items(), weights, strict=True):
        fitting = weight.T if weight.ndim == 2 else weight
        assert fitting.shape == tuple(value.shape), (key, weight.shape, value.shape)
        value.copy_(torch.from_numpy(np.ascontiguousarray(fitting)))
    shape = (1, *map(int, sys.argv[3].split(",")))
    traced = torch.jit.trace(network.eval(), torch.zeros(shape))
    torch.jit.freeze(traced).save(str(folder / "net.pt"))


if __name__ == "__main__":
    main()
