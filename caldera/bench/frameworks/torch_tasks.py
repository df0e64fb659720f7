"""PyTorch's side: training steps (see `torch_training`) and single computations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.bench.frameworks.base import Array, BenchTask, CustomTask, Framework, Trainer
from caldera.bench.frameworks.custom import TorchCustom
from caldera.bench.frameworks.torch_training import TorchTrainer, set_precision, torch_optimizer
from caldera.bench.parts import OperatorPart
from caldera.bench.workloads import (
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    TrainingCase,
    UpdateCase,
)


class TorchFunctionTask(BenchTask):
    """A function without arguments, perhaps compiled, without gradients."""

    def __init__(self, torch: Any, function: Callable[[], Any]) -> None:
        self._torch = torch
        self._function = function

    def call(self) -> None:
        with self._torch.inference_mode():
            self._function()

    def results(self) -> list[Array]:
        with self._torch.inference_mode():
            return [self._function().contiguous().numpy()]


class TorchUpdateTask(BenchTask):
    """An optimizer's step."""

    def __init__(self, torch: Any, case: UpdateCase, style: str) -> None:
        parameters, gradients = case.arrays()
        self._parameters = [torch.from_numpy(each).requires_grad_() for each in parameters]
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        self._optimizer = torch_optimizer(torch, case.rule, self._parameters, style)
        step = self._optimizer.step
        self._step = torch.compile(lambda: step()) if style == "compiled" else step

    def call(self) -> None:
        self._step()

    def results(self) -> list[Array]:
        self.call()
        return [parameter.detach().numpy().copy() for parameter in self._parameters]


class TorchLoaderTask(BenchTask):
    """Batches of a DataLoader, one epoch after the other."""

    def __init__(self, torch: Any, case: InputCase, whole: bool) -> None:
        tools = optional_import("torch.utils.data", "torch", "caldera bench")
        samples = tools.TensorDataset(*(torch.from_numpy(array) for array in case.arrays()))
        if whole:
            order = tools.RandomSampler(samples)
            numbers = tools.BatchSampler(order, case.batch, drop_last=False)
            self._loader = tools.DataLoader(samples, sampler=numbers, batch_size=None)
        else:
            self._loader = tools.DataLoader(samples, case.batch, shuffle=True)
        self._batches = iter(self._loader)

    def call(self) -> None:
        if next(self._batches, None) is None:
            self._batches = iter(self._loader)
            next(self._batches)

    def results(self) -> list[Array]:
        total = sum(x.numpy().sum(0, np.float64) for x, _ in self._loader)
        return [np.asarray(total)]


class TorchFramework(Framework):
    """PyTorch in one setting."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        self.torch = optional_import("torch", "torch", "caldera bench")
        self.torch.set_num_threads(threads)
        self._captured_peak = 0
        if self.on_card:
            set_precision(self.torch, self.precision)
            # So that the time of importing is the framework's, not that of the first step.
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
        """Remember what a capture took: replays take nothing that the allocator would count."""
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
            return TorchFunctionTask(
                self.torch, lambda: apply(x, w, stride=strides, padding=padding)
            )
        backward = self.torch.ops.aten.convolution_backward
        wanted = 0 if case.what == "input gradient" else 1
        mask = [wanted == place for place in range(3)]
        return TorchFunctionTask(
            self.torch,
            lambda: backward(g, x, w, None, strides, padding, ones, False, [0, 0], 1, mask)[wanted],
        )

    def product(self, case: ProductCase) -> BenchTask:
        a, b = (self.torch.from_numpy(array) for array in case.arrays().values())
        left = a.T if case.transpose_a else a
        right = b.T if case.transpose_b else b
        return TorchFunctionTask(self.torch, lambda: self.torch.mm(left, right))

    def formula(self, case: FormulaCase) -> BenchTask:
        given = [self.torch.from_numpy(array) for array in case.arrays()]
        functions = self._functions()

        def compute(*values: Any) -> Any:
            return case.formula(functions, *values)

        function = self.torch.compile(compute) if self.options.get("compiled") else compute
        return TorchFunctionTask(self.torch, lambda: function(*given))

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
        return TorchUpdateTask(self.torch, case, self.options["style"])

    def loader(self, case: InputCase) -> BenchTask:
        return TorchLoaderTask(self.torch, case, bool(self.options.get("whole")))

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> CustomTask:
        return TorchCustom(self.torch, operator, inputs, seed)
