"""Caldera's own side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

import caldera
from caldera import op
from caldera.base.config import settings
from caldera.bench.frameworks.base import (
    Array,
    Batches,
    BenchTask,
    CustomTask,
    Framework,
    Trainer,
    caldera_optimizer,
)
from caldera.bench.frameworks.caldera_card import (
    CalderaTrainer,
    FitTask,
    ResidentTrainer,
    placed,
)
from caldera.bench.frameworks.custom import CalderaCustom
from caldera.bench.parts import OperatorPart
from caldera.bench.workloads import (
    Case,
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    TrainingCase,
    UpdateCase,
)
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.memory import device as find_device
from caldera.core.memory.gpus import cupy
from caldera.data import ArrayData, Loader
from caldera.train.fit import make_steps

FUNCTIONS = SimpleNamespace(
    exp=op.exp,
    tanh=op.tanh,
    sigmoid=op.sigmoid,
    relu=op.relu,
    gelu=op.gelu,
    softmax=lambda x: op.softmax(x, axis=-1),
    sum_of_rows=lambda x: op.sum(x, axis=-1),
)


class FedTrainer(CalderaTrainer):
    """The plan that `fit` runs, fed with ready batches."""

    def __init__(
        self,
        case: TrainingCase,
        dtype: str,
        given: Batches,
        precision: str,
        without: Sequence[str] = (),
    ) -> None:
        super().__init__(case, dtype, given)
        self._model = placed(case, dtype, "cpu", precision)
        self._steps = self._fed = make_steps(self._model, ArrayData(*self.given[0]))
        self._steps.without = without
        self._count = len(self.given[0][0])
        self._feeds = [self._steps.feeds(each, None) for each in self.given]

    @property
    def plan(self) -> Plan:
        """The step."""
        return self._steps.training(self._count)

    def call(self) -> None:
        self.plan.run(self._feeds[self.turn()])


class PlanTask(BenchTask):
    """A plan whose inputs are variables."""

    def __init__(self, *outputs: Expr) -> None:
        self._plan = compile(list(outputs))

    def call(self) -> None:
        self._plan.run()

    def results(self) -> list[Array]:
        return [np.array(result.numpy()) for result in self._plan.run()]


class CalderaUpdateTask(PlanTask):
    """A plan that changes parameters."""

    def __init__(self, case: UpdateCase) -> None:
        parameters, gradients = case.arrays()
        self._parameters = [_variable(f"w{i}", array) for i, array in enumerate(parameters)]
        given = [_variable(f"g{i}", array) for i, array in enumerate(gradients)]
        super().__init__(*caldera_optimizer(case.rule).apply(self._parameters, given))

    def results(self) -> list[Array]:
        self.call()
        return [parameter.numpy() for parameter in self._parameters]


class CalderaLoaderTask(BenchTask):
    """Batches of a loader, one epoch after the other."""

    def __init__(self, case: InputCase) -> None:
        x, y = case.arrays()
        self._samples = ArrayData(x, y)
        self._loader = Loader(self._samples, case.batch)
        self._batches = iter(self._loader)

    def call(self) -> None:
        if next(self._batches, None) is None:
            self._batches = iter(self._loader)
            next(self._batches)

    def results(self) -> list[Array]:
        """Sums over an epoch: they do not depend on the order."""
        epoch = list(islice(iter(Loader(self._samples, self._loader.batch_size)), None))
        return [sum((each.x.sum(0, np.float64) for each in epoch), np.zeros(()))]


class CalderaFramework(Framework):
    """Caldera with strict or fast accuracy, in one precision.

    Options on a card: `fit`, whether an epoch of `fit` is timed instead of steps. On the CPU:
    `without`, passes that are left out, and `workspace_limit`, the bytes of scratch memory that a
    kernel may have.
    """

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        settings.update(threads=threads, accuracy=options["accuracy"])
        if "workspace_limit" in options:
            settings.update(workspace_limit=options["workspace_limit"])
        # So that the time of importing is the framework's, not that of the first step.
        self._place = find_device(self.device)

    def versions(self) -> dict[str, str]:
        found = {"caldera": caldera.__version__, "numpy": np.__version__}
        if self._place.kind == "cuda":
            found["cupy"] = cupy().__version__
            found["CUDA of cupy"] = str(cupy().cuda.runtime.runtimeGetVersion())
        return found

    def task(self, case: Case) -> BenchTask:
        if self.options.get("fit") and isinstance(case, TrainingCase):
            return FitTask(case, self.batches(case, "float32"), self.device, self.precision)
        return super().task(case)

    def trainer(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Trainer:
        given = self.batches(case, dtype, batch)
        if self.on_card:
            return ResidentTrainer(case, dtype, given, self.device, self.precision)
        return FedTrainer(case, dtype, given, self.precision, self.options.get("without", ()))

    def reset_card_peak(self) -> None:
        self._place.pool.reset_peak()

    def card_peak(self) -> int:
        return self._place.pool.peak

    def convolution(self, case: ConvolutionCase) -> BenchTask:
        x, w, g = (_variable(name, array) for name, array in case.arrays().items())
        (top, left) = case.padding
        result = op.conv2d(x, w, stride=case.stride, padding=(top, left))
        if case.what == "forward":
            return PlanTask(result)
        return PlanTask(op.grad(result, x if case.what == "input gradient" else w, seed=g))

    def product(self, case: ProductCase) -> BenchTask:
        a, b = (_variable(name, array) for name, array in case.arrays().items())
        return PlanTask(op.matmul(a, b, case.transpose_a, case.transpose_b))

    def formula(self, case: FormulaCase) -> BenchTask:
        given = [_variable(f"x{i}", array) for i, array in enumerate(case.arrays())]
        return PlanTask(case.formula(FUNCTIONS, *given))

    def update(self, case: UpdateCase) -> BenchTask:
        return CalderaUpdateTask(case)

    def loader(self, case: InputCase) -> BenchTask:
        return CalderaLoaderTask(case)

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> CustomTask:
        return CalderaCustom(operator, inputs, seed)


def _variable(name: str, array: Array) -> Variable:
    return op.var(name, array.shape, fill=array, device="cpu")
