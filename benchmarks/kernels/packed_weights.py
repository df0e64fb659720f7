"""Products with weights of 8 and 4 bits beside float32, and the generation of text with them.

    CALDERA_THREADS=1 python benchmarks/kernels/packed_weights.py

Each row of the first table is a product of some rows with a matrix of 2048 x 2048, in float32 and
with weights alone in 8 or 4 bits (groups of 64). The second table has the time for a word of a GPT.
All take turns in one process; times are processor time of the calling thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

import caldera as cd
from caldera import nn

SIZE, TURNS, WORDS = 2048, 12, 32
KINDS = ("int8-weights", "int4-weights")


def milliseconds(calls: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, list[float]]:
    """Return the times of several calls, turn by turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, TURNS):
        for name, call in calls.items():
            call()
            began = time.thread_time()
            for _ in range(repeat):
                call()
            if turn >= 0:
                times[name].append(1e3 * (time.thread_time() - began) / repeat)
    return times


def cells(times: Mapping[str, list[float]]) -> str:
    """Return medians of the times, and of the ratios to float32."""
    plain = times["float32"]
    ratios = [median(a / b for a, b in zip(plain, times[kind], strict=True)) for kind in KINDS]
    found = [f"{median(each):.3f}" for each in times.values()]
    return " | ".join(found + [f"{ratio:.1f}" for ratio in ratios])


def product(rows: int) -> str:
    """Return the row of products with a number of rows."""
    layers = [nn.Input((SIZE,)), nn.Dense(SIZE)]
    model = cd.NeuralNetwork(layers, loss="mean_squared", batch_size=rows, seed=1)
    networks = {"float32": model, **{kind: model.quantise(kind) for kind in KINDS}}
    x = np.random.default_rng(rows).normal(size=(rows, SIZE)).astype("float32")
    calls = {name: lambda each=each: each.predict(x) for name, each in networks.items()}
    exact = calls["float32"]()
    errors = [np.abs(calls[kind]() - exact).max() / np.abs(exact).max() for kind in KINDS]
    return (
        f"| {rows} | {cells(milliseconds(calls, 8))} | "
        + " | ".join(f"{error:.1%}" for error in errors)
        + " |"
    )


def generation(width: int) -> str:
    """Return the row of a GPT of 4 blocks and 8,192 words."""
    layers = nn.models.gpt(8192, context=64, width=width, depth=4, heads=8)
    model = cd.NeuralNetwork(layers, seed=1)
    networks = {"float32": model, **{kind: model.quantise(kind) for kind in KINDS}}
    calls = {
        name: lambda each=each: each.layers[-1].generate([1, 2], WORDS, temperature=0.0)
        for name, each in networks.items()
    }
    times = milliseconds(calls, 1)
    by_word = {name: [each / WORDS for each in found] for name, found in times.items()}
    sizes = [
        sum(v.tensor.nbytes for v in (*n.parameters(), *n.states())) for n in networks.values()
    ]
    return f"| {width} | {cells(by_word)} | " + " | ".join(f"{n / 1e6:.1f}" for n in sizes) + " |"


def main() -> None:
    """Measure and print."""
    print(
        "| rows | float32 ms | 8 bits ms | 4 bits ms | float32 / 8 bits | float32 / 4 bits", end=""
    )
    print(" | error, 8 bits | error, 4 bits |")
    print("|--" + "|--:" * 7 + "|")
    for rows in (1, 2, 4, 8, 16, 64):
        print(product(rows), flush=True)
    print(
        "\n| width | float32 ms | 8 bits ms | 4 bits ms | float32 / 8 bits | float32 / 4 bits",
        end="",
    )
    print(" | MB of weights | in 8 bits | in 4 bits |")
    print("|--" + "|--:" * 8 + "|")
    for width in (256, 768):
        print(generation(width), flush=True)


if __name__ == "__main__":
    main()
