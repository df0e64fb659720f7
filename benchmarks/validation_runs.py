"""Is correct code ever flagged by validation? A hundred runs of all parts, in every framework here.

    python benchmarks/validation_runs.py > benchmarks/results/validation-$(uname -m).md

Each run has a seed of its own: inputs, sizes, rates and numbers of ranks differ. The parts are the
lean references and those of `caldera.bench.levels.schemes`; frameworks take turns. Planted errors
are counted by `tests/unit/bench/test_levels.py`.
"""

from __future__ import annotations

import platform
from collections import Counter
from functools import partial

import numpy as np

from caldera.bench import levels
from caldera.bench.levels import reference, schemes

RUNS = 100
SCHEMES = (
    schemes.AllReduce,
    schemes.Server,
    partial(schemes.Averaging, 2),
    lambda: schemes.Compressed(reference.Quantized(64)),
    lambda: schemes.Compressed(reference.TopK(0.3)),
)


def validations(seed: int, framework: str) -> dict[str, levels.Validation]:
    """One of each part."""
    draw = np.random.default_rng(seed)
    rows, inner, columns = (int(each) for each in draw.integers(2, 9, 3))
    inputs = [draw.standard_normal(s) for s in ((rows, inner), (inner, columns), (columns,))]
    rate, share = float(draw.uniform(0.01, 0.2)), float(draw.uniform(0.05, 0.5))
    rule = partial((reference.SGD, reference.Adam)[seed % 2], rate if seed % 2 == 0 else rate / 10)
    return {
        "operator Linear": levels.validate_operator(
            reference.Linear(), inputs, seed=seed, framework=framework
        ),
        "operator Softmax": levels.validate_operator(
            reference.Softmax(), inputs[:1], seed=seed, framework=framework
        ),
        "sampler": levels.validate_sampler(
            lambda: reference.Shuffled(seed), samples=int(draw.integers(20, 90))
        ),
        "compression TopK": levels.validate_compression(lambda: reference.TopK(share), seed=seed),
        "compression Quantized": levels.validate_compression(
            lambda: reference.Quantized(8, seed), seed=seed
        ),
        "optimizer": levels.validate_optimizer(rule, rule, framework=framework, steps=4),
        "scheme": levels.validate_scheme(
            SCHEMES[seed % len(SCHEMES)], framework=framework, ranks=2 + seed % 3, steps=2
        ),
    }


def main() -> None:
    frameworks = levels.frameworks()
    done: Counter[str] = Counter()
    flagged: Counter[str] = Counter()
    for seed in range(RUNS):
        framework = frameworks[seed % len(frameworks)]
        for part, found in validations(seed, framework).items():
            done[part] += 1
            flagged[part] += not found.passes
            if not found.passes:
                print(f"seed {seed}, {framework}, {part}: {found}")
    print(f"# Validation of correct code, {RUNS} runs\n")
    print(f"`python benchmarks/validation_runs.py` on {platform.machine()}; in turns in "
          f"{', '.join(frameworks)}.\n\n| part | validated | flagged |\n|---|---|---|")  # fmt: skip
    for part, count in done.items():
        print(f"| {part} | {count} | {flagged[part]} |")
    print(f"| all | {done.total()} | {flagged.total()} |")


if __name__ == "__main__":
    main()
