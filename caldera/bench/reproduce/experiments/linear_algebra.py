"""MagmaDNN's slides: batched products beside single ones, SVD and 3-D FFT."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    faster,
    holds,
)
from caldera.bench.timing import in_turns
from caldera.compiler.lazy import compile

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 3500)
QUICK = (16, 64, 256, 1024, 3500)
NUMBERS = 1 << 18
"""Elements of all matrices of a batch together; at least two matrices."""
SMALL = 64
LARGE = 1024
"""From here on a product takes seconds, and once is enough in a quick run."""


@claim(
    "products",
    "MagmaDNN, slides",
    "Many small products are faster as a batch than one after the other",
)
def products(context: ExperimentContext) -> ExperimentResult:
    """Many products of one size as one batch and one after the other."""
    sizes = QUICK if context.quick else SIZES
    lines: dict[str, list[tuple[float, float]]] = {"batched": [], "single": []}
    samples, rows = {}, []
    for size in sizes:
        context.tell(f"{size} x {size}")
        count = max(2, NUMBERS // size**2)
        values = np.random.default_rng(0).standard_normal((count, size, size)).astype(np.float32)
        a = op.var("a", values.shape, fill=values, device="cpu")
        one = op.var("one", values[0].shape, fill=values[0], device="cpu")
        batched, single = compile([a @ a]), compile([one @ one])

        def loop(run=single.run, count=count):  # type: ignore[no-untyped-def]
            for _ in range(count):
                run()

        repeats = 1 if context.quick and size > LARGE else context.repeats
        found = in_turns({"batched": batched.run, "single": loop}, repeats)
        work = 2.0 * count * size**3 / 1e9
        for name, seconds in found.items():
            lines[name].append((float(size), work / min(seconds)))
            samples[f"{name}, {count} of {size}: s"] = seconds
        gain, verdict = faster(found["batched"], found["single"])
        rows.append(
            ComparisonRow(
                f"{size}: batched, times as fast as single",
                "faster while small",
                gain,
                verdict if size <= SMALL else BESIDE,
            )
        )
    missing = [str(size) for size in SIZES if size not in sizes]
    left = [f"sizes {', '.join(missing)}"] if missing else []
    return ExperimentResult(
        rows, [Plot("C = A B", "size", "GFLOP/s", lines, log=True)], samples, left
    )


@claim("factorisations", "MagmaDNN, slides", "SVD and 3-D FFT are part of the library")
def factorisations(context: ExperimentContext) -> ExperimentResult:
    """SVD and a 3-D Fourier transform beside LAPACK's and NumPy's."""
    size, cube = (128, 32) if context.quick else (512, 128)
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((size, size)).astype(np.float32)
    volume = draw.standard_normal((cube, cube, cube)).astype(np.float32)
    m = op.var("m", matrix.shape, fill=matrix, device="cpu")
    v = op.var("v", volume.shape, fill=volume, device="cpu")
    svd, fft = compile(list(op.svd(m))), compile([op.fftn(v)])
    context.tell(f"SVD of {size}, FFT of {cube}^3")
    found = in_turns(
        {
            "SVD": svd.run,
            "LAPACK": lambda: np.linalg.svd(matrix, full_matrices=False),
            "FFT": fft.run,
            "NumPy": lambda: np.fft.fftn(volume),
        },
        context.repeats,
    )
    u, s, vt = (each.numpy() for each in svd.run())
    apart = float(np.abs(u * s @ vt - matrix).max() / np.abs(matrix).max())
    far = np.abs(fft.run()[0].numpy() - np.fft.fftn(volume)).max()
    far = float(far / np.abs(np.fft.fftn(volume)).max())
    times = {name: min(seconds) for name, seconds in found.items()}
    rows = [
        ComparisonRow(
            f"SVD of {size}: its product is the matrix", "yes", f"{apart:.0e}", holds(apart < 1e-4)
        ),
        ComparisonRow(
            f"SVD of {size}: time over LAPACK's",
            "",
            f"{times['SVD'] / times['LAPACK']:.2f}",
            BESIDE,
        ),
        ComparisonRow(f"FFT of {cube}^3: equal to NumPy's", "yes", f"{far:.0e}", holds(far < 1e-5)),
        ComparisonRow(
            f"FFT of {cube}^3: time over NumPy's",
            "",
            f"{times['FFT'] / times['NumPy']:.2f}",
            BESIDE,
        ),
    ]
    samples = {f"{name}: s": seconds for name, seconds in found.items()}
    return ExperimentResult(
        rows, [], samples, [*context.skipped("sizes 512 and 128^3"), "1024^3 on many cards"]
    )
