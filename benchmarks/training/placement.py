"""Training and factorisations on CPU and GPU together, compared with each device separately.

    python benchmarks/training/placement.py --device cuda --markdown benchmarks/results/placement.md
    python benchmarks/training/placement.py --device loopback --small  # without a GPU

- networks: a training step on the CPU, on the GPU, and with `settings.placement` auto;
- factorisations: Cholesky, QR and LU (as `solve`) of sizes 4096 and 8192 by each kernel that
  supports them, and by CuPy;
- embedding: a training step with a table of 20 GB in host memory;
- larger: a network whose parameters, gradients and Adam state take 1.5 times a memory limit, with
  the state and the updates on the host, and the same network without a limit.

All cases run in one process. Networks and factorisations are timed in interleaved turns, and
the fastest turn counts. Each row is printed as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, op, optim
from caldera.bench.timing import best_in_turns
from caldera.compiler.plan.plan import Plan
from caldera.kernels.table import TABLE
from caldera.kernels.tuning.choose import choices
from caldera.train.tracking.measure_run import training_step

Step = Callable[[], None]
Row = dict[str, Any]


def step_of(plan: Plan, feeds: dict[str, Any]) -> Step:
    """Return a function that runs a plan and synchronises; the plan is captured if supported."""
    plan.run(feeds)
    if not plan.device.is_host and plan.can_capture:
        plan.capture()

    def step() -> None:
        plan.run(feeds)
        plan.device.stream.synchronize()

    return step


def line_of(row: Row) -> str:
    return f"| {row['case']} | {row['way']} | {row['ms']:.3f} |"


def told(case: str, way: str, seconds: float) -> Row:
    """Print a row immediately and return it: the remaining cases may take minutes."""
    row = {"case": case, "way": way, "ms": 1e3 * seconds}
    print(line_of(row), flush=True)
    return row


# --- networks


def networks(device: str, small: bool) -> list[Row]:
    """Time training steps on each device, with auto placement, and with updates on the host."""
    draw = np.random.default_rng(0)
    cases: dict[str, tuple[Callable[[], list[nn.Layer]], tuple[int, ...], int]] = {
        "mlp": (
            lambda: [
                nn.Input((784,)),
                *(nn.Dense(528, activation="relu") for _ in range(3)),
                nn.Dense(10),
            ],
            (784,),
            100,
        ),
        "lenet5": (lambda: nn.models.lenet5(input_shape=(1, 28, 28), classes=10), (1, 28, 28), 128),
    }
    if not small:
        cases["resnet20"] = (
            lambda: nn.models.resnet20(input_shape=(3, 32, 32), classes=10),
            (3, 32, 32),
            128,
        )
    rows = []
    for name, (layers, shape, batch) in cases.items():
        data = draw.normal(size=(batch, *shape)).astype("float32"), draw.integers(0, 10, batch)
        steps: dict[str, Step] = {}
        for way, place, keeper in (
            ("cpu", "cpu", None),
            ("card", device, None),
            ("auto", device, None),
            ("card, updates on the host", device, "cpu"),
        ):
            model = cd.NeuralNetwork(
                layers(),
                optimizer=optim.Adam(1e-3, device=keeper),
                batch_size=batch,
                device=place,
            )
            steps[way] = step_of(*training_step(model, data, batch))
        for way, seconds in best_in_turns(steps, 8).items():
            rows.append(told(f"{name}, batch {batch}", way, seconds))
    return rows


# --- factorisations


def factorisations(device: str, sizes: Sequence[int], dtypes: Sequence[str]) -> list[Row]:
    """Time each kernel of the device and CuPy's functions."""
    family = cd.device(device).kernels
    TABLE.load(family)
    rows = []
    for n in sizes:
        for dtype in dtypes:
            draw = np.random.default_rng(0)
            a = draw.normal(size=(n, n)).astype(dtype)
            positive = (a @ a.T + n * np.eye(n)).astype(dtype)
            given = {"cholesky": positive, "qr": a, "solve": a + n * np.eye(n, dtype=dtype)}
            for name, matrix in given.items():
                steps = _by_kernel(name, matrix, device) | _peers(name, matrix, device)
                case = f"{'LU (solve)' if name == 'solve' else name} {n} {dtype}"
                for way, seconds in best_in_turns(steps, 3).items():
                    rows.append(told(case, way, seconds))
    return rows


def _by_kernel(name: str, matrix: np.ndarray, device: str) -> dict[str, Step]:
    """Return a step for each kernel that supports the matrix, by name; print the rest."""
    family = cd.device(device).kernels
    steps: dict[str, Step] = {}
    for kernel in TABLE.names(name, family):
        if kernel == "reference" and family != "cpu":
            continue
        choices.fix(name, kernel, family=family, optional=True)
        try:
            plan = _factorising(name, matrix, device)
        finally:
            choices.unfix(name, family=family)
        ran = next(s.kernel.name for s in plan.schedule.steps if s.node.op.name == name)
        if ran != kernel:
            print(f"  {name} {matrix.shape}: kernel {kernel!r} cannot run it, {ran!r} would")
            continue
        steps[kernel] = partial(_waited_for, plan)
    return steps


