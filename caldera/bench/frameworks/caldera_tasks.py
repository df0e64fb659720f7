"""Caldera as a benchmarked framework: trainers on the CPU and on a GPU, and single operations.

On a GPU the data are resident: all batches of an epoch (a few different ones, repeated). Each step
gathers its batch from them. Other frameworks get prepared batches.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
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
    EpochTask,
    Framework,
    FunctionTask,
    Restartable,
    Trainer,
    as_dtype,
    built,
    caldera_optimizer,
    initial_weights,
    updating,
)
from caldera.bench.frameworks.custom import custom_outputs
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
from caldera.data import ArrayData, Batch, Loader, Share
from caldera.train.callbacks import Callback
from caldera.train.fit import make_steps
from caldera.train.neural_network import NeuralNetwork
from caldera.train.resident import resident
from caldera.train.run import Run
from caldera.train.saving.snapshot import Snapshot
from caldera.train.step import StepPlans

ENDLESS = 1 << 30
"""Number of epochs of a run that is stopped from outside."""


class CalderaTrainer(Trainer):
    """Training steps of a model; `_fed` are steps that read batches from outside."""

    _model: NeuralNetwork
    _steps: StepPlans
    _fed: StepPlans

    def __init__(self, case: TrainingCase, dtype: str, given: Batches) -> None:
        super().__init__(case, dtype, given)
        self._gradient_plans: dict[int, Plan] = {}

    def losses(self, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            self._steps.training_totals.reset()
            self.call()
            found.append(self._steps.training_totals.loss())
        return found

    def gradients(self) -> tuple[float, list[Array]]:
        return self.gradients_at(*self.given[0])

    def gradients_at(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        if len(x) not in self._gradient_plans:
            self._gradient_plans[len(x)] = gradient_plan(self._model, self._fed, len(x))
        results = self._gradient_plans[len(x)].run(self._fed.feeds((x, y), None))
        value, *gradients = [np.array(result.numpy()) for result in results]
        return float(value), gradients

    def weights(self) -> list[Array]:
        return initial_weights(self._model)

    def load(self, weights: Sequence[Array]) -> None:
        for parameter, value in zip(self._model.parameters(), weights, strict=True):
            parameter.assign(value.astype(str(parameter.dtype)))

    def train(self, x: Array, y: Array) -> None:
        self._fed.training(len(x)).run(self._fed.feeds((x, y), None))

    def predict(self, x: Array) -> Array:
        return self._model.predict(x)


class ResidentTrainer(CalderaTrainer, Restartable):
    """Training steps on data resident on the GPU, captured and replayed there."""

    def __init__(
        self, case: TrainingCase, dtype: str, given: Batches, device: str, precision: str
    ) -> None:
        super().__init__(case, dtype, given)
        self._model = placed(case, dtype, device, precision)
        self._data = epoch_of(given, case.card_epoch)
        self._steps = make_steps(self._model, self._data, source=resident(self._model, self._data))
        self._fed = self._steps.fed()
        self._start = Snapshot.of(self._model)
        self._epoch = self._batches()

    def _batches(self) -> Iterator[Batch | Share]:
        """Yield batch after batch, epoch after epoch, in the order in which they were given."""
        loader = Loader(self._data, len(self.given[0][0]), shuffle=False)
        while True:
            yield from self._steps.source.epoch(loader)

    def call(self) -> None:
        self._steps.train(next(self._epoch))

    def wait(self) -> None:
        self._model.device.stream.synchronize()

    def restart(self) -> None:
        self._start.put_back(self._model)
        optimizer = self._model.optimizer
        kept = [each for state in optimizer.state.values() for each in state.values()]
        for variable in (optimizer.step, *kept):
            variable.assign(np.zeros(variable.shape, variable.dtype))
        self._epoch = self._batches()


class FitTask(BenchTask):
    """`model.fit`, paused after its first step and then after every epoch until the next call.

    It runs in a separate thread, so that a single run can be measured in several turns: a new run
    would compile its plans again.
    """

    def __init__(self, case: TrainingCase, given: Batches, device: str, precision: str) -> None:
        self.case = case
        self.given = given
        self.steps_per_call = case.card_epoch
        self._device = device
        self._precision = precision
        self._data = epoch_of(given, case.card_epoch)
        self._model = placed(case, "float32", device, precision)
        self._hold = _Hold()
        self._thread: threading.Thread | None = None

    def call(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._hold.release()
        self._hold.reached()

    def _run(self) -> None:
        try:
            self._model.fit(self._data, epochs=ENDLESS, verbose=0, callbacks=[self._hold])
        except BaseException as error:
            self._hold.fail(error)

    def epoch_losses(self, epochs: int) -> list[float]:
        """Return the mean loss of each epoch on the different batches, from the initial weights."""
        model = placed(self.case, "float32", self._device, self._precision)
        data = epoch_of(self.given, len(self.given))
        history = model.fit(data, epochs=epochs, shuffle=False, verbose=0)
        return [float(loss) for loss in history["loss"]]

    def results(self) -> list[Array]:
        return [np.array(self.epoch_losses(1))]


class _Hold(Callback):
    """Callback that pauses a run at the end of a measurement until `release` is called."""

    def __init__(self) -> None:
        self._arrived: queue.Queue[BaseException | None] = queue.Queue()
        self._go_on: queue.Queue[None] = queue.Queue()
        self._began = False

    def release(self) -> None:
        """Let the run continue."""
        self._go_on.put(None)

    def reached(self) -> None:
        """Wait until the run is paused again, and raise its error if it failed."""
        error = self._arrived.get()
        if error is not None:
            raise error

    def fail(self, error: BaseException) -> None:
        """Tell who waits that the run has ended."""
        self._arrived.put(error)

    def batch_ends(self, run: Run) -> None:
        if not self._began:
            self._began = True
            run.model.device.stream.synchronize()
            self._stay()

    def epoch_ends(self, run: Run) -> None:
        # The results of the epoch have been read, so no work is pending.
        self._stay()

    def _stay(self) -> None:
        self._arrived.put(None)
        self._go_on.get()


def placed(case: TrainingCase, dtype: str, device: str, precision: str) -> NeuralNetwork:
    """Return the network of a case on a device, with the weights that all frameworks begin with."""
    in_half = None if precision == "float32" or dtype != "float32" else precision
    model = built(case, dtype, precision=in_half)
    if dtype != "float32":
        begin(model, case)
    return model.to(device)


def begin(model: NeuralNetwork, case: TrainingCase) -> None:
    """Give a network of any dtype the weights that one in float32 begins with."""
    start = as_dtype(initial_weights(built(case)), str(model.dtype))
    for parameter, value in zip(model.parameters(), start, strict=True):
        parameter.assign(value)


def gradient_plan(model: NeuralNetwork, steps: StepPlans, count: int) -> Plan:
    """Return the loss on a batch of `count` samples that is fed, and its gradients."""
    graph = steps.graph(count)
    outputs, traced = graph.network(training=True)
    loss, _ = graph.loss(outputs, steps.objective.of(outputs), traced.losses)
    wanted: list[Any] = [loss, *op.grad(loss, model.parameters())]
    return compile(wanted, device=model.device, precision=model.precision)


def epoch_of(given: Batches, batches: int) -> ArrayData:
    """Return `batches` batches as one dataset, repeating the given batches."""
    chosen = [given[number % len(given)] for number in range(batches)]
    return ArrayData(*(np.concatenate([batch[place] for batch in chosen]) for place in (0, 1)))


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


def plan_task(*outputs: Expr) -> FunctionTask:
    """Return a plan whose inputs are variables as a task."""
    plan = compile(list(outputs))
    return FunctionTask(plan.run, lambda: [np.array(each.numpy()) for each in plan.run()])


class CalderaFramework(Framework):
    """Caldera with strict or fast accuracy, in one precision.

    Options on a GPU: `fit`, true if an epoch of `fit` is timed instead of steps. On the CPU:
    `without`, passes to omit, and `workspace_limit`, the maximum bytes of scratch memory of a
    kernel.
    """

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        settings.update(threads=threads, accuracy=options["accuracy"])
        if "workspace_limit" in options:
            settings.update(workspace_limit=options["workspace_limit"])
        # Counted as import time of the framework instead of time of the first step.
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
        result = op.conv2d(x, w, stride=case.stride, padding=case.padding)
        if case.what == "forward":
            return plan_task(result)
        return plan_task(op.grad(result, x if case.what == "input gradient" else w, seed=g))

    def product(self, case: ProductCase) -> BenchTask:
        a, b = (_variable(name, array) for name, array in case.arrays().items())
        return plan_task(op.matmul(a, b, case.transpose_a, case.transpose_b))

    def formula(self, case: FormulaCase) -> BenchTask:
        given = [_variable(f"x{i}", array) for i, array in enumerate(case.arrays())]
        return plan_task(case.formula(FUNCTIONS, *given))

    def update(self, case: UpdateCase) -> BenchTask:
        parameters, gradients = (
            [_variable(f"{name}{i}", array) for i, array in enumerate(arrays)]
            for name, arrays in zip("wg", case.arrays(), strict=True)
        )
        plan = compile(list(caldera_optimizer(case.rule).apply(parameters, gradients)))
        return updating(plan.run, lambda: [each.numpy() for each in parameters])

    def loader(self, case: InputCase) -> BenchTask:
        return EpochTask(Loader(ArrayData(*case.arrays()), case.batch), lambda batch: batch.x)

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> BenchTask:
        return plan_task(*custom_outputs(operator, inputs, seed))


def _variable(name: str, array: Array) -> Variable:
    return op.var(name, array.shape, fill=array, device="cpu")
