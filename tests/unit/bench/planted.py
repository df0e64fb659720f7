"""Parts with an error planted in each: what validation must find.

By a few words about the error: a function that validates the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from caldera.bench import levels
from caldera.bench.levels import reference, schemes
from caldera.bench.levels.learner import PROBLEM, Perceptron
from caldera.bench.levels.schemes import joined, parted

Planted = Callable[[], levels.Validation]
PLANTED: dict[str, Planted] = {}


def planted(about: str) -> Callable[[Planted], Planted]:
    def add(function: Planted) -> Planted:
        assert about not in PLANTED
        PLANTED[about] = function
        return function

    return add


def linear_inputs(seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(shape) for shape in ((5, 4), (4, 3), (3,))]


# --- level 0


def operator(base: type[levels.Operator], inputs: Any, **methods: Any) -> Planted:
    made = type("Broken", (base,), methods)
    return lambda: levels.validate_operator(made(), inputs(), against=base())


def _slopes(change: Callable[[list[np.ndarray], np.ndarray, tuple[np.ndarray, ...]], Any]) -> Any:
    def backward(self: Any, gradient: np.ndarray, *inputs: np.ndarray) -> Any:
        right = list(reference.Linear().backward(gradient, *inputs))
        return change(right, gradient, inputs)

    return backward


def _forward(change: Callable[..., Any]) -> Any:
    return lambda self, *inputs: change(reference.Linear().forward(*inputs), *inputs)


def _in_place(y: np.ndarray, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    x += 1.0
    return y


_calls = iter(range(1 << 30))
LINEAR: dict[str, dict[str, Any]] = {
    "a gradient with the wrong sign": {"backward": _slopes(lambda r, g, i: [r[0], -r[1], r[2]])},
    "a gradient twice too large": {"backward": _slopes(lambda r, g, i: [2 * r[0], *r[1:]])},
    "a gradient that is a little wrong": {
        "backward": _slopes(lambda r, g, i: [r[0], r[1] * 1.0001, r[2]])
    },
    "a gradient that is wrong at one place": {
        "backward": _slopes(lambda r, g, i: [r[0] + 0.1 * np.eye(5, 4, 2), *r[1:]])
    },
    "a bias gradient that is a mean, not a sum": {
        "backward": _slopes(lambda r, g, i: [r[0], r[1], g.mean(0)])
    },
    "a gradient that is missing": {"backward": _slopes(lambda r, g, i: r[:2])},
    "a gradient of a wrong shape": {"backward": _slopes(lambda r, g, i: [r[0], r[1].T, r[2]])},
    "a gradient that forgets the one that came": {
        "backward": _slopes(lambda r, g, i: reference.Linear().backward(np.ones_like(g), *i))
    },
    "a result that leaves out the bias": {"forward": _forward(lambda y, x, w, b: x @ w)},
    "an input that is changed": {"forward": _forward(_in_place)},
    "a result that is another at every call": {"forward": _forward(lambda y, *i: y + next(_calls))},
    "a result in float64 from float32": {
        "forward": _forward(lambda y, *i: y.astype(np.float64)),
    },
    "a result with nan": {"forward": _forward(lambda y, *i: np.where(y > 1e9, y, np.nan))},
}
for _about, _methods in LINEAR.items():
    PLANTED[_about] = operator(reference.Linear, linear_inputs, **_methods)


@planted("a softmax that overflows in float32")
def _() -> levels.Validation:
    class Softmax(reference.ReferenceSoftmax):
        def forward(self, *inputs: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore", invalid="ignore"):
                powers = np.exp(inputs[0])
                return powers / powers.sum(-1, keepdims=True)

    return levels.validate_operator(Softmax(), [np.array([[90.0, 1.0, 89.5]])])


# --- level 1


def network(**methods: Any) -> Planted:
    made = type("Broken", (Perceptron,), methods)

    def validate() -> levels.Validation:
        start = levels.learner("reference")
        return levels.validate_network(made(start.weights()), start, PROBLEM.data("float64")[:3])

    return validate


def _stale(self: Any, weights: Any) -> None:
    # Loads once, and then goes on with what it had.
    if not hasattr(self, "_weights"):
        Perceptron.load(self, weights)


def _gradients(change: Callable[..., Any]) -> Any:
    return lambda self, x, y: change(*Perceptron.gradients_at(self, x, y), x, y)


NETWORKS: dict[str, dict[str, Any]] = {
    "stale weights": {"load": _stale},
    "a layer whose gradient is forgotten": {
        "gradients_at": _gradients(lambda loss, g, x, y: (loss, [0 * g[0], *g[1:]]))
    },
    "gradients of two layers exchanged": {
        "gradients_at": _gradients(lambda loss, g, x, y: (loss, [g[0], g[3], *g[2:]]))
    },
    "a loss that is a sum, not a mean": {
        "gradients_at": _gradients(lambda loss, g, x, y: (loss * len(x), [e * len(x) for e in g]))
    },
    "a loss that is right beside gradients of float16": {
        "gradients_at": _gradients(lambda loss, g, x, y: (loss, [e.astype("float16") for e in g]))
    },
    "predictions with the bias left out": {
        "predict": lambda self, x: Perceptron.predict(self, x) - self._weights[-1]
    },
    "a last sample that is dropped": {
        "gradients_at": lambda self, x, y: Perceptron.gradients_at(self, x[:-1], y[:-1])
    },
}
for _about, _methods in NETWORKS.items():
    PLANTED[_about] = network(**_methods)


# --- level 2


def optimizer(make: Callable[[], Any], against: Callable[[], Any]) -> Planted:
    return lambda: levels.validate_optimizer(make, against)


class _Broken(reference.ReferenceSGD):
    """Momentum with one mistake, chosen by its name."""

    shared: ClassVar[dict[int, np.ndarray]] = {}

    def __init__(self, mistake: str) -> None:
        super().__init__(0.1, 0.9)
        self.mistake = mistake
        if mistake == "state of others":
            self._velocity = self.shared

    def update(self, number: int, weight: np.ndarray, gradient: np.ndarray, step: int) -> Any:
        if self.mistake == "stale":
            before = self._velocity.get(-1 - number, gradient)
            self._velocity[-1 - number] = gradient
            return super().update(number, weight, before, step)
        if self.mistake == "one state":
            self._velocity[number] = self._velocity.get(0, np.zeros(1)).mean() + 0 * weight
        if self.mistake == "in place":
            gradient *= 1.0 + 1e-9
        if self.mistake == "skips":
            return weight if step % 5 == 0 else super().update(number, weight, gradient, step)
        if self.mistake == "nesterov":
            new = super().update(number, weight, gradient, step)
            return new - 0.1 * 0.9 * (self._velocity[number] - gradient)
        return super().update(number, weight, gradient, step)


def _momentum() -> reference.ReferenceSGD:
    return reference.ReferenceSGD(0.1, 0.9)


for _about, _mistake in {
    "an optimizer that uses the gradient before": "stale",
    "an optimizer that mixes the states of weights": "one state",
    "an optimizer that changes gradients": "in place",
    "an optimizer that leaves out a step": "skips",
    "an optimizer that is another one": "nesterov",
    "an optimizer that keeps the state of a run before": "state of others",
}.items():
    PLANTED[_about] = optimizer(lambda m=_mistake: _Broken(m), _momentum)  # type: ignore[misc]


class _AdamWithoutCorrection(reference.ReferenceAdam):
    def update(self, number: int, weight: np.ndarray, gradient: np.ndarray, step: int) -> Any:
        return super().update(number, weight, gradient, step + 100_000)


def _adam() -> reference.ReferenceAdam:
    return reference.ReferenceAdam(0.01)


PLANTED["an optimizer with a wrong constant"] = optimizer(
    lambda: reference.ReferenceAdam(0.01, second=0.99), _adam
)
PLANTED["an optimizer with a wrong rate"] = optimizer(
    lambda: reference.ReferenceSGD(0.1001, 0.9), _momentum
)
PLANTED["Adam without its corrections"] = optimizer(lambda: _AdamWithoutCorrection(0.01), _adam)


def sampler(change: Callable[[list[np.ndarray], int, int], Any], shuffles: bool = True) -> Planted:
    class Broken(reference.Shuffled):
        def epoch(self, samples: int, batch: int, number: int) -> Iterator[np.ndarray]:
            yield from change(list(super().epoch(samples, batch, number)), samples, number)

    return lambda: levels.validate_sampler(Broken)


def _by_order(order: np.ndarray) -> list[np.ndarray]:
    return np.split(order, range(8, len(order), 8))


PLANTED["a sampler that drops a sample"] = sampler(lambda b, n, e: [*b[:-1], b[-1][:-1]])
PLANTED["a sampler that drops the last batch"] = sampler(lambda b, n, e: b[:-1])
PLANTED["a batch that repeats"] = sampler(lambda b, n, e: [b[0], b[0], *b[2:]])
PLANTED["a sampler that draws with replacement"] = sampler(
    lambda b, n, e: _by_order(np.random.default_rng(e).integers(0, n, n))
)
PLANTED["a sampler with an index too large"] = sampler(lambda b, n, e: [each + 1 for each in b])
PLANTED["a sampler that never shuffles"] = sampler(lambda b, n, e: _by_order(np.arange(n)))
PLANTED["a sampler with the same order in every epoch"] = sampler(
    lambda b, n, e: _by_order(np.random.default_rng(1).permutation(n))
)
PLANTED["a sampler that only shuffles batches"] = sampler(
    lambda b, n, e: [
        _by_order(np.arange(n))[i] for i in (*np.random.default_rng(e).permutation(n // 8), n // 8)
    ]
)
PLANTED["a sampler that no seed repeats"] = sampler(
    lambda b, n, e: _by_order(np.random.default_rng().permutation(n))
)


def pipeline(change: Callable[[np.ndarray, np.ndarray], Any]) -> Planted:
    def validate() -> levels.Validation:
        draw = np.random.default_rng(0)
        x, y = draw.standard_normal((20, 3)), draw.integers(0, 5, 20)
        return levels.validate_batches(change(x, y), x, y)

    return validate


PLANTED["labels that are shifted by one"] = pipeline(lambda x, y: [(x, np.roll(y, 1))])
PLANTED["a pipeline that drops a sample"] = pipeline(
    lambda x, y: [(x[:9], y[:9]), (x[10:], y[10:])]
)
PLANTED["a pipeline that gives a batch twice"] = pipeline(lambda x, y: [(x, y), (x[:4], y[:4])])
PLANTED["a buffer that is filled before it was read"] = pipeline(
    lambda x, y: [(x[10:], y[:10]), (x[10:], y[10:])]
)


# --- level 3


def compression(base: Any, **methods: Any) -> Planted:
    made = type("Broken", (base,), methods)
    return lambda: levels.validate_compression(
        lambda: made(0.1) if base is reference.ReferenceTopK else made(8)
    )


class _RoundsDown(reference.Quantized):
    def encode(self, values: np.ndarray) -> np.ndarray:
        norm = np.float32(np.linalg.norm(values))
        levels_of = np.trunc(values / max(float(norm), 1e-30) * self.levels).astype(np.int8)
        return np.concatenate([np.array([norm]).view(np.int8), levels_of])


PLANTED["a quantisation that always rounds down"] = lambda: levels.validate_compression(
    lambda: _RoundsDown(8)
)
PLANTED["a quantisation with a wrong scale"] = compression(
    reference.Quantized,
    decode=lambda self, m, count: 1.1 * reference.Quantized.decode(self, m, count),
)
PLANTED["a compression that turns signs"] = compression(
    reference.ReferenceTopK,
    decode=lambda self, m, count: -reference.ReferenceTopK.decode(self, m, count),
)
PLANTED["a compression that keeps the smallest"] = compression(
    reference.ReferenceTopK,
    encode=lambda self, v: reference.ReferenceTopK.encode(
        self, 1e-9 * np.sign(v) * (np.abs(v) > 9)
    ),
)
PLANTED["a compression that sends everything"] = compression(
    reference.ReferenceTopK, encode=lambda self, v: np.concatenate([v, v])
)
PLANTED["a compression that changes the gradient"] = compression(
    reference.ReferenceTopK,
    encode=lambda self, v: (v.sort(), reference.ReferenceTopK.encode(self, v))[1],
)


class _Forgetful(schemes.AllReduce):
    """Gradients of all ranks, with one mistake."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self._before: list[np.ndarray] | None = None

    def gradients(self, communicator: Any, gradients: list[np.ndarray]) -> list[np.ndarray]:
        rank, size = communicator.rank, communicator.size
        if self.mistake == "forgets a rank":
            gradients = [each * (rank != 1) for each in gradients]
        if self.mistake == "forgets a layer":
            return [*super().gradients(communicator, gradients[:-1]), gradients[-1]]
        if self.mistake == "counts one twice":
            gradients = [each * (1 + (rank == 2)) for each in gradients]
        if self.mistake == "mean of means":
            # As if all ranks had equally many samples: 8, 8 and 7 of 23.
            part = 23 / 3 / (8 if rank < 2 else 7)
            gradients = [each * part for each in gradients]
        if self.mistake == "divides again":
            return [each / size for each in super().gradients(communicator, gradients)]
        if self.mistake == "one step late":
            now, self._before = (
                self._before or gradients,
                super().gradients(communicator, gradients),
            )
            return now if now is not gradients else self._before
        if self.mistake == "half":
            halves = super().gradients(communicator, [e.astype("float16") for e in gradients])
            return [each.astype("float64") for each in halves]
        if self.mistake == "shuffles parts":
            total = joined(super().gradients(communicator, gradients))
            return parted(np.roll(total, 1), gradients)
        if self.mistake == "nobody told":
            return [each * size for each in gradients]
        return super().gradients(communicator, gradients)


for _about, _mistake in {
    "a collective that forgets a rank": "forgets a rank",
    "a collective that forgets a layer": "forgets a layer",
    "a collective that counts a rank twice": "counts one twice",
    "ranks of unequal shares that are averaged as equal": "mean of means",
    "a mean that is divided twice": "divides again",
    "gradients that are a step late": "one step late",
    "gradients summed in half precision": "half",
    "a buffer that is taken apart wrongly": "shuffles parts",
    "ranks that do not exchange anything": "nobody told",
}.items():
    PLANTED[_about] = lambda m=_mistake: levels.validate_scheme(  # type: ignore[misc]
        lambda: _Forgetful(m)
    )


class _AveragesWrongly(schemes.Averaging):
    def weights(self, communicator: Any, weights: list[np.ndarray], step: int) -> Any:
        found = super().weights(communicator, weights, step)
        return found if step % self.period else [1.05 * each for each in found]


PLANTED["an average of weights that grows"] = lambda: levels.validate_scheme(
    lambda: _AveragesWrongly(4)
)
PLANTED["weights that are never averaged"] = lambda: levels.validate_scheme(
    lambda: schemes.Averaging(1 << 20)
)
