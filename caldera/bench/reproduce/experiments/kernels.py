"""Kernels: batched products, SVD and 3-D FFT, sums by products, convolutions in micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from operator import truediv

import numpy as np

from caldera import op
from caldera.base.config import settings
from caldera.base.registry import optional_import
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    Sweep,
    claim,
    faster,
    holds,
)
from caldera.bench.timing import in_turns
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.compiler.plan.plan import Plan
from caldera.kernels.table import TABLE
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import choices

PRODUCT_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 3500)
QUICK_PRODUCTS = (16, 64, 256, 1024, 3500)
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
    sizes = QUICK_PRODUCTS if context.quick else PRODUCT_SIZES
    sweep, rows = Sweep(), []
    for size in sizes:
        context.tell(f"{size} x {size}")
        count = max(2, NUMBERS // size**2)
        (values,) = _drawn((count, size, size))
        batched, single = (compile([each @ each]) for each in map(_filled, (values, values[0])))

        def loop(run=single.run, count=count):  # type: ignore[no-untyped-def]
            for _ in range(count):
                run()

        repeats = 1 if context.quick and size > LARGE else context.repeats
        found = in_turns({"batched": batched.run, "single": loop}, repeats)
        work = 2.0 * count * size**3 / 1e9
        sweep.add(size, f"{count} of {size}: s", found, partial(truediv, work))
        gain, verdict = faster(found["batched"], found["single"])
        rows.append(
            ComparisonRow(
                f"{size}: batched, times as fast as single",
                "faster while small",
                gain,
                verdict if size <= SMALL else BESIDE,
            )
        )
    missing = [str(size) for size in PRODUCT_SIZES if size not in sizes]
    left = [f"sizes {', '.join(missing)}"] if missing else []
    return ExperimentResult(
        rows, [Plot("C = A B", "size", "GFLOP/s", sweep.lines, log=True)], sweep.samples, left
    )


@claim("factorisations", "MagmaDNN, slides", "SVD and 3-D FFT are part of the library")
def factorisations(context: ExperimentContext) -> ExperimentResult:
    """SVD and a 3-D Fourier transform beside LAPACK's and NumPy's."""
    size, cube = (128, 32) if context.quick else (512, 128)
    matrix, volume = _drawn((size, size), (cube, cube, cube))
    svd, fft = compile(list(op.svd(_filled(matrix)))), compile([op.fftn(_filled(volume))])
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
    spectrum = np.fft.fftn(volume)
    far = float(np.abs(fft.run()[0].numpy() - spectrum).max() / np.abs(spectrum).max())
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
    return ExperimentResult(
        rows,
        [],
        {f"{name}: s": seconds for name, seconds in found.items()},
        [*context.skipped("sizes 512 and 128^3"), "1024^3 on many cards"],
    )


SUM_SIZES = (64, 128, 256, 512, 1024, 2048)


@claim(
    "reductions",
    "MagmaDNN, figure 3",
    "Small sums of rows and columns are faster as products with ones than by reducing",
)
def reductions(context: ExperimentContext) -> ExperimentResult:
    """X.1 and its transpose over sizes, by products, libraries and our kernels."""
    sizes = SUM_SIZES[:-1:2] if context.quick else SUM_SIZES
    plots, samples, rows = [], {}, []
    for axis, name in ((1, "X.1"), (0, "X^T.1")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for size in sizes:
            context.tell(f"{name}, {size}")
            for way, found in _times(size, axis, context.repeats).items():
                lines.setdefault(way, []).append((float(size), 1e6 * min(found)))
                samples[f"{name}, {size}, {way}: s"] = found
        # Both as plans: what a call of a plan costs is in both.
        both = zip(lines["our kernels"], lines["product with ones"], strict=True)
        worst = max(ours / min(ours, product) for (_, ours), (_, product) in both)
        ways = {way: samples[f"{name}, {sizes[0]}, {way}: s"] for way in lines}
        library = min((way for way in lines if way.endswith("sum")), key=lambda w: min(ways[w]))
        rows += [
            ComparisonRow(
                f"{name}: reducing over product with ones, {sizes[0]}",
                "above 1",
                *faster(ways["product with ones"], ways["our kernels"]),
            ),
            ComparisonRow(
                f"{name}: ours over the faster of the two, at most",
                "1",
                f"{worst:.2f}",
                holds(worst < 1.5),
            ),
            ComparisonRow(
                f"{name}: a library's sum over a library's gemv, {sizes[0]}",
                "above 1",
                *faster(ways["BLAS gemv"], ways[library]),
            ),
        ]
        plots.append(Plot(name, "rows and columns", "us", lines, log=True))
    return ExperimentResult(
        rows,
        plots,
        samples,
        [
            *context.skipped(f"sizes {', '.join(str(s) for s in SUM_SIZES if s not in sizes)}"),
            "MAGMA and cuBLAS on a card",
        ],
    )


def _times(size: int, axis: int, repeats: int) -> dict[str, list[float]]:
    (array,) = _drawn((size, size))
    ones = np.ones(size, np.float32)
    x, one = _filled(array), _filled(ones[:, None])
    ways: dict[str, Callable[[], object]] = {
        "our kernels": compile([op.sum(x, axis=axis)]).run,
        "product with ones": compile([op.matmul(x, one, transpose_a=axis == 0)]).run,
        "BLAS gemv": (lambda: array @ ones) if axis else (lambda: ones @ array),
        "NumPy's sum": lambda: array.sum(axis=axis),
    }
    if find_spec("torch") is not None:
        there = optional_import("torch", "torch", "caldera reproduce").from_numpy(array)
        ways["PyTorch's sum"] = lambda: there.sum(dim=axis)
    return in_turns(ways, repeats)


SHAPES = {"3 x 3, 64 channels of 28": (64, 64, 28, 3), "5 x 5, 64 channels of 27": (64, 64, 27, 5)}
"""Batch, channels, pixels, kernel: as in VGG, and AlexNet's second layer."""
LIMITS = (1 << 30, 1 << 20, 1 << 18, 1 << 17, 1 << 16, 1 << 15)
SLICED = " by "
"""In the name of a division of a batch, as in `2 x 16 by winograd 2x2`."""
_EQUAL = 1e-3


