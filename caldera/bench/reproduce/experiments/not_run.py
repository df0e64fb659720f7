"""What cannot be run here, with the reason and the nearest thing that was run."""

from __future__ import annotations

from caldera.bench.reproduce.experiment import FOUND, Experiment

FOUND += [
    Experiment(
        "imagenet",
        "MagmaDNN, dMath",
        "ImageNet to its accuracy (75.1%; dMath: 55 to 65%)",
        reason="ImageNet is not free to copy, and takes days on one card",
        nearest="steps of the same networks beside the peers (benchmarks/results/card-h200.md); "
        "CIFAR-10 to its accuracy (cifar-x86_64.txt)",
    ),
    Experiment(
        "tensor-cores",
        "MagmaDNN, section 3.3",
        "Half precision on tensor cores makes training 1.2 to 2 times as fast",
        reason="needs an NVIDIA card, which the command does not ask for",
        nearest="mixed-precision on the CPU; networks in bfloat16 and float32 on an H200 "
        "(benchmarks/results/card-h200.md)",
    ),
    Experiment(
        "cards-96",
        "dMath, section 4.3",
        "Inception v3 to 75.1% in 14 hours on 96 cards",
        reason="neither ImageNet nor 96 cards",
        nearest="inception: the planner's prediction, marked as such, and steps on this machine",
    ),
    Experiment(
        "summit",
        "MagmaDNN, slides",
        "A 3-D FFT of 1024^3 on Summit, strong scaling",
        reason="16 GiB of numbers on thousands of cards",
        nearest="factorisations: op.fftn on one process",
    ),
    Experiment(
        "speech",
        "Keynote",
        "Microsoft's speech production workload, 2 weeks to 2 days",
        reason="neither the data nor the network are public",
        nearest="sparcml and messages: the same compressions on networks that are public",
    ),
]
