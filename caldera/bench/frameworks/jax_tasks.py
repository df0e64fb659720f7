"""JAX as a benchmarked framework: training steps and single operations.

Each step is compiled with jit, or a group of steps as a single lax.scan. In bfloat16 the weights
and all sums over steps stay float32: products read the weights cast, and values between products
are bfloat16.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.bench.frameworks.base import (
    Array,
    Batches,
    BenchTask,
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
from caldera.bench.parts import OperatorPart
from caldera.bench.translate import to_jax
from caldera.bench.workloads import (
    ConvolutionCase,
    FormulaCase,
    ProductCase,
    Rule,
    TrainingCase,
    UpdateCase,
)

_BETA1, _BETA2, _SMOOTHING, _EPSILON = 0.9, 0.999, 0.99, 1e-8


class JaxTrainer(Restartable):
    """Trainer of the translated network; the step maps parameters, states and optimizer state.

    Options: `channels_last`, `scan` (all batches in one call), and `cudnn_attention`.
    """

    def __init__(
        self, jax: Any, case: TrainingCase, dtype: str, given: Batches, options: dict[str, Any]
    ) -> None:
        super().__init__(case, dtype, given)
        if dtype == "float64":
            jax.config.update("jax_enable_x64", True)
        self._jax = jax
        self._model = built(case)
        self._network = to_jax(
            self._model,
            "NHWC" if options.get("channels_last") else "NCHW",
            cudnn_attention=bool(options.get("cudnn_attention")),
        )
        self.held_for_others = held_by(self._model)
        self._create, update = jax_rule(jax, case.rule)
        self.restart()
        half = options.get("precision") == "bfloat16" and dtype == "float32"
        narrow = jax.numpy.bfloat16 if half else None
        put = jax.numpy.asarray
        self._batches = [(put(x), put(y)) for x, y in self.given]
        self._last: Any = None

        def loss_of(params: Any, state: Any, x: Any, y: Any) -> Any:
            scores, new_state = self._network.apply(params, state, x, True, narrow)
            if half:
                scores = scores.astype(jax.numpy.float32)
            logarithms = jax.nn.log_softmax(scores, axis=-1)
            return -jax.numpy.take_along_axis(logarithms, y[..., None], axis=-1).mean(), new_state

        def step(carried: Any, batch: Any) -> Any:
            params, state, memory = carried
            loss_and_gradients = jax.value_and_grad(loss_of, has_aux=True)
            (loss, state), gradients = loss_and_gradients(params, state, *batch)
            params, memory = update(params, gradients, memory)
            return (params, state, memory), loss

        self._loss_and_gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
        self._step = jax.jit(step, donate_argnums=0)
        self._apply = jax.jit(lambda p, s, x: self._network.apply(p, s, x, False)[0])
        self._stretch: Callable[..., Any] | None = None
        if options.get("scan"):
            self.steps_per_call = len(self._batches)
            self._stacked = tuple(
                jax.numpy.stack([each[i] for each in self._batches]) for i in (0, 1)
            )
            self._stretch = jax.jit(
                lambda carried, batches: jax.lax.scan(step, carried, batches), donate_argnums=0
            )

    def restart(self) -> None:
        start = as_dtype(initial_weights(self._model), self.dtype)
        self._params, self._state = self._network.variables(start)
        self._memory = self._create(self._params)
        self._next = 0

    def _carry(self, stepping: Callable[..., Any], batch: Any) -> Any:
        carried, loss = stepping((self._params, self._state, self._memory), batch)
        self._params, self._state, self._memory = carried
        self._last = loss
        return loss

    def call(self) -> None:
        if self._stretch is not None:
            self._carry(self._stretch, self._stacked)
        else:
            self._carry(self._step, self._batches[self.turn()])

    def wait(self) -> None:
        # Wait for all results of the step: the last loss is not the last result to be ready.
        self._jax.block_until_ready((self._last, self._params, self._state, self._memory))

    def losses(self, steps: int) -> list[float]:
        return [float(self._carry(self._step, self._batches[self.turn()])) for _ in range(steps)]

    def gradients(self) -> tuple[float, list[Array]]:
        return self.gradients_at(*self._batches[0])

    def gradients_at(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        put = self._jax.numpy.asarray
        (loss, _), gradients = self._loss_and_gradients(self._params, self._state, put(x), put(y))
        return float(loss), [np.asarray(each) for each in self._network.arrays(gradients)]

    def weights(self) -> list[Array]:
        return [np.array(each) for each in self._network.arrays(self._params)]

    def load(self, weights: Sequence[Array]) -> None:
        self._params, _ = self._network.variables(as_dtype(weights, self.dtype))

    def train(self, x: Array, y: Array) -> None:
        put = self._jax.numpy.asarray
        self._carry(self._step, (put(x), put(y)))

    def predict(self, x: Array) -> Array:
        return np.asarray(self._apply(self._params, self._state, x))


def jax_rule(jax: Any, rule: Rule) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A rule as two functions: the state of parameters, and (parameters, gradients, state) on."""
    jnp, each = jax.numpy, jax.tree.map
    rate, decay = rule.learning_rate, rule.weight_decay

    def zeros(params: Any) -> Any:
        return each(jnp.zeros_like, params)

    def decayed(params: Any, gradients: Any) -> Any:
        return each(lambda p, g: g + decay * p, params, gradients) if decay else gradients

    def sgd(params: Any, gradients: Any, memory: Any) -> Any:
        gradients = decayed(params, gradients)
        if rule.momentum:
            gradients = memory = each(lambda v, g: rule.momentum * v + g, memory, gradients)
        return each(lambda p, g: p - rate * g, params, gradients), memory

    def adam(params: Any, gradients: Any, memory: Any) -> Any:
        step, means, squares = memory
        step = step + 1
        if rule.name == "adamw":
            params = each(lambda p: p * (1 - rate * decay), params)
        else:
            gradients = decayed(params, gradients)
        means = each(lambda m, g: _BETA1 * m + (1 - _BETA1) * g, means, gradients)
        squares = each(lambda s, g: _BETA2 * s + (1 - _BETA2) * g * g, squares, gradients)
        first = -jnp.expm1(step * math.log(_BETA1))
        second = jnp.sqrt(-jnp.expm1(step * math.log(_BETA2)))

        def moved(p: Any, m: Any, s: Any) -> Any:
            size = (rate / first).astype(p.dtype)
            return p - size * m / (jnp.sqrt(s) / second.astype(p.dtype) + _EPSILON)

        return each(moved, params, means, squares), (step, means, squares)

    def rmsprop(params: Any, gradients: Any, memory: Any) -> Any:
        gradients = decayed(params, gradients)
        memory = each(lambda s, g: _SMOOTHING * s + (1 - _SMOOTHING) * g * g, memory, gradients)

        def moved(p: Any, g: Any, s: Any) -> Any:
            return p - rate * g / (jnp.sqrt(s) + _EPSILON)

        return each(moved, params, gradients, memory), memory

    if rule.name == "sgd":
        return (zeros if rule.momentum else lambda params: ()), sgd
    if rule.name == "rmsprop":
        return zeros, rmsprop
    return (lambda params: (jnp.zeros(()), zeros(params), zeros(params))), adam


