"""Is correct code ever flagged by validation, and is every planted error found?

    python benchmarks/verdicts/validation_runs.py \\
        > benchmarks/results/validation-$(uname -m).md

A hundred runs of all parts, each with a seed of its own: inputs, sizes, rates and numbers of ranks
differ. The parts are the lean references and those of `caldera.bench.levels.schemes`; the
frameworks that are installed take turns. The errors are those that the tests plant
(`tests/unit/bench/planted.py`).
"""

from __future__ import annotations

import platform
from collections import Counter
from functools import partial

import numpy as np

from caldera.bench import levels
from caldera.bench.levels import reference, schemes
from tests.unit.bench.planted import PLANTED

RUNS = 100
SCHEMES = (
    schemes.AllReduce,
    schemes.CentralServer,
    partial(schemes.Averaging, 2),
    lambda: schemes.Compressed(reference.Quantized(64)),
    lambda: schemes.Compressed(reference.ReferenceTopK(0.3)),
)


def validations(seed: int, framework: str) -> dict[str, levels.Validation]:
    """One of each part."""
    draw = np.random.default_rng(seed)
    rows, inner, columns = (int(each) for each in draw.integers(2, 9, 3))
    inputs = [draw.standard_normal(s) for s in ((rows, inner), (inner, columns), (columns,))]
    rate, share = float(draw.uniform(0.01, 0.2)), float(draw.uniform(0.05, 0.5))
    rule = partial(
        (reference.ReferenceSGD, reference.ReferenceAdam)[seed % 2],
        rate if seed % 2 == 0 else rate / 10,
    )
    return {
        "operator Linear": levels.validate_operator(
            reference.Linear(), inputs, seed=seed, framework=framework
        ),
        "operator Softmax": levels.validate_operator(
            reference.ReferenceSoftmax(), inputs[:1], seed=seed, framework=framework
        ),
        "sampler": levels.validate_sampler(
            lambda: reference.Shuffled(seed), samples=int(draw.integers(20, 90))
        ),
        "compression TopK": levels.validate_compression(
            lambda: reference.ReferenceTopK(share), seed=seed
        ),
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
    print("# Validation of the four levels\n")
    print(
        f"`python benchmarks/verdicts/validation_runs.py` on {platform.machine()}; {RUNS} runs of "
        f"correct parts, in turns in {', '.join(frameworks)}.\n\n| part | validated | flagged |\n"
        "|---|---|---|"
    )
    for part, count in done.items():
        print(f"| {part} | {count} | {flagged[part]} |")
    print(f"| all | {done.total()} | {flagged.total()} |\n")
    found = {about: str(validate().wrong[:1]) for about, validate in PLANTED.items()}
    missed = [about for about, wrong in found.items() if wrong == "[]"]
    print(f"Planted errors: {len(found) - len(missed)} of {len(found)} found.\n")
    for about in found:
        print(f"- {about}{': NOT FOUND' if about in missed else ''}")
    print("\nNo file with every sample stands behind these figures: they are counts of verdicts.")


if __name__ == "__main__":
    main()
