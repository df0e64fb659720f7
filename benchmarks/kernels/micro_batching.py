"""Convolutions under a limit on their workspace: divided into slices, and undivided.

    python benchmarks/kernels/micro_batching.py alexnet resnet50 --batch 16 --limits 1,8,64,512
    python benchmarks/kernels/micro_batching.py alexnet resnet50 --device cuda --batch 256 --steps

All convolutions of a training step, forward and both gradients, each measured alone: undivided by
the fastest kernel that stays within the limit (before slices, that was NumPy's where nothing else
did), and as Caldera divides it. Both take turns, the best turn counts, and a layer counts as often
as it is in the network. With `--shared` the limit is for the sum of all layers' workspaces. With
`--steps` whole training steps are timed: without a limit, and under each limit with and without
slices.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import nn, op
from caldera.base.config import settings
from caldera.bench.timing import in_turns
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import detached
from caldera.data import Data, Loader, as_data
from caldera.kernels.common.binding import at_most_workspace
from caldera.kernels.table import TABLE, Kernel
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import TIMERS, choices
from caldera.kernels.workspace import SLICED, shared_limits
from caldera.train.fit import make_steps
from caldera.train.resident import resident

MIB = 1 << 20
SECONDS = 1.0
"""For which the two ways to run a layer are measured."""
TURNS = 5
"""Of whole steps, at least."""
CONVOLUTIONS = frozenset(SLICED)


@dataclass(frozen=True)
class Bench:
    """Where convolutions run, with how many images, and in which precision."""

    device: str
    batch: int
    precision: str | None

    @property
    def family(self) -> str:
        return cd.device(self.device).kernels

    # --- the convolutions of a network

    def convolutions(self, network: str) -> Counter[Node]:
        """The convolutions of a training step, and how often each comes."""
        if network == "layers":
            return self.single_layers()
        plan = self.training_plan(nn.Sequential(getattr(nn.models, network)()))
        return Counter(
            detached(s.node) for s in plan.schedule.steps if s.node.op.name in CONVOLUTIONS
        )

    def training_plan(self, network: nn.Layer) -> cd.Plan:
        """The plan of the gradients of all parameters; nothing is run."""
        x = op.input("x", (self.batch, 3, 224, 224))
        random = op.random_state()
        with nn.trace(training=True, random=random):
            result = network(x)
        loss = op.mean(result * result)
        return self.compiled([op.grad(loss, each) for each in network.parameters()])

    def compiled(self, results: list[op.Expr]) -> cd.Plan:
        """A plan for which nothing is measured."""
        with settings.override(tune_budget_s=0.0):
            return cd.compile(results, device=self.device, precision=self.precision)

    def single_layers(self) -> Counter[Node]:
        """AlexNet's and ResNet's kinds of layers, with images as plans lay them out."""
        found: Counter[Node] = Counter()
        for images, filters, how in (
            ((self.batch, 64, 27, 27), (192, 64, 5, 5), {"padding": 2}),
            ((self.batch, 256, 13, 13), (256, 256, 3, 3), {"padding": 1}),
            ((self.batch, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
            ((self.batch, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
        ):
            x, w = op.var("x", images, fill=cd.zero()), op.var("w", filters, fill=cd.zero())
            y = op.conv2d(x, w, **how)
            plan = self.compiled([y, op.grad(op.sum(y * y), x), op.grad(op.sum(y * y), w)])
            steps = plan.schedule.steps
            found.update(detached(s.node) for s in steps if s.node.op.name in CONVOLUTIONS)
        return found

    # --- each measured alone

    def measure(self, node: Node, kernels: list[Kernel]) -> dict[str, float]:
        """Seconds of each kernel, in turns."""
        return TIMERS[self.family](node, kernels, SECONDS, thorough=True).times

    def under(self, node: Node, limit: int) -> Layer:
        """Both ways to run a convolution within so many bytes."""
        with at_most_workspace(limit):
            able = TABLE.candidates(node, self.family)
            needed = {each: each.workspace(node) for each in able}
            # Where nothing keeps to the limit, what needs least serves.
            most = max(limit, min(needed.values()))
            fits = [each for each in able if needed[each] <= most]
            rivals = [each for each in fits if each.name != ORACLE] or fits
            chosen = choices.choose(node, self.family).kernel
            named = {each.name: each for each in (*rivals, chosen)}
            times = self.measure(node, list(named.values()))
        whole = min(rivals, key=lambda each: times.get(each.name, float("inf")))
        return Layer(whole.name, times[whole.name], chosen.name, times[chosen.name])

    def compare(self, network: str, limits: list[int]) -> None:
        """One network or set of layers under every limit."""
        found = self.convolutions(network)
        most = max(self.least_workspace(node) for node in found)
        print(
            f"\n{network}, batch {self.batch}: {sum(found.values())} convolutions, {len(found)} "
            f"kinds; the hungriest needs {most / MIB:.1f} MiB at least\n"
        )
        print(
            "| limit | undivided | divided | times | NumPy's undivided | in slices | best layer |"
        )
        print("|---|---|---|---|---|---|---|")
        for limit in limits:
            rows = {node: self.under(node, limit) for node in found}
            before = sum(rows[node].undivided_s * count for node, count in found.items())
            after = sum(rows[node].divided_s * count for node, count in found.items())
            oracle = sum(n for node, n in found.items() if rows[node].undivided == ORACLE)
            cut = sum(n for node, n in found.items() if " by " in rows[node].divided)
            best = max(rows.values(), key=lambda each: each.undivided_s / each.divided_s)
            print(
                f"| {limit / MIB:g} MiB | {before * 1e3:,.1f} ms | {after * 1e3:,.1f} ms "
                f"| {before / after:.2f} | {oracle} | {cut} "
                f"| {best.undivided_s / best.divided_s:.2f}: {best.divided} beside "
                f"{best.undivided} |",
                flush=True,
            )

    def least_workspace(self, node: Node) -> int:
        """What the kernel that needs least does need, NumPy's aside."""
        able = TABLE.candidates(node, self.family)
        return min(kernel.workspace(node) for kernel in able if kernel.name != ORACLE)

    # --- one limit for all

    def shared(self, network: str, limits: list[int]) -> None:
        """The sum of all workspaces within each limit, shared out and in equal parts."""
        nodes = list(self.convolutions(network))
        print(f"\n{network}, batch {self.batch}, one limit for all of its {len(nodes)} kinds\n")
        print("| limit for the sum | equal parts | shared out | times | used |")
        print("|---|---|---|---|---|")
        for limit in limits:
            equal = {node: limit // len(nodes) for node in nodes}
            best = shared_limits(choices, nodes, self.family, limit)
            rows = [self.under_two(node, equal[node], best[node]) for node in nodes]
            before, after = sum(row[0] for row in rows), sum(row[1] for row in rows)
            used = sum(row[2] for row in rows)
            print(
                f"| {limit / MIB:g} MiB | {before * 1e3:,.1f} ms | {after * 1e3:,.1f} ms "
                f"| {before / after:.2f} | {used / MIB:.1f} MiB |",
                flush=True,
            )

    def under_two(self, node: Node, one: int, other: int) -> tuple[float, float, int]:
        """Seconds of a layer under two limits, and the workspace under the second."""
        first, second = (choices.kernel(node, self.family, limit=each) for each in (one, other))
        if first.name == second.name and first.workspace(node) == second.workspace(node):
            seconds = self.measure(node, [first])[first.name]
            return seconds, seconds, second.workspace(node)
        times = self.measure(node, [replace(first, name="one"), replace(second, name="other")])
        return times["one"], times["other"], second.workspace(node)

    # --- whole steps

    def steps(self, network: str, limits: list[int]) -> None:
        """Training steps without a limit, and under each with slices and without."""
        print(f"\n{network}, batch {self.batch}, {self.precision or 'float32'}, ms a step\n")
        print("| limit | undivided | divided | times | without a limit | largest workspace |")
        print("|---|---|---|---|---|---|")
        draw = np.random.default_rng(0)
        images = draw.normal(size=(self.batch, 3, 224, 224)).astype("float32")
        data = images, draw.integers(0, 1000, self.batch)
        free = self.step_of(network, data)
        for limit in limits:
            with settings.override(workspace_limit=limit):
                with undivided():
                    whole = self.step_of(network, data)
                cut = self.step_of(network, data)
            times = in_turns({"whole": whole, "cut": cut, "free": free}, TURNS)
            SAMPLES.append({"network": network, "limit": limit, **times})
            best = {name: 1e3 * min(of) for name, of in times.items()}
            print(
                f"| {limit / MIB:g} MiB | {best['whole']:,.2f} | {best['cut']:,.2f} "
                f"| {best['whole'] / best['cut']:.2f} | {best['free']:,.2f} "
                f"| {cut.workspace / MIB:,.1f} MiB |",
                flush=True,
            )

    def step_of(self, network: str, data: tuple[np.ndarray, np.ndarray]) -> Step:
        """A training step of a model of its own."""
        model = cd.NeuralNetwork(
            getattr(nn.models, network)(),
            optimizer=cd.optim.SGD(1e-3, momentum=0.9),
            batch_size=self.batch,
            device=self.device,
            precision=self.precision,
            seed=0,
        )
        return Step(model, as_data(data))


@dataclass
class Layer:
    """What was found for a convolution under a limit."""

    undivided: str
    undivided_s: float
    divided: str
    divided_s: float


SAMPLES: list[dict[str, object]] = []
"""Every time of whole steps."""


class Step:
    """Training steps on data that lie where the model does, each waited for."""

    def __init__(self, model: cd.NeuralNetwork, data: Data) -> None:
        self._steps = make_steps(model, data, source=resident(model, data))
        loader = Loader(data, model.batch_size, shuffle=False)
        self._batch = next(iter(self._steps.batches(loader)))
        plan = self._steps.training(self._batch)
        convolutions = [each for each in plan.schedule.steps if each.node.op.name in CONVOLUTIONS]
        self.workspace = max(each.kernel.workspace(each.node) for each in convolutions)
        self._stream = model.device.stream

    def __call__(self) -> None:
        self._steps.train(self._batch)
        self._stream.synchronize()


@contextmanager
def undivided() -> Iterator[None]:
    """Batches are not cut."""
    rules = dict(SLICED)
    SLICED.clear()
    try:
        yield
    finally:
        SLICED.update(rules)


def main() -> None:
    """Read the command line, and print a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", help="tf32, bfloat16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--limits", default="8,64,512", help="MiB, with commas")
    parser.add_argument("--accuracy", default="strict")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--shared", action="store_true", help="one limit for all layers")
    way.add_argument("--steps", action="store_true", help="whole training steps")
    parser.add_argument("--tune-seconds", type=float, default=1e6, help="for each plan")
    parser.add_argument("--json", type=Path, help="a file for every time of whole steps")
    options = parser.parse_args()
    limits = [int(float(each) * MIB) for each in options.limits.split(",")]
    bench = Bench(options.device, options.batch, options.precision)
    run = bench.shared if options.shared else bench.steps if options.steps else bench.compare
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.override(
            cache_dir=folder, tune_budget_s=options.tune_seconds, accuracy=options.accuracy
        ),
    ):
        for network in options.networks:
            run(network, limits)
    if options.json:
        options.json.write_text(json.dumps(SAMPLES))


if __name__ == "__main__":
    main()
