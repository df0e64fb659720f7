"""PyTorch's side: eager or compiled, images with channels first or last in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from caldera.bench.frameworks.base import (
    Array,
    Framework,
    Task,
    Trainer,
    as_dtype,
    built,
    held_by,
    initial_weights,
)
from caldera.bench.translate import to_torch
from caldera.bench.work import (
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    Rule,
    TrainingCase,
    UpdateCase,
)
from caldera.optional import optional_import


class TorchTrainer(Trainer):
    """The translated network, cross entropy, and a fused optimizer."""

    def __init__(
        self, torch: Any, case: TrainingCase, dtype: str, batch: int | None, options: dict[str, Any]
    ) -> None:
        super().__init__(case, dtype, batch)
        self._torch = torch
        model = built(case)
        self._network = to_torch(model)
        self.held_for_others = held_by(model)
        module = self._network.module.to(getattr(torch, dtype))
        self._network.load(as_dtype(initial_weights(model), dtype))
        self._format = torch.contiguous_format
        if options.get("channels_last"):
            self._format = torch.channels_last
            module = module.to(memory_format=self._format)
        self._module = module.train()
        self._optimizer = torch_optimizer(torch, case.rule, module.parameters(), "fused")
        self._loss = torch.compile(self._plain_loss) if options["compiled"] else self._plain_loss
        self._batches = [self._placed(x, y) for x, y in self.given]

    def _placed(self, x: Array, y: Array) -> tuple[Any, Any]:
        values = self._torch.from_numpy(np.ascontiguousarray(x))
        if self.case.has_images:
            values = values.contiguous(memory_format=self._format)
        return values, self._torch.from_numpy(np.ascontiguousarray(y)).flatten()

    def _plain_loss(self, x: Any, y: Any) -> Any:
        scores = self._module(x)
        return self._torch.nn.functional.cross_entropy(scores.flatten(0, -2), y)

    def _step(self, x: Any, y: Any) -> Any:
        loss = self._loss(x, y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss

    def call(self) -> None:
        self._step(*self._batches[self.turn()])

    def losses(self, steps: int) -> list[float]:
        return [self._step(*self._batches[self.turn()]).item() for _ in range(steps)]

    def gradients(self) -> tuple[float, list[Array]]:
        self._optimizer.zero_grad()
        loss = self._loss(*self._batches[0])
        loss.backward()
        found = self._network.gradients()
        self._optimizer.zero_grad()
        return loss.item(), found

    def train(self, x: Array, y: Array) -> None:
        self._step(*self._placed(x, y))

    def predict(self, x: Array) -> Array:
        self._module.eval()
        with self._torch.no_grad():
            scores: Array = self._module(self._torch.from_numpy(x)).numpy()
        self._module.train()
        return scores


class FunctionTask(Task):
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


class UpdateTask(Task):
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


class LoaderTask(Task):
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

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def trainer(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Trainer:
        return TorchTrainer(self.torch, case, dtype, batch, self.options)

    def convolution(self, case: ConvolutionCase) -> Task:
        last = bool(self.options.get("channels_last"))
        form = self.torch.channels_last if last else self.torch.contiguous_format
        x, w, g = (
            self.torch.from_numpy(array).contiguous(memory_format=form)
            for array in case.arrays().values()
        )
        strides, padding, ones = [case.stride] * 2, list(case.padding), [1, 1]
        if case.what == "forward":
            apply = self.torch.nn.functional.conv2d
            return FunctionTask(self.torch, lambda: apply(x, w, stride=strides, padding=padding))
        backward = self.torch.ops.aten.convolution_backward
        wanted = 0 if case.what == "input gradient" else 1
        mask = [wanted == place for place in range(3)]
        return FunctionTask(
            self.torch,
            lambda: backward(g, x, w, None, strides, padding, ones, False, [0, 0], 1, mask)[wanted],
        )

    def product(self, case: ProductCase) -> Task:
        a, b = (self.torch.from_numpy(array) for array in case.arrays().values())
        left = a.T if case.transpose_a else a
        right = b.T if case.transpose_b else b
        return FunctionTask(self.torch, lambda: self.torch.mm(left, right))

    def formula(self, case: FormulaCase) -> Task:
        given = [self.torch.from_numpy(array) for array in case.arrays()]
        functions = self._functions()

        def compute(*values: Any) -> Any:
            return case.formula(functions, *values)

        function = self.torch.compile(compute) if self.options.get("compiled") else compute
        return FunctionTask(self.torch, lambda: function(*given))

    def _functions(self) -> SimpleNamespace:
        torch = self.torch
        return SimpleNamespace(
            exp=torch.exp, tanh=torch.tanh, sigmoid=torch.sigmoid, relu=torch.relu,
            gelu=torch.nn.functional.gelu, softmax=lambda x: torch.softmax(x, -1),
            sum_of_rows=lambda x: torch.sum(x, -1),
        )  # fmt: skip

    def update(self, case: UpdateCase) -> Task:
        return UpdateTask(self.torch, case, self.options["style"])

    def batches(self, case: InputCase) -> Task:
        return LoaderTask(self.torch, case, bool(self.options.get("whole")))


def torch_optimizer(torch: Any, rule: Rule, parameters: Any, style: str) -> Any:
    """A rule as PyTorch's optimizer, in the form that is asked for if it has that."""
    common: dict[str, Any] = {"lr": rule.learning_rate, "weight_decay": rule.weight_decay}
    if rule.name == "rmsprop":
        # It has no fused form.
        return torch.optim.RMSprop(parameters, **common, foreach=style != "fused")
    common |= {"fused": True} if style == "fused" else {"foreach": True}
    if rule.name == "sgd":
        return torch.optim.SGD(parameters, momentum=rule.momentum, **common)
    made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return made[rule.name](parameters, **common)
