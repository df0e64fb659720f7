"""What cannot be run here, with the reason and the nearest thing that was run."""

from __future__ import annotations

from caldera.bench.reproduce.experiment import Experiment

EXPERIMENTS = [
    Experiment(
        "imagenet", "MagmaDNN, dMath", "ImageNet to its accuracy (75.1%; dMath: 55 to 65%)",
        reason="ImageNet is not free to copy, and takes days on one card",
        nearest="steps of the same networks beside the peers (benchmarks/results/card-h200.md); "
        "CIFAR-10 to its accuracy (cifar-x86_64.txt)",
    ),
    Experiment(
        "summit", "MagmaDNN, slides", "A 3-D FFT of 1024^3 on Summit, strong scaling",
        reason="16 GiB of numbers on thousands of cards",
        nearest="op.fftn on one process",
    ),
    Experiment(
        "speech", "Keynote", "Microsoft's speech production workload, 2 weeks to 2 days",
        reason="neither the data nor the network are public",
        nearest="compression beside allreduce: caldera bench distributed",
    ),
]  # fmt: skip
