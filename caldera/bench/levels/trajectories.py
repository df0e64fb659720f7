"""Levels 1 and 2: networks, optimizers, samplers and batches against their references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from caldera.bench.levels.difference import Difference
from caldera.bench.levels.learner import PROBLEM, REFERENCE, Learner, learner
from caldera.bench.levels.schemes import joined
from caldera.bench.levels.validation import PartValidation
from caldera.bench.parts import Array, OptimizerPart, Sampler

NETWORK, TRAJECTORY = 1e-9, 1e-7
STEPS = 12
EPOCHS = 64
"""Epochs in which a sampler's order is looked at."""
SIGMAS = 6.0


def validate_network(
    network: Learner, against: Learner, batches: Sequence[tuple[Array, Array]], framework: str = ""
) -> PartValidation:
    """Level 1: losses, gradients and predictions beside those of a reference, in float64.

    >>> from caldera.bench.levels.learner import learner
    >>> validate_network(learner("reference"), learner("reference"), PROBLEM.data("float64")).passes
    True
    """
    found = PartValidation("network", framework or type(network).__name__)
    with found.running():
        start = [np.array(each) for each in against.weights()]
        network.load(start)
        same = Difference.of(network.weights(), start)
        found.add_difference("weights are those that were loaded", same, 0)
        random = np.random.default_rng(0)
        for number, (x, y) in enumerate(batches):
            # Other weights for every batch: those of before must be forgotten.
            weights = [each + 0.05 * random.standard_normal(each.shape) for each in start]
            network.load(weights)
            against.load(weights)
            loss, gradients = network.gradients_at(x, y)
            expected, true = against.gradients_at(x, y)
            apart = Difference.of(gradients, true)
            found.add(
                f"loss of batch {number}", abs(loss - expected) / max(1.0, abs(expected)), NETWORK
            )
            found.add_difference(f"gradients of batch {number}", apart, NETWORK)
            found.add(f"gradients of batch {number} (L2)", apart.l2, NETWORK)
            scores = Difference.of([network.predict(x)], [against.predict(x)])
            found.add_difference(f"predictions of batch {number}", scores, NETWORK)
        x, y = batches[0]
        cut = len(x) // 3
        whole = joined(network.gradients_at(x, y)[1])
        parts = [
            joined(network.gradients_at(x[a:b], y[a:b])[1]) * (b - a) / len(x)
            for a, b in ((0, cut), (cut, len(x)))
        ]
        micro = Difference.of([parts[0] + parts[1]], [whole])
        found.add_difference("micro-batches add up to the batch", micro, NETWORK)
    return found


def trajectory(
    network: Learner, optimizer: OptimizerPart, batches: Sequence[tuple[Array, Array]], steps: int
) -> list[list[Array]]:
    """The weights after each step."""
    weights = network.weights()
    found = []
    for step in range(1, steps + 1):
        network.load(weights)
        _, gradients = network.gradients_at(*batches[(step - 1) % len(batches)])
        weights = [
            np.asarray(optimizer.update(number, weight, gradient, step))
            for number, (weight, gradient) in enumerate(zip(weights, gradients, strict=True))
        ]
        found.append([each.copy() for each in weights])
    return found


def validate_optimizer(
    make: Callable[[], OptimizerPart],
    against: Callable[[], OptimizerPart],
    *,
    framework: str = REFERENCE,
    steps: int = STEPS,
    tolerance: float = TRAJECTORY,
) -> PartValidation:
    """Level 2: the weights of an optimizer after every step beside those of a reference.

    >>> from caldera.bench.levels.reference import ReferenceSGD
    >>> validate_optimizer(lambda: ReferenceSGD(0.1), lambda: ReferenceSGD(0.1)).passes
    True
    """
    optimizer = make()
    found = PartValidation(type(optimizer).__name__, framework)
    with found.running():
        _check_manners(found, make())
        batches = PROBLEM.data("float64")
        start = learner(framework).weights()
        network = learner(framework)
        mine = trajectory(network, optimizer, batches, steps)
        network.load(start)
        theirs = trajectory(network, against(), batches, steps)
        for step, (got, expected) in enumerate(zip(mine, theirs, strict=True), start=1):
            apart = Difference.of(got, expected)
            found.add_difference(f"weights after step {step}", apart, tolerance)
            if not found.passes:
                break
        network.load(start)
        again = trajectory(network, make(), batches, 2)
        fresh = max(Difference.of(a, b).largest for a, b in zip(again, mine, strict=False))
        found.add("a new optimizer begins anew", fresh, 0)
    return found


