"""Kernels: batched products, SVD and 3-D FFT, sums by products, convolutions in micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from caldera import op
from caldera.base.config import settings
from caldera.base.registry import optional_import
from caldera.bench.reproduce.criteria import Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    Times,
    experiment,
)
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.memory import device as find_device
from caldera.kernels.table import TABLE
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import choices

PRODUCT_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 3500)
QUICK_PRODUCTS = (16, 64, 256, 1024)
NUMBERS = 1 << 18
"""Elements of all matrices of a batch together; at least two matrices."""
SMALL, LARGE = 64, 1024
"""Sizes up to which the paper batches, and from which it does not."""


def product_findings(samples: Samples) -> Findings:
    """Compare batched matrix products with sequential ones."""
    gains = {
        int(size): Quantity.speedup(found["single"], found["batched"])
        for size, found in samples.items()
    }
    return {
        "small": {f"{size}": gain for size, gain in gains.items() if size <= SMALL},
        "large": {f"{size}": gain for size, gain in gains.items() if size >= LARGE},
    }


@experiment("products", product_findings)
def products(context: ExperimentContext) -> Measurement:
    """Time batched and sequential matrix products."""
    sizes = QUICK_PRODUCTS if context.quick else PRODUCT_SIZES
    samples = {}
    lines: dict[str, list[tuple[float, float]]] = {}
    for size in sizes:
        context.tell(f"{size} x {size}")
        count = max(2, NUMBERS // size**2)
        (values,) = _drawn((count, size, size))
        given = map(context.variable, (values, values[0]))
        batched, single = (compile([each @ each]) for each in given)

        def loop(run=single.run, count=count):  # type: ignore[no-untyped-def]
            for _ in range(count):
                run()

        found = context.in_turns({"batched": batched.run, "single": loop})
        samples[str(size)] = found
        work = 2.0 * count * size**3 / 1e9
        for name, times in found.items():
            lines.setdefault(name, []).append((float(size), work / min(times)))
    missing = [str(size) for size in PRODUCT_SIZES if size not in sizes]
    left = [f"sizes {', '.join(missing)}"] if missing else []
    return Measurement(samples, [Plot("C = A B", "size", "GFLOP/s", lines, log=True)], left)


def factorisation_findings(samples: Samples) -> Findings:
    """Compare both with the libraries."""
    findings: dict[str, dict[str, Quantity]] = {}
    for key, ours, library in (("svd", "SVD", "LAPACK"), ("fft", "FFT", "NumPy")):
        found = samples[key]
        speed = Quantity.speedup(found[library], found[ours])
        findings[f"{key}-faster" if key == "svd" else f"{key}-speed"] = {"": speed}
        findings[f"{key}-right"] = {"": Quantity.largest(found["difference"])}
    return findings


@experiment("factorisations", factorisation_findings)
def factorisations(context: ExperimentContext) -> Measurement:
    """Compare the times of SVD and of a 3-D Fourier transform with LAPACK's and NumPy's."""
    size, cube = (128, 32) if context.quick else (512, 128)
    matrix, volume = _drawn((size, size), (cube, cube, cube))
    svd = compile(list(op.svd(context.variable(matrix))))
    fft = compile([op.fftn(context.variable(volume))])
    context.tell(f"SVD of {size}, FFT of {cube}^3")
    u, s, vt = (each.numpy() for each in svd.run())
    apart = float(np.abs(u * s @ vt - matrix).max() / np.abs(matrix).max())
    spectrum = np.fft.fftn(volume)
    far = float(np.abs(fft.run()[0].numpy() - spectrum).max() / np.abs(spectrum).max())
    libraries = {
        "SVD": lambda: np.linalg.svd(matrix, full_matrices=False),
        "FFT": lambda: np.fft.fftn(volume),
    }
    samples = {
        "svd": context.in_turns({"SVD": svd.run, "LAPACK": libraries["SVD"]})
        | {"difference": [apart]},
        "fft": context.in_turns({"FFT": fft.run, "NumPy": libraries["FFT"]})
        | {"difference": [far]},
    }
    left = [*context.skipped("sizes 512 and 128^3"), "1024^3 on many GPUs"]
    return Measurement(samples, left_out=left)


SUM_SIZES = (64, 128, 256, 512, 1024, 2048)
_SUMS = {"X.1": 1, "X^T.1": 0}


def reduction_findings(samples: Samples) -> Findings:
    """Compare reductions with products, of ours and of libraries."""
    findings: dict[str, dict[str, Quantity]] = {"ours": {}, "library": {}, "choice": {}}
    for name in _SUMS:
        found = samples[f"{name}, {SUM_SIZES[0]}"]
        ours, product = found["our kernels"], found["product with ones"]
        findings["ours"][name] = Quantity.speedup(ours, product)
        sums = [each for way, each in found.items() if way.endswith("sum")]
        library = min(sums, key=min)
        findings["library"][name] = Quantity.speedup(library, found["BLAS gemv"])
    for case, found in samples.items():
        fastest = min(found["our kernels"], found["product with ones"], key=min)
        findings["choice"][case] = Quantity.speedup(found["our kernels"], fastest)
    return findings


@experiment("reductions", reduction_findings)
def reductions(context: ExperimentContext) -> Measurement:
    """Time X.1 and its transpose over sizes, by products, libraries and our kernels."""
    sizes = SUM_SIZES[:-1:2] if context.quick else SUM_SIZES
    plots, samples = [], {}
    for name, axis in _SUMS.items():
        lines: dict[str, list[tuple[float, float]]] = {}
        for size in sizes:
            context.tell(f"{name}, {size}")
            samples[f"{name}, {size}"] = found = _times(context, size, axis)
            for way, times in found.items():
                lines.setdefault(way, []).append((float(size), 1e6 * min(times)))
        plots.append(Plot(name, "rows and columns", "us", lines, log=True))
    left = context.skipped(f"sizes {', '.join(str(s) for s in SUM_SIZES if s not in sizes)}")
    return Measurement(samples, plots, [*left, "MAGMA and cuBLAS on a GPU"])


def _times(context: ExperimentContext, size: int, axis: int) -> Times:
    (array,) = _drawn((size, size))
    ones = np.ones(size, np.float32)
    x, one = map(context.variable, (array, ones[:, None]))
    ways: dict[str, Callable[[], object]] = {
        "our kernels": compile([op.sum(x, axis=axis)]).run,
        "product with ones": compile([op.matmul(x, one, transpose_a=axis == 0)]).run,
        "BLAS gemv": (lambda: array @ ones) if axis else (lambda: ones @ array),
        "NumPy's sum": lambda: array.sum(axis=axis),
    }
    if find_spec("torch") is not None:
        there = optional_import("torch", "torch", "caldera reproduce").from_numpy(array)
        ways["PyTorch's sum"] = lambda: there.sum(dim=axis)
    return context.in_turns(ways)


SHAPES = {"3 x 3, 64 channels of 28": (64, 28, 3), "5 x 5, 64 channels of 27": (64, 27, 5)}
"""Channels, pixels, kernel: as in VGG, and AlexNet's second layer."""
IMAGES = {"cpu": 64, "cuda": 256}
LIMITS = {
    "cpu": (1 << 20, 1 << 30, 1 << 19, 1 << 18),
    "cuda": (1 << 26, 1 << 30, 1 << 29, 1 << 23),
}
"""Bytes; a quick run has the first two."""
SLICED = " by "
"""In the name of a division of a batch, as in `2 x 16 by winograd 2x2`."""
_EQUAL = 1e-3
_CHOSEN, _SHARE = "chosen", "workspace over the limit"
_TUNING_S = 60.0
"""Seconds for timing kernels, which earlier experiments would otherwise have used up."""


