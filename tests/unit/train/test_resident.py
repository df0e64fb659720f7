"""Training on a device with memory of its own: what it holds, and the results of the CPU."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn, optim
from caldera.base.config import settings
from caldera.core.memory import device
from caldera.data import ArrayData, IterableData, Loader, Share
from caldera.train.fit import make_steps
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork
from caldera.train.resident import resident
from tests.unit.train.apart import APART, assert_same
from tests.unit.train.small import classifier, points, same_bits, values


def images(count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 256, (count, 3, 8, 8)).astype("uint8")
    return x, generator.integers(0, 4, count)


def image_network(**settings: Any) -> NeuralNetwork:
    layers = [
        nn.Input((3, 8, 8)),
        nn.Conv2D(4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Dense(4),
    ]
    return NeuralNetwork(layers, **{"batch_size": 8, "seed": 5, **settings})


# --- the same results


@pytest.mark.parametrize(
    ("batch_size", "fraction"), [(8, 1.0), (10, 1.0), (50, 1.0), (64, 1.0), (8, 0.0), (64, 0.0)]
)
def test_a_network_learns_what_it_does_on_the_cpu(batch_size: int, fraction: float) -> None:
    with settings.override(resident_fraction=fraction, memory_limit=1 << 40):
        assert_same(
            lambda **s: classifier(batch_size=batch_size, **s), points(), validation=points(21, 1)
        )


def test_the_order_may_be_that_of_the_data() -> None:
    assert_same(classifier, points(), shuffle=False)


def test_the_batch_size_may_change_between_epochs() -> None:
    def network(**settings: Any) -> NeuralNetwork:
        return classifier(batch_size=optim.GrowingBatch(4, factor=2, every=1), **settings)

    assert_same(network, points(), epochs=4)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_rank_fetches_its_own_part(ranks: int) -> None:
    x, y = images(23)
    given = data.Pipeline((x, y), [data.Crop(8, padding=2), data.Mirror()])
    model = image_network(device=APART)
    for rank in range(ranks):
        source = resident(model, given)
        assert source is not None
        fed, fetched = (Loader(given, 5, seed=3, rank=rank, ranks=ranks) for _ in range(2))
        plans: dict[Any, Any] = {}
        for _ in range(2):
            for batch, share in zip(fed, source.epoch(fetched), strict=True):
                assert isinstance(share, Share)
                key = source.key(share)
                if key not in plans:
                    values = source.values(share)
                    outputs = [
                        values.of("x0", (len(share), 3, 8, 8), "float32"),
                        values.of("y0", (len(share),), "int64"),
                    ]
                    wanted = [*outputs, *values.updates]
                    plans[key] = cd.compile(wanted, device=APART, remember=False)
                found = [each.numpy() for each in plans[key].run()]
                np.testing.assert_array_equal(found[0], batch.x)
                np.testing.assert_array_equal(found[1], batch.y)
        assert len(plans) == 2


def test_a_subset_is_as_good_as_a_whole() -> None:
    train, test = data.split(points(60), test=0.25)
    assert_same(classifier, train, validation=test)


def test_training_goes_on_where_it_ended() -> None:
    here, there = classifier(device="cpu"), classifier(device=APART)
    for model in (here, there):
        model.fit(points(), epochs=1, verbose=0)
        model.fit(points(40, 1), epochs=2, batch_size=6, verbose=0)
    assert same_bits(values(here), values(there))


def test_samples_and_classes_may_count_differently() -> None:
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 50)
    assert_same(classifier, points(), sample_weights=weights, class_weights=[3.0, 0.5])


@pytest.mark.parametrize(
    ("stages", "fraction"),
    [
        ([], 1.0),
        (data.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)), 0.0),
        ([data.Crop(8, padding=2), data.Mirror(), data.Cutout(3)], 1.0),
        ([data.Mirror(), data.Normalise(0.5, 0.25), data.Cutout(2)], 1.0),
        ([data.Mirror(), data.Normalise(0.5, 0.25), data.Cutout(2)], 0.0),
        ([data.Rotate(30), data.Colour(0.2, 0.2, 0.2), data.SubtractMean([0.4, 0.5, 0.6])], 1.0),
        ([data.Rotate(30), data.Colour(0.2, 0.2, 0.2), data.SubtractMean([0.4, 0.5, 0.6])], 0.0),
    ],
)
def test_images_are_changed_on_the_device_as_on_the_host(stages: Any, fraction: float) -> None:
    with settings.override(resident_fraction=fraction, memory_limit=1 << 40):
        assert_same(image_network, data.Pipeline(images(), stages))


@pytest.mark.parametrize(("fraction", "batch_size"), [(1.0, 15), (0.0, 8)])
def test_samples_are_mixed_on_the_device_as_on_the_host(fraction: float, batch_size: int) -> None:
    def network(**options: Any) -> NeuralNetwork:
        return image_network(
            loss=nn.losses.CrossEntropy(probabilities=True), batch_size=batch_size, **options
        )

    stages = [data.OneHot(4), data.Mirror(), data.Mixup(0.5)]
    with settings.override(resident_fraction=fraction, memory_limit=1 << 40):
        assert_same(network, data.Pipeline(images(), stages))


def test_bytes_stay_bytes_where_floats_would_not_fit() -> None:
    x, y = images()
    tight = ArrayData(x, y)
    room = x.nbytes + y.nbytes + 8 * len(x)
    with settings.override(memory_limit=1 << 30, resident_fraction=room / (1 << 30)):
        found = resident(image_network(device=APART), tight)
        assert found is not None
        assert found._staged
        assert_same(image_network, tight)


def test_several_inputs_and_outputs() -> None:
    class Two(Model):
        def __init__(self, **settings: Any) -> None:
            super().__init__(loss={"a": "mse", "b": "cross_entropy"}, batch_size=8, **settings)
            self.left, self.right, self.last = nn.Dense(3), nn.Dense(3), nn.Dense(2)

        def forward(self, x: Any, z: Any) -> dict[str, Any]:
            both = self.left(x) + self.right(z)
            return {"a": both, "b": self.last(both)}

    x, y = points()
    z = np.random.default_rng(4).normal(size=(50, 5))
    assert_same(Two, (x, z, np.tile(x[:, :1], (1, 3)), y))


def test_a_stream_is_fed() -> None:
    x, y = points()

    def samples() -> Any:
        return zip(x, y, strict=True)

    assert_same(classifier, IterableData(samples))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision(precision: str) -> None:
    assert_same(lambda **s: classifier(precision=precision, **s), points())


def test_targets_of_another_shape_are_refused_as_on_the_cpu() -> None:
    x, _ = points()
    for where in ("cpu", APART):
        model = NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse", device=where)
        with pytest.raises(cd.ShapeError, match=r"expected targets of shape \(1,\) for each"):
            model.fit((x, x), verbose=0)


def test_a_missing_target_is_named() -> None:
    class Three(Model):
        def __init__(self) -> None:
            losses = dict.fromkeys("abc", "mse")
            super().__init__(loss=losses, device=APART)
            self.layer = nn.Dense(2)

        def forward(self, x: Any) -> dict[str, Any]:
            return dict.fromkeys("abc", self.layer(x))

    x, _ = points()
    with pytest.raises(cd.DataError, match=r"an array for each of the 3 losses.* got 2"):
        Three().fit((x, x, x), verbose=0)


# --- what is on the device


def test_data_at_the_limit_are_resident_and_beyond_it_are_not() -> None:
    x, y = points()
    model = classifier(device=APART)
    needed = x.nbytes + y.nbytes + 8 * len(x)
    limit = 1 << 30
    given = ArrayData(x, y)
    with settings.override(memory_limit=limit, resident_fraction=needed / limit):
        assert resident(model, given) is not None
    with settings.override(memory_limit=limit, resident_fraction=(needed - 1) / limit):
        assert resident(model, given) is None


def test_nothing_is_resident_on_the_cpu() -> None:
    assert resident(classifier(device="cpu"), ArrayData(*points())) is None


def test_what_only_the_host_can_do_is_done_there() -> None:
    class Shift(data.Transform):
        def __call__(self, x: Any, draw: Any) -> Any:
            return x + draw.uniform(len(x))

    class Own(ArrayData):
        pass

    x, y = points()
    model = classifier(device=APART)
    assert resident(model, data.Pipeline((x, y), [data.Normalise(0.0, 1.0), Shift()])) is None
    assert resident(model, data.Pipeline((x, y), lambda x, draw: x)) is None
    assert resident(model, Own(x, y)) is None
    assert_same(classifier, data.Pipeline((x, y), Shift()))


def test_a_step_reads_the_data_by_rows_alone() -> None:
    """Nothing may be computed from all samples in each step."""
    x, y = images(64)
    model = image_network(device=APART)
    given = data.Pipeline((x, y), [data.Crop(8, padding=2), data.Normalise(0.5, 0.25)])
    source = resident(model, given)
    assert source is not None
    steps = make_steps(model, given, source=source)
    whole = {tensor.shape for tensor in source._held.values()} | {(64,)}
    for step in steps.training(8).schedule.steps:
        sizes = {spec.shape for spec in step.node.outputs}
        assert not sizes & whole or step.node.op.name == "gather", step.node
    assert {name: tensor.kind for name, tensor in source._held.items()} == {
        "x0": cd.DEVICE,
        "y0": cd.DEVICE,
    }
    assert source._held["x0"].dtype == np.uint8


def test_data_leave_the_device_with_the_run() -> None:
    where = device(APART)
    classifier(device=where).fit(points(), epochs=1, verbose=0)
    gc.collect()
    assert not [owner for owner in where.pool.report() if owner.startswith("data ")]
