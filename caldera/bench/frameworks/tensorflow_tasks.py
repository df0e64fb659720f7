"""TensorFlow as a benchmarked framework on the CPU: networks of dense layers, single operations.

Each step is a `tf.function`, compiled by XLA where the options have `xla`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from caldera import nn
from caldera.base.registry import optional_import
from caldera.bench.frameworks.base import (
    Array,
    Batches,
    BenchTask,
    Framework,
    FunctionTask,
    Trainer,
    as_dtype,
    built,
    held_by,
    initial_weights,
    updating,
)
from caldera.bench.parts import OperatorPart
from caldera.bench.workloads import (
    Case,
    ConvolutionCase,
    FormulaCase,
    LearningCase,
    ProductCase,
    Rule,
    TrainingCase,
    UpdateCase,
)
from caldera.errors import ConfigError

_ACTIVATIONS = ("relu", "sigmoid", "tanh", "gelu", "softmax")
_PLAIN = (nn.Input, nn.Output, nn.Flatten)
_BETA1, _BETA2, _SMOOTHING, _EPSILON = 0.9, 0.999, 0.99, 1e-8


def runs(case: Case) -> bool:
    """Return True if TensorFlow has a case.

    >>> from caldera.bench.workloads import WORKLOADS
    >>> [runs(WORKLOADS[name].cases[0]) for name in ("mlp", "lenet5")]
    [True, False]
    """
    if isinstance(case, LearningCase):
        return not case.scheme and runs(case.network)
    if isinstance(case, TrainingCase):
        return all(_activation(layer) is not None for layer in case.layers())
    return isinstance(case, ConvolutionCase | FormulaCase | ProductCase | UpdateCase)


def _activation(layer: nn.Layer) -> str | None:
    """Return the name of the function after a layer, "" for none, None for an unknown layer."""
    name = layer.activation if isinstance(layer, nn.Dense) else getattr(layer, "kind", None)
    if not isinstance(layer, (nn.Dense, nn.Activation, *_PLAIN)):
        return None
    if name in (None, "linear"):
        return ""
    return name if name in _ACTIVATIONS else None


class TensorFlowTrainer(Trainer):
    """Trainer of the translated network."""

    def __init__(
        self, tf: Any, case: TrainingCase, dtype: str, given: Batches, options: Mapping[str, Any]
    ) -> None:
        super().__init__(case, dtype, given)
        self._tf = tf
        model = built(case)
        self.held_for_others = held_by(model)
        layers = model.network.layers
        self._weights = [tf.Variable(w) for w in as_dtype(initial_weights(model), dtype)]
        self._batches = [(tf.constant(x), tf.constant(y)) for x, y in given]
        self._last: Any = None

        def scores_of(x: Any) -> Any:
            weights = iter(self._weights)
            for layer in layers:
                if isinstance(layer, nn.Flatten):
                    x = tf.reshape(x, (tf.shape(x)[0], -1))
                elif isinstance(layer, nn.Dense):
                    x = x @ next(weights)
                    x = x if layer.offset is None else x + next(weights)
                name = _activation(layer)
                x = getattr(tf.nn, name)(x) if name else x
            return x

        def loss_and_gradients(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores_of(x))
                loss = tf.reduce_mean(losses)
            return loss, tape.gradient(loss, self._weights)

        update = tensorflow_rule(tf, case.rule, self._weights)

        def step(x: Any, y: Any) -> Any:
            loss, gradients = loss_and_gradients(x, y)
            update(gradients)
            return loss

        compiled = partial(tf.function, jit_compile=bool(options.get("xla")))
        self._step, self._scores = compiled(step), compiled(scores_of)
        self._loss_and_gradients = compiled(loss_and_gradients)

    def call(self) -> None:
        self._last = self._step(*self._batches[self.turn()])

    def wait(self) -> None:
        if self._last is not None:
            self._last.numpy()

    def losses(self, steps: int) -> list[float]:
        return [float(self._step(*self._batches[self.turn()])) for _ in range(steps)]

    def gradients(self) -> tuple[float, list[Array]]:
        return self.gradients_at(*self.given[0])

    def gradients_at(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        loss, gradients = self._loss_and_gradients(*map(self._tf.constant, (x, y)))
        return float(loss), [each.numpy() for each in gradients]

    def weights(self) -> list[Array]:
        return [each.numpy() for each in self._weights]

    def load(self, weights: Sequence[Array]) -> None:
        for variable, values in zip(self._weights, as_dtype(weights, self.dtype), strict=True):
            variable.assign(values)

    def train(self, x: Array, y: Array) -> None:
        self._last = self._step(*map(self._tf.constant, (x, y)))

    def predict(self, x: Array) -> Array:
        scores: Array = self._scores(self._tf.constant(x, self.dtype)).numpy()
        return scores


def tensorflow_rule(tf: Any, rule: Rule, weights: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
    """Return a function that updates the weights from their gradients."""
    rate, decay = rule.learning_rate, rule.weight_decay
    steps = tf.Variable(0.0, dtype=tf.float64)
    kept = [[tf.Variable(tf.zeros_like(each)) for each in weights] for _ in range(2)]

    def step_of(w: Any, g: Any, mean: Any, square: Any) -> Any:
        if rule.name == "sgd":
            return rate * (mean.assign(rule.momentum * mean + g) if rule.momentum else g)
        if rule.name == "rmsprop":
            square.assign(_SMOOTHING * square + (1.0 - _SMOOTHING) * g * g)
            return rate * g / (tf.sqrt(square) + _EPSILON)
        mean.assign(_BETA1 * mean + (1.0 - _BETA1) * g)
        square.assign(_BETA2 * square + (1.0 - _BETA2) * g * g)
        first, second = (tf.cast(1.0 - beta**steps, w.dtype) for beta in (_BETA1, _BETA2))
        return rate / first * mean / (tf.sqrt(square / second) + _EPSILON)

    def update(gradients: Sequence[Any]) -> None:
        steps.assign_add(1.0)
        for w, g, mean, square in zip(weights, gradients, *kept, strict=True):
            if decay and rule.name == "adamw":
                w.assign(w * (1.0 - rate * decay))
            elif decay:
                g = g + decay * w
            w.assign_sub(step_of(w, g, mean, square))

    return update


class TensorFlowFramework(Framework):
    """TensorFlow in one setting."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        if self.on_card:
            raise ConfigError.build("TensorFlow", expected='device "cpu"', got=repr(self.device))
        self.tf = optional_import("tensorflow", "tensorflow-cpu", "caldera bench")
        # Both are fixed once the first operation has run.
        if self.tf.config.threading.get_intra_op_parallelism_threads() == 0:
            self.tf.config.threading.set_intra_op_parallelism_threads(threads)
            self.tf.config.threading.set_inter_op_parallelism_threads(1)
            self.tf.config.set_visible_devices([], "GPU")

    def versions(self) -> dict[str, str]:
        return {"tensorflow": self.tf.__version__}

    def trainer(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Trainer:
        given = self.batches(case, dtype, batch)
        return TensorFlowTrainer(self.tf, case, dtype, given, self.options)

    def _compiled(
        self, function: Callable[..., Any], arrays: Mapping[str, Array] | Sequence[Array]
    ) -> BenchTask:
        given = arrays.values() if isinstance(arrays, Mapping) else arrays
        run = partial(self.tf.function(function), *map(self.tf.constant, given))
        return FunctionTask(run, lambda: [run().numpy()], lambda found: found.numpy())

    def convolution(self, case: ConvolutionCase) -> BenchTask:
        tf = self.tf
        sides = [(0, 0), *((amount, amount) for amount in case.padding), (0, 0)]
        x, w, g = (tf.constant(each) for each in case.arrays().values())
        x, g = (tf.transpose(each, (0, 2, 3, 1)) for each in (x, g))
        w = tf.transpose(w, (2, 3, 1, 0))
        settings = {"strides": case.stride, "padding": sides}
        sized = {"strides": [1, case.stride, case.stride, 1]}
        explicit = {"padding": "EXPLICIT", "explicit_paddings": np.ravel(sides).tolist()}
        ways: dict[str, Callable[[], Any]] = {
            "forward": lambda: tf.nn.conv2d(x, w, **settings),
            "input gradient": lambda: tf.raw_ops.Conv2DBackpropInput(
                input_sizes=x.shape, filter=w, out_backprop=g, **sized, **explicit
            ),
            "filter gradient": lambda: tf.raw_ops.Conv2DBackpropFilter(
                input=x, filter_sizes=w.shape, out_backprop=g, **sized, **explicit
            ),
        }
        order = (3, 2, 0, 1) if case.what == "filter gradient" else (0, 3, 1, 2)
        run = tf.function(ways[case.what])
        return FunctionTask(
            run, lambda: [run().numpy().transpose(order)], lambda found: found.numpy()
        )

    def product(self, case: ProductCase) -> BenchTask:
        def multiply(a: Any, b: Any) -> Any:
            return self.tf.matmul(a, b, transpose_a=case.transpose_a, transpose_b=case.transpose_b)

        return self._compiled(multiply, case.arrays())

    def formula(self, case: FormulaCase) -> BenchTask:
        tf = self.tf
        functions = SimpleNamespace(
            exp=tf.exp,
            tanh=tf.tanh,
            sigmoid=tf.sigmoid,
            relu=tf.nn.relu,
            gelu=partial(tf.nn.gelu, approximate=False),
            softmax=tf.nn.softmax,
            sum_of_rows=partial(tf.reduce_sum, axis=-1),
        )
        return self._compiled(lambda *given: case.formula(functions, *given), case.arrays())

    def update(self, case: UpdateCase) -> BenchTask:
        parameters, gradients = case.arrays()
        weights = [self.tf.Variable(each) for each in parameters]
        given = [self.tf.constant(each) for each in gradients]
        rule = tensorflow_rule(self.tf, case.rule, weights)
        run = self.tf.function(lambda: rule(given))
        return updating(run, lambda: [each.numpy() for each in weights])

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> BenchTask:
        tf = self.tf
        given = [tf.constant(each) for each in inputs]

        @tf.custom_gradient
        def apply(*values: Any) -> Any:
            def gradient(slope: Any) -> Any:
                kinds = [each.dtype for each in values]
                return tf.numpy_function(operator.backward, [slope, *values], kinds)

            return tf.numpy_function(operator.forward, values, seed.dtype), gradient

        def both() -> list[Any]:
            with tf.GradientTape() as tape:
                tape.watch(given)
                result = apply(*given)
            return [result, *tape.gradient(result, given, tf.constant(seed))]

        run = tf.function(both)
        return FunctionTask(run, lambda: [each.numpy() for each in run()])
