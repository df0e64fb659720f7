"""Validation of networks, optimizers, samplers and compressions (levels 1 to 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from caldera.base.arguments import shown
from caldera.bench.levels.learner import PROBLEM, REFERENCE, Learner, learner
from caldera.bench.levels.schemes import Alone, joined, stepped
from caldera.bench.levels.validation import Difference, PartValidation
from caldera.bench.parts import Array, CompressionPart, OptimizerPart, Sampler
from caldera.comm import SingleProcess
from caldera.errors import ConfigError

NETWORK, TRAJECTORY = 1e-9, 1e-7
STEPS = 12
EPOCHS = 64  # of a sampler, whose order is compared
SIGMAS = 6.0


def validate_network(
    network: Learner, against: Learner, batches: Sequence[tuple[Array, Array]], framework: str = ""
) -> PartValidation:
    """Level 1: compare losses, gradients and predictions with a reference's, in float64.

    >>> from caldera.bench.levels.learner import learner
    >>> validate_network(learner("reference"), learner("reference"), PROBLEM.data("float64")).passes
    True
    """
    found = PartValidation("network", framework or type(network).__name__)
    with found.running():
        start = [np.array(each) for each in against.weights()]
        network.load(start)
        found.add_difference("weights equal the loaded ones", network.weights(), start, 0)
        random = np.random.default_rng(0)
        for number, (x, y) in enumerate(batches):
            # Other weights for every batch: the previous weights must have no effect.
            weights = [each + 0.05 * random.standard_normal(each.shape) for each in start]
            network.load(weights)
            against.load(weights)
            loss, gradients = network.gradients_at(x, y)
            expected, true = against.gradients_at(x, y)
            found.add(
                f"loss of batch {number}", abs(loss - expected) / max(1.0, abs(expected)), NETWORK
            )
            apart = found.add_difference(f"gradients of batch {number}", gradients, true, NETWORK)
            found.add(f"gradients of batch {number} (L2)", apart.l2, NETWORK)
            found.add_difference(
                f"predictions of batch {number}",
                [network.predict(x)],
                [against.predict(x)],
                NETWORK,
            )
        x, y = batches[0]
        cut = len(x) // 3
        whole = joined(network.gradients_at(x, y)[1])
        parts = [
            joined(network.gradients_at(x[a:b], y[a:b])[1]) * (b - a) / len(x)
            for a, b in ((0, cut), (cut, len(x)))
        ]
        found.add_difference(
            "micro-batches add up to the batch", [parts[0] + parts[1]], [whole], NETWORK
        )
    return found


def trajectory(
    network: Learner, optimizer: OptimizerPart, batches: Sequence[tuple[Array, Array]], steps: int
) -> list[list[Array]]:
    """Return the weights after each step."""
    weights = network.weights()
    found = []
    for step in range(1, steps + 1):
        batch = batches[(step - 1) % len(batches)]
        _, weights = stepped(
            network, weights, optimizer, Alone(), SingleProcess(), batch, 1.0, step
        )
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
    """Level 2: compare an optimizer's weights with a reference's after every step.

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
            found.add_difference(f"weights after step {step}", got, expected, tolerance)
            if not found.passes:
                break
        network.load(start)
        again = trajectory(network, make(), batches, 2)
        fresh = max(Difference.of(a, b).largest for a, b in zip(again, mine, strict=False))
        found.add("a new optimizer starts from its initial state", fresh, 0)
    return found


def _check_manners(found: PartValidation, optimizer: OptimizerPart) -> None:
    weight, gradient = np.linspace(-1, 1, 6).reshape(2, 3), np.linspace(0.5, -2, 6).reshape(2, 3)
    kept = weight.copy(), gradient.copy()
    new = np.asarray(optimizer.update(0, weight, gradient, 1))
    changed = not (np.array_equal(weight, kept[0]) and np.array_equal(gradient, kept[1]))
    found.add_all(
        ("weights and gradients are unchanged", float(changed), 0),
        ("new weights have their shape", float(new.shape != (2, 3)), 0, str(new.shape)),
        ("new weights are finite", float(not np.isfinite(new).all()), 0),
    )


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
                known, sizes = set(order.tolist()), [len(each) for each in batches]
                missing = sorted(set(range(samples)) - known)
                outside = int(((order < 0) | (order >= samples)).sum())
                found.add_all(
                    (f"samples left out of epoch {number}", len(missing), 0, str(missing[:5])),
                    (f"samples repeated in epoch {number}", len(order) - len(known), 0),
                    (f"indices outside in epoch {number}", outside, 0),
                    ("batches of the size asked for", float(sizes != wanted), 0, str(sizes)),
                )
        again = np.concatenate([np.asarray(each) for each in make().epoch(samples, batch, 1)])
        found.add("the same seed, the same order", float(not np.array_equal(again, orders[1])), 0)
        if found.passes and sampler.shuffles:
            _check_order(found, np.array(orders), samples)
    return found


def _check_order(found: PartValidation, orders: Array, samples: int) -> None:
    """Check that positions of samples are uniform over epochs, and that epochs differ."""
    found.add("epochs in the same order", sum(np.array_equal(a, b) for a, b in pairwise(orders)), 0)
    places = np.argsort(orders, axis=1)
    deviation = np.sqrt((samples**2 - 1) / 12 / len(orders))
    mean = np.abs(places.mean(0) - (samples - 1) / 2).max() / deviation
    together = (np.diff(orders, axis=1) == 1).mean() * samples
    spread = SIGMAS / np.sqrt(len(orders)) + 1.0
    found.add_all(
        ("a sample's mean place, in standard deviations", float(mean), SIGMAS),
        ("neighbours that stay neighbours in an epoch", float(together), float(spread)),
    )


