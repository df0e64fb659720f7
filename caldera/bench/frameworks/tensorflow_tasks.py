"""TensorFlow's side: training steps inside tf.function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from caldera.bench.frameworks.base import (
    Array,
    Batches,
    Framework,
    Trainer,
    as_dtype,
    built,
    held_by,
    initial_weights,
)
from caldera.bench.translate import to_tensorflow
from caldera.bench.workloads import TrainingCase
from caldera.optional import optional_import

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


class TensorFlowTrainer(Trainer):
    """The translated network and one compiled function for the whole step."""

    def __init__(self, tf: Any, case: TrainingCase, dtype: str, given: Batches) -> None:
        super().__init__(case, dtype, given)
        self._tf = tf
        model = built(case, dtype)
        self._network = to_tensorflow(model)
        self._network.load(as_dtype(initial_weights(built(case)), dtype))
        self.held_for_others = held_by(model)
        self._update = self._rule()
        self._batches = [(tf.constant(x), tf.constant(y)) for x, y in self.given]
        self._step = tf.function(self._plain_step)
        self._apply = tf.function(lambda x: self._network(x, training=False))

    def _loss_and_slopes(self, x: Any, y: Any) -> tuple[Any, list[Any]]:
        tf = self._tf
        with tf.GradientTape() as tape:
            scores = self._network(x, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores)
            loss = tf.reduce_mean(each)
        return loss, tape.gradient(loss, self._network.variables)

    def _plain_step(self, x: Any, y: Any) -> Any:
        loss, slopes = self._loss_and_slopes(x, y)
        for number, (variable, slope) in enumerate(
            zip(self._network.variables, slopes, strict=True)
        ):
            self._update(number, variable, self._tf.convert_to_tensor(slope))
        return loss

    def _rule(self) -> Callable[[int, Any, Any], None]:
        tf, rule = self._tf, self.case.rule
        variables = self._network.variables

        def zeros() -> list[Any]:
            return [tf.Variable(tf.zeros_like(each), trainable=False) for each in variables]

        def decayed(variable: Any, slope: Any) -> Any:
            return slope + rule.weight_decay * variable if rule.weight_decay else slope

        if rule.name == "sgd":
            velocities = zeros() if rule.momentum else []

            def sgd(number: int, variable: Any, slope: Any) -> None:
                slope = decayed(variable, slope)
                if rule.momentum:
                    slope = velocities[number].assign(rule.momentum * velocities[number] + slope)
                variable.assign_sub(rule.learning_rate * slope)

            return sgd
        means, squares = zeros(), zeros()
        steps = [tf.Variable(0.0, dtype="float64", trainable=False) for _ in variables]

        def adam(number: int, variable: Any, slope: Any) -> None:
            slope = decayed(variable, slope)
            step = steps[number].assign_add(1.0)
            mean = means[number].assign(_BETA1 * means[number] + (1 - _BETA1) * slope)
            square = squares[number].assign(
                _BETA2 * squares[number] + (1 - _BETA2) * tf.square(slope)
            )
            first = tf.cast(-tf.math.expm1(step * math.log(_BETA1)), variable.dtype)
            second = tf.cast(tf.sqrt(-tf.math.expm1(step * math.log(_BETA2))), variable.dtype)
            size = tf.sqrt(square) / second + _EPSILON
            variable.assign_sub(rule.learning_rate / first * mean / size)

        return adam

    def call(self) -> None:
        self._step(*self._batches[self.turn()])

    def losses(self, steps: int) -> list[float]:
        return [float(self._step(*self._batches[self.turn()])) for _ in range(steps)]

    def gradients(self) -> tuple[float, list[Array]]:
        loss, slopes = self._loss_and_slopes(*self._batches[0])
        return float(loss), self._network.arrays(slopes)

    def train(self, x: Array, y: Array) -> None:
        self._step(self._tf.constant(x), self._tf.constant(y))

    def predict(self, x: Array) -> Array:
        return np.asarray(self._apply(self._tf.constant(x)))


class TensorFlowFramework(Framework):
    """TensorFlow, for training networks."""

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        super().__init__(options, threads)
        self.tf = optional_import("tensorflow", "tensorflow", "caldera bench")
        self.tf.config.threading.set_intra_op_parallelism_threads(threads)

    def versions(self) -> dict[str, str]:
        return {"tensorflow": self.tf.__version__}

    def trainer(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Trainer:
        return TensorFlowTrainer(self.tf, case, dtype, self.batches(case, dtype, batch))