def _check_manners(found: PartValidation, optimizer: OptimizerPart) -> None:
    weight, gradient = np.linspace(-1, 1, 6).reshape(2, 3), np.linspace(0.5, -2, 6).reshape(2, 3)
    kept = weight.copy(), gradient.copy()
    new = np.asarray(optimizer.update(0, weight, gradient, 1))
    changed = not (np.array_equal(weight, kept[0]) and np.array_equal(gradient, kept[1]))
    found.add("weights and gradients are left alone", float(changed), 0)
    found.add("new weights have their shape", float(new.shape != (2, 3)), 0, str(new.shape))
    found.add("new weights are finite", float(not np.isfinite(new).all()), 0)


def validate_sampler(
    make: Callable[[], Sampler], *, samples: int = 50, batch: int = 8, framework: str = REFERENCE
) -> PartValidation:
    """Level 2: every sample once in an epoch, in batches of the right size, in a fair order.

    >>> from caldera.bench.levels.reference import Shuffled
    >>> validate_sampler(lambda: Shuffled(0)).passes
    True
    """
    sampler = make()
    found = PartValidation(type(sampler).__name__, framework)
    with found.running():
        orders = []
        wanted = [batch] * (samples // batch) + ([samples % batch] if samples % batch else [])
        for number in range(EPOCHS):
            batches = [np.asarray(each) for each in sampler.epoch(samples, batch, number)]
            order = np.concatenate(batches) if batches else np.zeros(0, int)
            orders.append(order)
            if number < 3:
                missing = sorted(set(range(samples)) - set(order.tolist()))
                found.add(f"samples left out of epoch {number}", len(missing), 0, str(missing[:5]))
                extra = len(order) - len(set(order.tolist()))
                found.add(f"samples repeated in epoch {number}", extra, 0)
                outside = int(((order < 0) | (order >= samples)).sum())
                found.add(f"indices outside in epoch {number}", outside, 0)
                sizes = [len(each) for each in batches]
                found.add("batches of the size asked for", float(sizes != wanted), 0, str(sizes))
        again = np.concatenate([np.asarray(each) for each in make().epoch(samples, batch, 1)])
        found.add("the same seed, the same order", float(not np.array_equal(again, orders[1])), 0)
        if found.passes and sampler.shuffles:
            _check_order(found, np.array(orders), samples)
    return found


def _check_order(found: PartValidation, orders: Array, samples: int) -> None:
    """Every sample comes early as often as late, and epochs differ."""
    equal = sum(np.array_equal(a, b) for a, b in pairwise(orders))
    found.add("epochs in the same order", equal, 0)
    places = np.argsort(orders, axis=1)
    deviation = np.sqrt((samples**2 - 1) / 12 / len(orders))
    mean = np.abs(places.mean(0) - (samples - 1) / 2).max() / deviation
    found.add("a sample's mean place, in standard deviations", float(mean), SIGMAS)
    together = (np.diff(orders, axis=1) == 1).mean() * samples
    spread = SIGMAS / np.sqrt(len(orders)) + 1.0
    found.add("neighbours that stay neighbours in an epoch", float(together), float(spread))


def validate_batches(
    batches: Iterable[tuple[Array, Array]], x: Array, y: Array, framework: str = REFERENCE
) -> PartValidation:
    """Level 2: an epoch of a data pipeline has every sample once, with its own label.

    >>> x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 2])
    >>> validate_batches([(x[:2], y[:2]), (x[2:], y[2:])], x, y).passes
    True
    """
    found = PartValidation("batches", framework)
    wanted: dict[bytes, int] = {}
    for sample, label in zip(x, y, strict=True):
        wanted[_key(sample, label)] = wanted.get(_key(sample, label), 0) + 1
    known = {np.ascontiguousarray(sample, np.float64).tobytes() for sample in x}
    unknown = mislabelled = repeated = 0
    for values, labels in batches:
        for sample, label in zip(values, labels, strict=True):
            key = _key(sample, label)
            if key not in wanted:
                is_known = np.ascontiguousarray(sample, np.float64).tobytes() in known
                mislabelled += is_known
                unknown += not is_known
            else:
                wanted[key] -= 1
                repeated += wanted[key] < 0
    found.add("samples dropped", sum(max(0, each) for each in wanted.values()), 0)
    found.add("samples repeated", repeated, 0)
    found.add("samples with another's label", mislabelled, 0)
    found.add("samples that nobody gave", unknown, 0)
    return found


def _key(sample: Array, label: Array) -> bytes:
    return np.ascontiguousarray(sample, np.float64).tobytes() + np.int64(label).tobytes()
