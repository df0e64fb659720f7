"""JAX's side: training steps (see `jax_training`) and single computations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.bench.frameworks.base import Array, BenchTask, CustomTask, Framework, Trainer
from caldera.bench.frameworks.custom import JaxCustom
from caldera.bench.frameworks.jax_training import JaxTrainer, jax_rule
from caldera.bench.parts import OperatorPart
from caldera.bench.workloads import (
    ConvolutionCase,
    FormulaCase,
    ProductCase,
    TrainingCase,
    UpdateCase,
)

_MATMUL_PRECISION = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "default"}
"""What JAX calls them; in bfloat16 the factors are rounded before."""


class JaxFunctionTask(BenchTask):
    """A compiled function and what it is applied to."""

    def __init__(self, jax: Any, function: Callable[..., Any], *given: Array) -> None:
        self._jax = jax
        self._function = jax.jit(function)
        self._given = [jax.numpy.asarray(each) for each in given]
        self._last: Any = None

    def call(self) -> None:
        self._last = self._function(*self._given)

    def wait(self) -> None:
        self._jax.block_until_ready(self._last)

    def results(self) -> list[Array]:
        return [np.asarray(self._function(*self._given))]


class JaxUpdateTask(BenchTask):
    """An optimizer's update, written to the memory of the old parameters."""

    def __init__(self, jax: Any, case: UpdateCase) -> None:
        parameters, gradients = case.arrays()
        self._jax = jax
        self._params = [jax.numpy.array(each) for each in parameters]
        self._gradients = [jax.numpy.array(each) for each in gradients]
        create, update = jax_rule(jax, case.rule)
        self._memory = create(self._params)
        self._update = jax.jit(update, donate_argnums=(0, 2))

    def call(self) -> None:
        self._params, self._memory = self._update(self._params, self._gradients, self._memory)

    def wait(self) -> None:
        self._jax.block_until_ready((self._params, self._memory))

    def results(self) -> list[Array]:
        self.call()
        return [np.array(each) for each in self._params]


class JaxFramework(Framework):
    """JAX in one setting."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        self.jax = optional_import("jax", "jax", "caldera bench")
        if self.on_card:
            chosen = _MATMUL_PRECISION[self.precision]
            self.jax.config.update("jax_default_matmul_precision", chosen)
        # So that the time of importing is the framework's, not that of the first step.
        self.jax.devices()

    def versions(self) -> dict[str, str]:
        library = optional_import("jaxlib", "jaxlib", "caldera bench")
        found = {"jax": self.jax.__version__, "jaxlib": library.__version__}
        if self.on_card:
            client = self.jax.devices()[0].client
            found["CUDA of jax"] = " ".join(str(client.platform_version).split())
        return found

    def trainer(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Trainer:
        return JaxTrainer(self.jax, case, dtype, self.batches(case, dtype, batch), self.options)

    def card_peak(self) -> int:
        # It counts from the start of the process, and cannot be told to begin anew.
        stats = self.jax.devices()[0].memory_stats() or {}
        return int(stats.get("peak_bytes_in_use", 0))

    def convolution(self, case: ConvolutionCase) -> BenchTask:
        last = bool(self.options.get("channels_last"))
        lax = self.jax.lax
        names = ("NHWC", "HWIO", "NHWC") if last else ("NCHW", "OIHW", "NCHW")
        x, w, g = case.arrays().values()
        if last:
            x, g = (np.ascontiguousarray(each.transpose(0, 2, 3, 1)) for each in (x, g))
            w = np.ascontiguousarray(w.transpose(2, 3, 1, 0))
        padding = [(amount, amount) for amount in case.padding]

        def forward(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(
                x, w, (case.stride, case.stride), padding, dimension_numbers=names
            )

        def input_gradient(x: Any, w: Any, g: Any) -> Any:
            return self.jax.vjp(lambda given: forward(given, w), x)[1](g)[0]

        def filter_gradient(x: Any, w: Any, g: Any) -> Any:
            return self.jax.vjp(lambda given: forward(x, given), w)[1](g)[0]

        if case.what == "forward":
            task = JaxFunctionTask(self.jax, forward, x, w)
        elif case.what == "input gradient":
            task = JaxFunctionTask(self.jax, input_gradient, x, w, g)
        else:
            task = JaxFunctionTask(self.jax, filter_gradient, x, w, g)
        if not last:
            return task
        back = (3, 2, 0, 1) if case.what == "filter gradient" else (0, 3, 1, 2)
        return _Transposed(task, back)

    def product(self, case: ProductCase) -> BenchTask:
        def multiply(a: Any, b: Any) -> Any:
            left = a.T if case.transpose_a else a
            return left @ (b.T if case.transpose_b else b)

        return JaxFunctionTask(self.jax, multiply, *case.arrays().values())

    def formula(self, case: FormulaCase) -> BenchTask:
        jnp, own = self.jax.numpy, self.jax.nn
        functions = SimpleNamespace(
            exp=jnp.exp,
            tanh=jnp.tanh,
            sigmoid=own.sigmoid,
            relu=own.relu,
            gelu=lambda x: own.gelu(x, approximate=False),
            softmax=lambda x: own.softmax(x, -1),
            sum_of_rows=lambda x: jnp.sum(x, -1),
        )
        return JaxFunctionTask(
            self.jax, lambda *given: case.formula(functions, *given), *case.arrays()
        )

    def update(self, case: UpdateCase) -> BenchTask:
        return JaxUpdateTask(self.jax, case)

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> CustomTask:
        return JaxCustom(self.jax, operator, inputs, seed)


class _Transposed(BenchTask):
    """A task whose result is compared in another order of axes."""

    def __init__(self, task: BenchTask, axes: tuple[int, ...]) -> None:
        self._task = task
        self._axes = axes

    def call(self) -> None:
        self._task.call()

    def wait(self) -> None:
        self._task.wait()

    def results(self) -> list[Array]:
        return [each.transpose(self._axes) for each in self._task.results()]
