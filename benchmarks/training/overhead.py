"""What Caldera itself costs, apart from the arithmetic.

Prints: `eval()` of a planned graph of ten small element-wise nodes (beside NumPy's ten calls), what
a run of plans takes whose results are dropped, kept until the next, or kept in a list, the time to
build, differentiate and plan a chain of 1000 nodes, and the planned memory of the training
step of an MLP with eight layers beside what it would take without planning, and what the metrics
of `caldera bench` take while they look at a step.

    python benchmarks/training/overhead.py
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import caldera as cd
from caldera import op, optim
from caldera.bench.levels import metrics
from caldera.bench.levels.instrumentation import Watch
from caldera.bench.timing import in_turns


def microseconds(function: Callable[[], object], repeats: int = 9) -> float:
    """Return the median time of a call, over turns of many calls each."""
    return statistics.median(in_turns({"": function}, repeats)[""]) * 1e6


def small_graph() -> None:
    """Ten small element-wise nodes, planned once."""
    x = op.var("x", (16,), fill=cd.uniform())
    array = x.numpy()
    y = x
    for i in range(5):
        y = op.tanh(y * (1.0 + i))

    def in_numpy() -> np.ndarray:
        value = array
        for i in range(5):
            value = np.tanh(value * (1.0 + i))
        return value

    np.testing.assert_allclose(y.numpy(), in_numpy(), rtol=1e-5)
    print(f"eval() of 10 planned element-wise nodes   {microseconds(y.eval):8.1f} us")
    print(f"the same ten calls in NumPy               {microseconds(in_numpy):8.1f} us")


def kept_results(runs: int = 1000) -> None:
    """Runs whose results are dropped, kept until the next run, or all kept."""
    x = op.var("x", (16,), fill=cd.uniform())
    loss, parameters = mlp(layers=3, width=16, batch=16)
    large = op.var("large", (1 << 18,), fill=cd.uniform())
    plans = {
        "16 numbers": (cd.compile(op.tanh(x * 2.0)), 1),
        "the loss of an MLP's step": (
            cd.compile([loss, *optim.Adam(1e-3).train(loss, parameters)]),
            1,
        ),
        "1 MiB": (cd.compile(large * 2.0 + 1.0), 10),
    }
    for name, (plan, share) in plans.items():
        kept: list[object] = []

        def keep(plan: cd.Plan = plan, kept: list[object] = kept, most: int = 1) -> None:
            kept.append(plan.run())
            if len(kept) > most:
                del kept[0]

        calls = runs // share
        dropped = microseconds(plan.run, calls)
        one = microseconds(keep, calls)
        many = microseconds(lambda keep=keep, calls=calls: keep(most=calls), calls)
        print(
            f"run for {name:<25}         {dropped:8.1f} us, {one:.1f} with one result kept, "
            f"{many:.1f} with {calls}"
        )


def long_chain() -> None:
    """1000 nodes in a row: build, differentiate, plan."""
    start = time.perf_counter()
    x = op.var("x", (16,), fill=cd.uniform())
    y = x
    for i in range(500):
        y = op.sin(y * (1.0 + i / 500))
    built = time.perf_counter()
    slope = op.grad(op.sum(y), x)
    differentiated = time.perf_counter()
    plan = cd.compile([y, slope])
    planned = time.perf_counter()
    print(f"a chain of 1000 nodes: build              {built - start:8.3f} s")
    print(f"                       differentiate      {differentiated - built:8.3f} s")
    print(f"                       optimise and plan  {planned - differentiated:8.3f} s")
    print(f"                       in all             {planned - start:8.3f} s")
    print(f"  {len(plan.original.order())} nodes became {len(plan.schedule.steps)} calls")


def mlp_memory() -> None:
    """The training step of an MLP with eight layers."""
    loss, parameters = mlp(layers=8)
    plan = cd.compile([loss, *optim.Adam(1e-3).train(loss, parameters)])
    share = plan.arena_bytes / plan.naive_bytes
    print(
        f"arena of an 8-layer MLP's training step   {plan.arena_bytes / 2**20:8.2f} MiB, "
        f"{share:.0%} of {plan.naive_bytes / 2**20:.2f} MiB"
    )


def mlp(layers: int, width: int = 528, batch: int = 100) -> tuple[cd.Expr, list[cd.Variable]]:
    """The seed's network: dense layers with sigmoids, cross entropy."""
    h: cd.Expr = op.var("x", (batch, 784), fill=cd.uniform())
    labels = op.var("labels", (batch,), dtype="int64")
    parameters = []
    for i in range(layers):
        last = i == layers - 1
        w = op.var(f"W{i}", (h.shape[1], 10 if last else width), fill=cd.glorot_uniform())
        b = op.var(f"b{i}", (w.shape[1],))
        h = h @ w + b
        h = h if last else op.sigmoid(h)
        parameters += [w, b]
    return op.cross_entropy(h, labels), parameters


def watching_steps() -> None:
    """All metrics that look at steps, at steps that do nothing."""
    looking = [
        metrics.WallTime(),
        metrics.FlopRate(),
        metrics.DatasetLatency(),
        metrics.TimeToAccuracy(0.9),
        metrics.Memory(),
        metrics.Communication(),
    ]
    watched = Watch(metrics.Watched("training"), looking)
    alone = Watch(metrics.Watched("training"), [])
    taken = [microseconds(lambda each=each: each.timed(int)) for each in (watched, alone)]
    print(f"six metrics that look at a step           {taken[0] - taken[1]:8.1f} us")


def import_time() -> None:
    """How long `import caldera` takes in a new process."""
    code = "import time; t = time.perf_counter(); import caldera; print(time.perf_counter() - t)"
    runs = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    print(f"import caldera                            {statistics.median(runs):8.3f} s")


if __name__ == "__main__":
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    import_time()
    small_graph()
    kept_results()
    long_chain()
    mlp_memory()
    watching_steps()