def micro_batching_findings(samples: Samples) -> Findings:
    """Compare the fastest kernel on the whole batch with the fastest in micro-batches."""
    by_limit = {}
    for case, found in samples.items():
        # The reference implementation is no alternative.
        whole, parts = (
            min(
                (k for k in found if k != ORACLE and (SLICED in k) == sliced),
                key=lambda kernel: min(found[kernel]),
                default="",
            )
            for sliced in (False, True)
        )
        if whole and parts:
            note = f"{parts}; whole: {whole}"
            by_limit[case] = Quantity.speedup(found[whole], found[parts], note)
        else:
            by_limit[case] = Quantity.missing(f"only {whole or parts or ORACLE} fits")
    compared = [each for each in by_limit.values() if each.value > 0.0]
    if not compared:
        return {"by-limit": by_limit}
    return {"faster": {"": max(compared, key=lambda each: each.low)}, "by-limit": by_limit}


@experiment("micro-batching", micro_batching_findings)
def micro_batching(context: ExperimentContext) -> Measurement:
    """Time the kernels that a workspace limit allows, on the whole batch and on micro-batches."""
    few = context.quick and context.device == "cpu"
    shapes = list(SHAPES.items())[: 1 if few else 2]
    limits = LIMITS[context.device][: 2 if context.quick else None]
    plots = []
    samples: dict[str, dict[str, list[float]]] = {}
    for name, shape in shapes:
        expression = _convolution(context, *shape)
        lines: dict[str, list[tuple[float, float]]] = {"whole batch": [], "micro-batches": []}
        for limit in limits:
            case = f"{name}, at most {limit >> 10} KiB"
            context.tell(case)
            with settings.override(workspace_limit=limit):
                plans = _plans(expression, find_device(context.device).kernels)
                found = context.in_turns({each: plan.run for each, plan in plans.items()})
            samples[case] = found
            for label, kernels in {
                "micro-batches": found,
                "whole batch": [k for k in found if SLICED not in k and k != ORACLE],
            }.items():
                times = [min(found[each]) for each in kernels]
                if times:
                    lines[label].append((limit / 2**20, 1e3 * min(times)))
        plots.append(Plot(name, "MiB of workspace", "ms", lines, log=True))
    left = context.skipped(*["5 x 5"] * few, "two of four limits")
    return Measurement(samples, plots, left)