@claim(
    "micro-batching",
    "Keynote, micro-batching",
    "Under a limit on the workspace, fast algorithms on parts of a batch beat slow ones on "
    "the whole",
)
def micro_batching(context: ExperimentContext) -> ExperimentResult:
    """The fastest kernel within a limit that takes the whole batch, and that may cut it."""
    shapes = list(SHAPES.items())[: 1 if context.quick else 2]
    limits = LIMITS[::2] if context.quick else LIMITS
    rows, plots, most, needed = [], [], 0.0, 0
    samples: dict[str, list[float]] = {}
    for name, shape in shapes:
        expression, free = _convolution(*shape), 0.0
        lines: dict[str, list[tuple[float, float]]] = {"whole batch": [], "micro-batches": []}
        for limit in limits:
            context.tell(f"{name}, {limit >> 10} KiB")
            with settings.override(workspace_limit=limit):
                plans = _plans(expression)
                found = in_turns({each: plan.run for each, plan in plans.items()}, context.repeats)
            times = {each: min(seconds) for each, seconds in found.items()}
            samples |= {f"{name}, {limit} B, {k}: s": seconds for k, seconds in found.items()}
            # The oracle is no algorithm that anybody would choose.
            whole = {
                each: taken
                for each, taken in times.items()
                if SLICED not in each and each != ORACLE
            }
            best = min(times, key=times.__getitem__)
            free = free or times[best]
            lines["micro-batches"].append((limit / 2**20, 1e3 * times[best]))
            found_text = f"only {best} fits, {times[best] / free:.2f} of the time without a limit"
            needed += not whole
            if whole:
                alone = min(whole, key=whole.__getitem__)
                gain = whole[alone] / times[best]
                most = max(most, gain)
                lines["whole batch"].append((limit / 2**20, 1e3 * whole[alone]))
                found_text = f"{gain:.2f} ({best}; whole: {alone})"
            rows.append(
                ComparisonRow(
                    f"{name}, at most {limit >> 10} KiB: times as fast",
                    "up to 4.54",
                    found_text,
                    BESIDE,
                )
            )
        plots.append(Plot(name, "MiB of workspace", "ms", lines, log=True))
    # Where nothing takes the whole batch there is nothing to be faster than.
    rows.append(
        ComparisonRow(
            "micro-batches",
            "faster",
            f"up to {most:.2f} times as fast; alone under {needed} of {len(rows)} limits",
            BESIDE if needed and most <= 1.0 else holds(most > 1.0),
        )
    )
    return ExperimentResult(
        rows,
        plots,
        samples,
        [*context.skipped("5 x 5, half of the limits"), "cuDNN's kernels: need a card"],
    )


def _convolution(batch: int, channels: int, pixels: int, kernel: int) -> Expr:
    shapes = (batch, channels, pixels, pixels), (channels, channels, kernel, kernel)
    x, w = map(_filled, _drawn(*shapes))
    return op.conv2d(x, w, padding=kernel // 2)


def _plans(expression: Expr) -> dict[str, Plan]:
    """What is chosen within the limit, and a plan for each kernel that it lets run, by name."""
    found = dict([_named(compile([expression]))])
    for kernel in TABLE.kernels("conv2d", "cpu"):
        choices.fix("conv2d", kernel.name, optional=True)
        try:
            used, plan = _named(compile([expression]))
        finally:
            choices.unfix("conv2d")
        if used == kernel.name or used.endswith(f"{SLICED}{kernel.name}"):
            found.setdefault(used, plan)
    results = [plan.run()[0].numpy() for plan in found.values()]
    most = np.abs(results[0]).max()
    assert all(np.abs(each - results[0]).max() < _EQUAL * most for each in results)
    return found


def _named(plan: Plan) -> tuple[str, Plan]:
    """A plan by the kernel that its convolution has."""
    rows = plan.explain(time=False).rows
    return next(row.kernel for row in rows if row.op.startswith("conv2d")), plan


def _drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.standard_normal(shape).astype(np.float32) for shape in shapes]


def _filled(values: np.ndarray) -> Variable:
    return op.var("given", values.shape, fill=values, device="cpu")