def validate_batches(
    batches: Iterable[tuple[Array, Array]], x: Array, y: Array, framework: str = REFERENCE
) -> PartValidation:
    """Level 2: an epoch of a data pipeline has every sample once, with its own label.

    >>> x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 2])
    >>> validate_batches([(x[:2], y[:2]), (x[2:], y[2:])], x, y).passes
    True
    """
    if not _has_rows(x) or not _has_rows(y) or len(x) != len(y):
        raise ConfigError.build(
            "validate_batches",
            expected="arrays x and y with a row each for every sample",
            got=f"{shown(x)} and {shown(y)}",
        )
    found = PartValidation("batches", framework)
    wanted: dict[bytes, int] = {}
    for sample, label in zip(x, y, strict=True):
        wanted[_key(sample, label)] = wanted.get(_key(sample, label), 0) + 1
    known = {np.ascontiguousarray(sample, np.float64).tobytes() for sample in x}
    unknown = mislabelled = repeated = 0
    with found.running():
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
    found.add_all(
        ("samples dropped", sum(max(0, each) for each in wanted.values()), 0),
        ("samples repeated", repeated, 0),
        ("samples with the label of another sample", mislabelled, 0),
        ("samples absent from the source", unknown, 0),
    )
    return found


def _has_rows(value: object) -> bool:
    """True for an array of numbers that has rows."""
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "biuf"


def _key(sample: Array, label: Array) -> bytes:
    return (
        np.ascontiguousarray(sample, np.float64).tobytes() + np.asarray(label, np.int64).tobytes()
    )


DRAWS = 160
NEAR = 0.05


def validate_compression(
    make: Callable[[], CompressionPart], *, seed: int = 0, framework: str = REFERENCE
) -> PartValidation:
    """Level 3: check that messages are shorter and lose no more than allowed.

    The messages of an unbiased compression have the gradient as their mean. A compression with
    feedback sends the whole gradient eventually.

    >>> from caldera.bench.levels.reference import ReferenceTopK
    >>> validate_compression(lambda: ReferenceTopK(0.1)).passes
    True
    """
    compression = make()
    found = PartValidation(type(compression).__name__, framework)
    with found.running():
        random = np.random.default_rng(seed)
        values = random.standard_normal(257) * np.exp(random.standard_normal(257))
        kept = values.copy()
        message = np.asarray(compression.encode(values))
        got = np.asarray(compression.decode(message, values.size))
        found.add_all(
            ("the gradient is unchanged", float(not np.array_equal(values, kept)), 0),
            ("the number of elements is unchanged", abs(got.size - values.size), 0),
            ("bytes of a message relative to float32", message.nbytes / (4 * values.size), 1.0),
            ("numbers are finite", float(not np.isfinite(got).all()), 0),
        )
        if not found.passes:
            return found
        zero = compression.decode(compression.encode(np.zeros(64)), 64)
        found.add("zeros from zeros", float(np.abs(zero).max()), 0)
        twice = np.asarray(make().decode(make().encode(2.0 * kept), values.size))
        first = np.asarray(make().decode(make().encode(kept), values.size))
        scale = Difference.of([twice], [2.0 * first]).largest
        flipped = float(((np.sign(got) * np.sign(kept)) < 0).sum())
        found.add_all(
            ("twice the gradient, twice the message", scale, 1e-5),
            ("numbers whose sign is turned", flipped, 0),
        )
        if compression.unbiased:
            _check_bias(found, compression, kept)
        else:
            lost = float(np.linalg.norm(kept - got) / np.linalg.norm(kept))
            found.add("share of the norm that is lost", lost, 1.0 - 1e-6)
        if compression.feedback:
            _check_feedback(found, make(), kept)
    return found


def _check_bias(found: PartValidation, compression: CompressionPart, values: Array) -> None:
    count = values.size
    drawn = np.stack([compression.decode(compression.encode(values), count) for _ in range(DRAWS)])
    error = drawn.std(0, ddof=1) / np.sqrt(DRAWS) + 1e-6 * np.abs(values).max()
    # Rare messages are seen too seldom for their spread to be known.
    floor = np.median(error)
    bias = np.abs(drawn.mean(0) - values) / np.maximum(error, floor)
    total = abs(float((drawn.mean(0) - values) @ values))
    allowed = SIGMAS * float(np.sqrt(((error * values) ** 2).sum()))
    found.add_all(
        ("bias, in standard errors", float(bias.max()), SIGMAS, f"number {int(bias.argmax())}"),
        ("bias along the gradient", total, allowed),
    )


def _check_feedback(found: PartValidation, compression: CompressionPart, values: Array) -> None:
    """Check that omitted values are sent later: the mean of messages converges to the gradient."""
    left = np.zeros_like(values)
    total = np.zeros_like(values)
    apart = []
    for step in range(1, 2 * DRAWS + 1):
        wanted = values + left
        got = compression.decode(compression.encode(wanted), values.size)
        left = wanted - got
        total += got
        if step % DRAWS == 0:
            apart.append(float(np.linalg.norm(total / step - values) / np.linalg.norm(values)))
    first, second = apart
    # Twice the number of messages halves the distance, unless it is small already.
    ratio = 0.0 if second < NEAR else second / first
    found.add("omitted values are sent later", ratio, 0.75, f"{first:.2f}, then {second:.2f} away")