def choice_findings(samples: Samples) -> Findings:
    """Compare the chosen kernel with the fastest one, and its memory with the limit."""
    found: dict[str, dict[str, Quantity]] = {"fastest": {}, "within": {}}
    for case, times in samples.items():
        rivals = [each for name, each in times.items() if name not in (_CHOSEN, _SHARE) and each]
        if len(rivals) > 1:
            fastest = min(rivals, key=min)
            found["fastest"][case] = Quantity.speedup(times[_CHOSEN], fastest)
        found["within"][case] = Quantity.largest(times[_SHARE])
    return found


@experiment("algorithm-choice", choice_findings)
def algorithm_choice(context: ExperimentContext) -> Measurement:
    """Compare the times of the chosen convolution and of each kernel that a limit allows."""
    samples = {}
    for name, shape in SHAPES.items():
        expression = _convolution(context, *shape)
        for limit in LIMITS[context.device][:2]:
            case = f"{name}, at most {limit >> 10} KiB"
            context.tell(case)
            with settings.override(workspace_limit=limit, tune_budget_s=_TUNING_S):
                plans = _plans(expression, find_device(context.device).kernels)
                times = context.in_turns({each: plan.run for each, plan in plans.items()})
                chosen, *_ = plans
                steps = plans[chosen].schedule.steps
                bytes_taken = sum(
                    step.kernel.workspace(step.node)
                    for step in steps
                    if step.node.op.name == "conv2d"
                )
            samples[case] = {_CHOSEN: times[chosen], **times, _SHARE: [bytes_taken / limit]}
    return Measurement(samples, left_out=["limits too small for any kernel"])


def _convolution(context: ExperimentContext, channels: int, pixels: int, kernel: int) -> Expr:
    images = (IMAGES[context.device], channels, pixels, pixels)
    x, w = map(context.variable, _drawn(images, (channels, channels, kernel, kernel)))
    return op.conv2d(x, w, padding=kernel // 2)


def _plans(expression: Expr, family: str) -> dict[str, Plan]:
    """Return the plan chosen within the limit, and a plan for each allowed kernel, by name."""
    found = dict([_named(compile([expression]))])
    for kernel in TABLE.kernels("conv2d", family):
        if kernel.name == ORACLE:
            continue
        choices.fix("conv2d", kernel.name, family, optional=True)
        try:
            used, plan = _named(compile([expression]))
        finally:
            choices.unfix("conv2d", family)
        if used == kernel.name or used.endswith(f"{SLICED}{kernel.name}"):
            found.setdefault(used, plan)
    results = [plan.run()[0].numpy() for plan in found.values()]
    most = np.abs(results[0]).max()
    assert all(np.abs(each - results[0]).max() < _EQUAL * most for each in results)
    return found


def _named(plan: Plan) -> tuple[str, Plan]:
    """Return the kernel of a plan's convolution, and the plan."""
    # The second run of a plan makes its final choice of kernels.
    for _ in range(2):
        plan.run()
    rows = plan.explain(time=False).rows
    return next(row.kernel for row in rows if row.op.startswith("conv2d")), plan


def _drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
