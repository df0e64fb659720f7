"""PyTorch as a benchmarked framework: training steps and single operations.

Steps are eager or compiled, or one CUDA graph, with images channels first or last. On a GPU the
batches are resident. In bfloat16 the weights stay float32 (`torch.autocast` casts them where a
product reads them), as everywhere in this comparison.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
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
    held_by,
    initial_weights,
    updating,
)
from caldera.bench.frameworks.custom import torch_custom
from caldera.bench.parts import OperatorPart
from caldera.bench.translate import to_torch
from caldera.bench.workloads import (
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    Rule,
    TrainingCase,
    UpdateCase,
)

WARM_UP_STEPS = 3
"""Steps before a capture, as in PyTorch's manual: libraries select and load their kernels."""

Step = Callable[[Any, Any], Any]


class TorchTrainer(Restartable):
    """The translated network, cross entropy, and a fused optimizer.

    Options: `compiled` (False, True, or the mode of torch.compile), `channels_last`, and `graph`:
    whether the whole step is captured once and replayed.
    """

    def __init__(
        self,
        torch: Any,
        case: TrainingCase,
        dtype: str,
        given: Batches,
        options: dict[str, Any],
        note_peak: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        super().__init__(case, dtype, given)
        self._torch = torch
        self._device = options.get("device", "cpu")
        self._half = options.get("precision") == "bfloat16" and dtype == "float32"
        self._note_peak = note_peak
        self._model = built(case)
        self._network = to_torch(self._model)
        self.held_for_others = held_by(self._model)
        module = self._network.module.to(device=self._device, dtype=getattr(torch, dtype))
        self._network.load(as_dtype(initial_weights(self._model), dtype))
        self._format = torch.contiguous_format
        if options.get("channels_last"):
            self._format = torch.channels_last
            module = module.to(memory_format=self._format)
        self._module = module.train()
        self._captures = bool(options.get("graph"))
        self._optimizer = torch_optimizer(
            torch, case.rule, module.parameters(), "fused", capturable=self._captures
        )
        self._loss = self._plain_loss
        compiled = options["compiled"]
        self._has_trees = compiled == "reduce-overhead"
        if compiled:
            mode = compiled if isinstance(compiled, str) else None
            self._loss = torch.compile(self._plain_loss, mode=mode)
        self._captured: CapturedStep | None = None
        self._batches = [self._placed(x, y) for x, y in self.given]

    def _placed(self, x: Array, y: Array) -> tuple[Any, Any]:
        values = self._torch.from_numpy(np.ascontiguousarray(x)).to(self._device)
        if self.case.has_images:
            values = values.contiguous(memory_format=self._format)
        return values, self._torch.from_numpy(np.ascontiguousarray(y)).flatten().to(self._device)

    def _plain_loss(self, x: Any, y: Any) -> Any:
        if not self._half:
            return self._cross_entropy(x, y)
        with self._torch.autocast(self._device, dtype=self._torch.bfloat16):
            return self._cross_entropy(x, y)

    def _cross_entropy(self, x: Any, y: Any) -> Any:
        return self._torch.nn.functional.cross_entropy(self._module(x).flatten(0, -2), y)

    def _backward(self, x: Any, y: Any) -> Any:
        if self._has_trees:
            self._torch.compiler.cudagraph_mark_step_begin()
        self._optimizer.zero_grad()
        loss = self._loss(x, y)
        loss.backward()
        # The graph of this step must not live on: a capture would meet its nodes.
        return loss.detach()

    def _step(self, x: Any, y: Any) -> Any:
        loss = self._backward(x, y)
        self._optimizer.step()
        return loss

    def _trained(self, x: Any, y: Any) -> Any:
        """Make a step, captured if captures are enabled, and return the loss."""
        if not self._captures:
            return self._step(x, y)
        if self._captured is None:
            self._captured = CapturedStep(
                self._torch, self._step, (x, y), self._from_start, self._note_peak
            )
        return self._captured(x, y)

    def call(self) -> None:
        self._trained(*self._batches[self.turn()])

    def wait(self) -> None:
        if self._device != "cpu":
            self._torch.cuda.synchronize()

    def restart(self) -> None:
        self._from_start()
        self._next = 0

    def _from_start(self) -> None:
        """Restore the initial weights in place: a captured graph uses the same memory."""
        self._network.load(as_dtype(initial_weights(self._model), self.dtype))
        self._network.reset_states()
        with self._torch.no_grad():
            for state in self._optimizer.state.values():
                for value in state.values():
                    if self._torch.is_tensor(value):
                        value.zero_()

    def losses(self, steps: int) -> list[float]:
        return [self._trained(*self._batches[self.turn()]).item() for _ in range(steps)]

    def gradients(self) -> tuple[float, list[Array]]:
        batch = self._batches[0]
        # A captured step leaves its gradients in their buffers; the step is undone afterwards.
        loss = self._trained(*batch) if self._captures else self._backward(*batch)
        value, found = loss.item(), self._network.gradients()
        if self._captures:
            self._from_start()
        else:
            self._optimizer.zero_grad()
        return value, found

    def gradients_at(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        loss = self._backward(*self._placed(x, y))
        found = [np.array(each) for each in self._network.gradients()]
        self._optimizer.zero_grad()
        return loss.item(), found

    def weights(self) -> list[Array]:
        return [np.array(each) for each in self._network.parameters()]

    def load(self, weights: Sequence[Array]) -> None:
        self._network.load(as_dtype(weights, self.dtype))

    def train(self, x: Array, y: Array) -> None:
        self._trained(*self._placed(x, y))

    def predict(self, x: Array) -> Array:
        self._module.eval()
        given = self._torch.from_numpy(np.ascontiguousarray(x)).to(self._device)
        with self._torch.no_grad():
            scores: Array = self._module(given).cpu().numpy()
        self._module.train()
        return scores


class CapturedStep:
    """A whole training step as a CUDA graph with inputs at fixed addresses.

    Steps made before the capture change the weights; `take_back` undoes that.
    """

    def __init__(
        self,
        torch: Any,
        step: Step,
        batch: tuple[Any, Any],
        take_back: Callable[[], None],
        note_peak: Callable[[int], None],
    ) -> None:
        self._x, self._y = (each.clone() for each in batch)
        cuda = torch.cuda
        # Captured on the stream that was warmed up: handles of libraries belong to a stream.
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                step(self._x, self._y)
        cuda.current_stream().wait_stream(stream)
        take_back()
        gc.collect()
        cuda.reset_peak_memory_stats()
        self._graph = cuda.CUDAGraph()
        with cuda.graph(self._graph, stream=stream):
            self._loss = step(self._x, self._y)
        note_peak(int(cuda.max_memory_allocated()))

    def __call__(self, x: Any, y: Any) -> Any:
        """Return the step on a batch: its copy to the fixed places, and a replay."""
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        return self._loss


def set_precision(torch: Any, precision: str) -> None:
    """Let float32 products be rounded to tf32, or not."""
    rounded = precision != "float32"
    torch.set_float32_matmul_precision("high" if rounded else "highest")
    torch.backends.cuda.matmul.allow_tf32 = rounded
    torch.backends.cudnn.allow_tf32 = rounded


def torch_optimizer(
    torch: Any, rule: Rule, parameters: Any, style: str, *, capturable: bool = False
) -> Any:
    """Return the rule as PyTorch's optimizer, in the requested form if PyTorch has it."""
    common: dict[str, Any] = {"lr": rule.learning_rate, "weight_decay": rule.weight_decay}
    if rule.name == "rmsprop":
        # It has no fused form.
        return torch.optim.RMSprop(parameters, **common, foreach=style != "fused")
    common |= {"fused": True} if style == "fused" else {"foreach": True}
    if rule.name == "sgd":
        return torch.optim.SGD(parameters, momentum=rule.momentum, **common)
    made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return made[rule.name](parameters, **common, capturable=capturable)


def without_gradients(torch: Any, function: Callable[[], Any]) -> FunctionTask:
    """Return a function without arguments, perhaps compiled, as a task without gradients."""

    def run() -> Any:
        with torch.inference_mode():
            return function()

    return FunctionTask(run, lambda: [run().contiguous().numpy()])


class TorchFramework(Framework):
    """PyTorch in one setting."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        self.torch = optional_import("torch", "torch", "caldera bench")
        self.torch.set_num_threads(threads)
        self._captured_peak = 0
        if self.on_card:
            set_precision(self.torch, self.precision)
            # Counted as import time of the framework instead of time of the first step.
            self.torch.zeros((), device=self.device)
            self.torch.cuda.synchronize()

    def versions(self) -> dict[str, str]:
        found = {"torch": self.torch.__version__}
        if self.on_card:
            found["CUDA of torch"] = str(self.torch.version.cuda)
            found["cuDNN of torch"] = str(self.torch.backends.cudnn.version())
        return found

    def trainer(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Trainer:
        given = self.batches(case, dtype, batch)
        if self.on_card:
            # Trying all kernels in float64, for a single step, would take a minute.
            self.torch.backends.cudnn.benchmark = dtype == "float32"
        return TorchTrainer(self.torch, case, dtype, given, self.options, self._note_peak)

    def _note_peak(self, nbytes: int) -> None:
        """Record the peak of a capture: the allocator does not count memory of replays."""
        self._captured_peak = max(self._captured_peak, nbytes)

    def reset_card_peak(self) -> None:
        self.torch.cuda.reset_peak_memory_stats()

    def card_peak(self) -> int:
        return max(self._captured_peak, int(self.torch.cuda.max_memory_allocated()))

    def convolution(self, case: ConvolutionCase) -> BenchTask:
        last = bool(self.options.get("channels_last"))
        form = self.torch.channels_last if last else self.torch.contiguous_format
        x, w, g = (
            self.torch.from_numpy(array).contiguous(memory_format=form)
            for array in case.arrays().values()
        )
        strides, padding, ones = [case.stride] * 2, list(case.padding), [1, 1]
        if case.what == "forward":
            apply = self.torch.nn.functional.conv2d
            return without_gradients(
                self.torch, lambda: apply(x, w, stride=strides, padding=padding)
            )
        backward = self.torch.ops.aten.convolution_backward
        wanted = 0 if case.what == "input gradient" else 1
        mask = [wanted == place for place in range(3)]
        return without_gradients(
            self.torch,
            lambda: backward(g, x, w, None, strides, padding, ones, False, [0, 0], 1, mask)[wanted],
        )

    def product(self, case: ProductCase) -> BenchTask:
        a, b = (self.torch.from_numpy(array) for array in case.arrays().values())
        left = a.T if case.transpose_a else a
        right = b.T if case.transpose_b else b
        return without_gradients(self.torch, lambda: self.torch.mm(left, right))

    def formula(self, case: FormulaCase) -> BenchTask:
        given = [self.torch.from_numpy(array) for array in case.arrays()]
        functions = self._functions()

        def compute(*values: Any) -> Any:
            return case.formula(functions, *values)

        function = self.torch.compile(compute) if self.options.get("compiled") else compute
        return without_gradients(self.torch, lambda: function(*given))

    def _functions(self) -> SimpleNamespace:
        torch = self.torch
        return SimpleNamespace(
            exp=torch.exp,
            tanh=torch.tanh,
            sigmoid=torch.sigmoid,
            relu=torch.relu,
            gelu=torch.nn.functional.gelu,
            softmax=lambda x: torch.softmax(x, -1),
            sum_of_rows=lambda x: torch.sum(x, -1),
        )

    def update(self, case: UpdateCase) -> BenchTask:
        values, gradients = case.arrays()
        parameters = [self.torch.from_numpy(each).requires_grad_() for each in values]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = self.torch.from_numpy(gradient)
        style = self.options["style"]
        step = torch_optimizer(self.torch, case.rule, parameters, style).step
        run = self.torch.compile(lambda: step()) if style == "compiled" else step
        return updating(run, lambda: [each.detach().numpy().copy() for each in parameters])

    def loader(self, case: InputCase) -> BenchTask:
        tools = optional_import("torch.utils.data", "torch", "caldera bench")
        samples = tools.TensorDataset(*map(self.torch.from_numpy, case.arrays()))
        order: dict[str, Any] = {"batch_size": case.batch, "shuffle": True}
        if self.options.get("whole"):
            drawn = tools.RandomSampler(samples)
            batches = tools.BatchSampler(drawn, case.batch, drop_last=False)
            order = {"sampler": batches, "batch_size": None}
        return EpochTask(tools.DataLoader(samples, **order), lambda batch: batch[0].numpy())

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> BenchTask:
        return torch_custom(self.torch, operator, inputs, seed)