_MATMUL_PRECISION = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "default"}
"""JAX's names of the precisions; in bfloat16 the factors are rounded beforehand."""


def jitted(
    jax: Any,
    function: Callable[..., Any],
    *given: Array,
    order: tuple[int, ...] | None = None,
) -> FunctionTask:
    """Return a compiled function as a task; its results are compared in another order of axes."""
    run = partial(jax.jit(function), *map(jax.numpy.asarray, given))

    def computed() -> list[Array]:
        found = [np.asarray(each) for each in jax.tree.leaves(run())]
        return found if order is None else [each.transpose(order) for each in found]

    return FunctionTask(run, computed, jax.block_until_ready)


def custom_task(
    jax: Any, operator: OperatorPart, inputs: Sequence[Array], seed: Array
) -> FunctionTask:
    """Return an operator as a `jax.custom_vjp` that calls back to NumPy, inside one jit."""
    if seed.dtype == np.float64:
        jax.config.update("jax_enable_x64", True)
    shape, *shapes = (jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (seed, *inputs))

    def forward(*given: Any) -> Array:
        return np.array(operator.forward(*map(np.asarray, given)), order="C")

    def backward(*given: Any) -> tuple[Array, ...]:
        return tuple(
            np.array(each, order="C") for each in operator.backward(*map(np.asarray, given))
        )

    @jax.custom_vjp
    def apply(*given: Any) -> Any:
        return jax.pure_callback(forward, shape, *given)

    apply.defvjp(
        lambda *given: (apply(*given), given),
        lambda given, slope: jax.pure_callback(backward, tuple(shapes), slope, *given),
    )

    def both(slope: Any, *given: Any) -> Any:
        result, pull_back = jax.vjp(apply, *given)
        return result, pull_back(slope)

    return jitted(jax, both, seed, *inputs)


class JaxFramework(Framework):
    """JAX in one setting."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        # JAX would preallocate three quarters of a GPU's memory, which others need.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self.jax = optional_import("jax", "jax", "caldera bench")
        if self.on_card:
            chosen = _MATMUL_PRECISION[self.precision]
            self.jax.config.update("jax_default_matmul_precision", chosen)
        # Counted as import time of the framework instead of time of the first step. By default
        # JAX computes on a GPU.
        device = self.jax.devices("gpu" if self.on_card else "cpu")[0]
        self.jax.config.update("jax_default_device", device)

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
        # JAX counts the peak from the start of the process, and cannot reset it.
        return int((self.jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))

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

        order = (3, 2, 0, 1) if case.what == "filter gradient" else (0, 3, 1, 2)
        ways: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
            "forward": (forward, (x, w)),
            "input gradient": (input_gradient, (x, w, g)),
            "filter gradient": (filter_gradient, (x, w, g)),
        }
        function, given = ways[case.what]
        return jitted(self.jax, function, *given, order=order if last else None)

    def product(self, case: ProductCase) -> BenchTask:
        def multiply(a: Any, b: Any) -> Any:
            left = a.T if case.transpose_a else a
            return left @ (b.T if case.transpose_b else b)

        return jitted(self.jax, multiply, *case.arrays().values())

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
        return jitted(self.jax, lambda *given: case.formula(functions, *given), *case.arrays())

    def update(self, case: UpdateCase) -> BenchTask:
        array = self.jax.numpy.array
        parameters, gradients = ([array(each) for each in own] for own in case.arrays())
        create, update = jax_rule(self.jax, case.rule)
        # The update is written to the memory of the old parameters.
        step = self.jax.jit(update, donate_argnums=(0, 2))
        held = [parameters, create(parameters)]

        def run() -> list[Any]:
            held[:] = step(held[0], gradients, held[1])
            return held

        ready = self.jax.block_until_ready
        return updating(run, lambda: [np.array(each) for each in held[0]], ready)

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> BenchTask:
        return custom_task(self.jax, operator, inputs, seed)
