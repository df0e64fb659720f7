"""Lean reference implementations: the thing to compare with, simple to read and to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from caldera.bench.parts import Array, CompressionPart, OperatorPart, OptimizerPart, Sampler

# --- operators


class Linear(OperatorPart):
    """x @ w + b.

    >>> Linear().forward(np.ones((1, 2)), np.ones((2, 1)), np.zeros(1))
    array([[2.]])
    """

    def forward(self, *inputs: Array) -> Array:
        x, w, b = inputs
        return x @ w + b

    def backward(self, gradient: Array, *inputs: Array) -> Sequence[Array]:
        x, w, _ = inputs
        return [gradient @ w.T, x.T @ gradient, gradient.sum(0)]

    def flops(self, *inputs: Array) -> float:
        x, w, _ = inputs
        return 2.0 * x.shape[0] * w.size


class ReferenceSoftmax(OperatorPart):
    """Softmax: exp(x) divided by its sum along the last axis.

    >>> ReferenceSoftmax().forward(np.zeros((1, 2)))
    array([[0.5, 0.5]])
    """

    def forward(self, *inputs: Array) -> Array:
        (x,) = inputs
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    def backward(self, gradient: Array, *inputs: Array) -> Sequence[Array]:
        y = self.forward(*inputs)
        return [y * (gradient - (gradient * y).sum(-1, keepdims=True))]

    def flops(self, *inputs: Array) -> float:
        return 4.0 * inputs[0].size


# --- optimizers


class ReferenceSGD(OptimizerPart):
    """w - rate * v with v = momentum * v + g.

    >>> ReferenceSGD(0.1).update(0, np.array([1.0]), np.array([1.0]), 1)
    array([0.9])
    """

    def __init__(self, rate: float, momentum: float = 0.0) -> None:
        self.rate, self.momentum = rate, momentum
        self._velocity: dict[int, Array] = {}

    def update(self, number: int, weight: Array, gradient: Array, step: int) -> Array:
        velocity = self.momentum * self._velocity.get(number, np.zeros_like(weight)) + gradient
        self._velocity[number] = velocity
        return weight - self.rate * velocity


class ReferenceAdam(OptimizerPart):
    """Adam as in its paper, with both corrections.

    >>> ReferenceAdam(0.1).update(0, np.array([1.0]), np.array([1.0]), 1).round(6)
    array([0.9])
    """

    def __init__(self, rate: float, first: float = 0.9, second: float = 0.999) -> None:
        self.rate, self.betas, self.epsilon = rate, (first, second), 1e-8
        self._moments: dict[int, tuple[Array, Array]] = {}

    def update(self, number: int, weight: Array, gradient: Array, step: int) -> Array:
        first, second = self.betas
        zeros = np.zeros_like(weight)
        m, s = self._moments.get(number, (zeros, zeros))
        m = first * m + (1 - first) * gradient
        s = second * s + (1 - second) * gradient**2
        self._moments[number] = m, s
        mean, square = m / (1 - first**step), s / (1 - second**step)
        return weight - self.rate * mean / (np.sqrt(square) + self.epsilon)


# --- samplers


class Shuffled(Sampler):
    """Every sample once in an epoch, in an order that the seed and the epoch's number give.

    >>> sorted(np.concatenate(list(Shuffled(0).epoch(5, 2, 0))).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def epoch(self, samples: int, batch: int, number: int) -> Iterator[Array]:
        order = np.random.default_rng((self.seed, number)).permutation(samples)
        for start in range(0, samples, batch):
            yield order[start : start + batch]


# --- compressions


class ReferenceTopK(CompressionPart):
    """The largest values and their positions; the remaining values are sent later.

    >>> ReferenceTopK(0.25).decode(ReferenceTopK(0.25).encode(np.array([1.0, -5.0, 2.0, 0.5])), 4)
    array([ 0., -5.,  0.,  0.])
    """

    def __init__(self, share: float) -> None:
        self.share = share

    def encode(self, values: Array) -> Array:
        kept = max(1, round(self.share * values.size))
        places = np.argpartition(np.abs(values), values.size - kept)[-kept:].astype(np.int32)
        return np.concatenate([places, values[places].astype(np.float32).view(np.int32)])

    def decode(self, message: Array, count: int) -> Array:
        places, chosen = np.split(message, 2)
        found = np.zeros(count)
        found[places] = chosen.view(np.float32)
        return found


class Quantized(CompressionPart):
    """QSGD: values are rounded at random to `levels` fractions of the norm; the mean is unbiased.

    >>> Quantized(4).decode(Quantized(4).encode(np.array([0.0, 2.0])), 2)
    array([0., 2.])
    """

    unbiased, feedback = True, False

    def __init__(self, levels: int = 8, seed: int = 0) -> None:
        self.levels = levels
        self._random = np.random.default_rng(seed)

    def encode(self, values: Array) -> Array:
        norm = np.float32(np.linalg.norm(values))
        sizes = np.abs(values) / max(float(norm), 1e-30) * self.levels
        lower = np.floor(sizes)
        rounded = lower + (self._random.random(values.shape) < sizes - lower)
        signed = (np.sign(values) * rounded).astype(np.int8)
        return np.concatenate([np.array([norm]).view(np.int8), signed])

    def decode(self, message: Array, count: int) -> Array:
        norm = float(message[:4].copy().view(np.float32)[0])
        return message[4:].astype(np.float64) * (norm / self.levels)


SGD, Adam, Softmax, TopK = ReferenceSGD, ReferenceAdam, ReferenceSoftmax, ReferenceTopK
"""Public names."""