def _factorising(name: str, matrix: np.ndarray, device: str) -> Plan:
    held = cd.Tensor.from_numpy(matrix, device=device)
    if name == "solve":
        found: Any = op.solve(held, cd.Tensor.from_numpy(matrix[:, :1].copy(), device=device))
    else:
        found = getattr(op, name)(held)
    return cd.compile(list(found) if isinstance(found, tuple) else [found], remember=False)


def _waited_for(plan: Plan) -> None:
    plan.run()
    plan.device.stream.synchronize()


def _peers(name: str, matrix: np.ndarray, device: str) -> dict[str, Step]:
    if not device.startswith("cuda"):
        return {}
    import cupy

    held = cupy.asarray(matrix)
    right = held[:, :1].copy()

    def step() -> None:
        getattr(cupy.linalg, name)(*([held, right] if name == "solve" else [held]))
        cupy.cuda.Device().synchronize()

    return {"cupy": step}


# --- more than the memory of the GPU


def embedding(device: str, table_bytes: int, width: int = 64, batch: int = 4096) -> list[Row]:
    """Time a step with a table in host memory; only the selected rows are copied to the GPU."""
    count = max(table_bytes // (4 * width), 16)
    draw = np.random.default_rng(0)
    data = draw.integers(0, count, (batch, 4)), draw.integers(0, 10, batch)
    model = cd.NeuralNetwork(
        [
            nn.Input((4,), dtype="int64"),
            nn.Embedding(count, width, device="cpu", fill=cd.zero()),
            nn.Flatten(),
            nn.Dense(512, activation="relu"),
            nn.Dense(10),
        ],
        optimizer=optim.SGD(0.1),
        batch_size=batch,
        device=device,
    )
    plan, feeds = training_step(model, data, batch)
    seconds = best_in_turns({"": step_of(plan, feeds)}, 5)[""]
    copied = plan.explain(feeds, time=False).copied_bytes
    case = f"embedding of {count * width * 4 / 1e9:.2f} GB on the host, batch {batch}"
    way = f"{copied / 1e6:.1f} MB copied"
    return [told(case, way, seconds)]


def larger(device: str, limit: int, batch: int = 256) -> list[Row]:
    """Time a network whose parameters, gradients and Adam state take 1.5 times the limit."""
    depth = 4
    width = int((1.5 * limit / (4 * 4 * depth)) ** 0.5) // 64 * 64
    draw = np.random.default_rng(0)
    data = draw.normal(size=(batch, width)).astype("float32"), draw.integers(0, 10, batch)
    case = f"{depth} layers of {width}, Adam, 1.5 times a limit of {limit / 1e9:.2f} GB"
    rows = []
    for way, keeper, bound in (
        ("limit, state and updates on the host", "cpu", limit),
        ("limit, card alone", None, limit),
        ("no limit, card alone", None, None),
    ):
        place = cd.device(device)
        cd.forget_plans()
        cd.empty_cache()
        before = place.pool._capacity
        # The limit applies to the GPU only; host memory is larger.
        place.pool._capacity = None if bound is None else bound + place.pool.in_use
        try:
            model = cd.NeuralNetwork(
                [
                    nn.Input((width,)),
                    *(nn.Dense(width, activation="relu") for _ in range(depth)),
                    nn.Dense(10),
                ],
                optimizer=optim.Adam(1e-4, device=keeper),
                batch_size=batch,
                device=device,
            )
            plan, feeds = training_step(model, data, batch)
            seconds = best_in_turns({"": step_of(plan, feeds)}, 3)[""]
            rows.append(told(case, way, seconds))
        except cd.OutOfMemoryError:
            rows.append(told(case, f"{way}: no room", float("nan")))
        finally:
            place.pool._capacity = before
        model = plan = feeds = None  # type: ignore[assignment]
    return rows


def main() -> None:
    """Run the selected cases and write their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases (default: all)")
    parser.add_argument("--small", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument(
        "--table-bytes", type=int, default=20 * 10**9, help="bytes of the embedding table"
    )
    parser.add_argument(
        "--limit", type=int, default=2 << 30, help="memory limit in bytes, for larger"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[4096, 8192], help="sizes of matrices"
    )
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    small = given.small
    table = 64 << 20 if small else given.table_bytes
    tasks: dict[str, Callable[[], list[Row]]] = {
        "networks": lambda: networks(given.device, small),
        "factorisations": lambda: factorisations(
            given.device,
            [512] if small else given.sizes,
            ["float32"] if small else given.dtypes,
        ),
        "embedding": lambda: embedding(given.device, table, batch=512 if small else 4096),
        "larger": lambda: larger(given.device, 32 << 20 if small else given.limit),
    }
    rows: list[Row] = []
    for name, task in tasks.items():
        if not given.only or name in given.only:
            rows += task()
            cd.forget_plans()
    text = "\n".join(["| case | way | ms |", "|---|---|---:|", *map(line_of, rows)])
    if given.markdown:
        given.markdown.write_text(f"# CPU and card together\n\n{text}\n")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
