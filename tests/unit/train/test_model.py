"""Models: lists of layers and classes with a forward of their own, trained, evaluated, used."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim


def blobs(count: int = 240, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around `classes` centres, and their classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    angles = 2 * np.pi * labels / classes
    centres = 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = centres + generator.normal(size=(count, 2))
    return points.astype("float32"), labels


def classifier(**settings: object) -> cd.NeuralNetwork:
    given = {"learning_rate": 0.02, "batch_size": 32, "epochs": 8} | settings
    return cd.NeuralNetwork(
        [nn.Input((2,)), nn.Dense(16, activation="relu"), nn.Dropout(0.1), nn.Dense(3)], **given
    )


# --- training


def test_a_network_learns() -> None:
    x, y = blobs()
    model = classifier()
    history = model.fit((x, y), validation=blobs(seed=1), verbose=0)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["val_accuracy"][-1] > 0.85
    found = model.evaluate(blobs(seed=1))
    assert found["accuracy"] == pytest.approx(history["val_accuracy"][-1])
    assert found["loss"] == pytest.approx(history["val_loss"][-1])


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights(seed: int) -> list[np.ndarray]:
        model = classifier(seed=seed, epochs=2)
        model.fit(blobs(), verbose=0)
        return [p.numpy() for p in model.parameters()]

    first, again, other = weights(3), weights(3), weights(4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_another_fit_goes_on_with_new_orders_and_new_masks() -> None:
    def trained(*runs: int) -> tuple[list[np.ndarray], cd.NeuralNetwork]:
        model = classifier(optimizer="adam")
        for epochs in runs:
            model.fit(blobs(), epochs=epochs, verbose=0)
        return [p.numpy() for p in model.parameters()], model

    whole, one = trained(4)
    parts, two = trained(1, 3)
    assert all(np.array_equal(a, b) for a, b in zip(whole, parts, strict=True))
    assert one.epochs_done == two.epochs_done == 4


def test_the_mean_loss_counts_every_sample_once() -> None:
    """The last batch is smaller, and must not count as much as a full one."""
    x, y = blobs(count=70)
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)], batch_size=32)
    logits = model.predict(x).astype("float64")
    shifted = logits - logits.max(axis=1, keepdims=True)
    per_sample = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    found = model.evaluate((x, y))
    assert found["loss"] == pytest.approx(per_sample.mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(axis=1) == y).mean())


def test_a_step_is_the_published_rule() -> None:
    """One step of gradient descent on a linear model, against NumPy."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(8, 3)), generator.normal(size=(8, 2))
    model = cd.NeuralNetwork(
        [nn.Input((3,)), nn.Dense(2)],
        loss="mean_squared",
        optimizer="sgd",
        learning_rate=0.1,
        batch_size=8,
        dtype="float64",
    )
    w, b = (p.numpy() for p in model.parameters())
    error = x @ w + b - y
    model.fit((x, y), epochs=1, verbose=0)
    np.testing.assert_allclose(
        model.parameters()[0].numpy(), w - 0.1 * 2 * x.T @ error / error.size, rtol=1e-12
    )
    np.testing.assert_allclose(
        model.parameters()[1].numpy(), b - 0.1 * 2 * error.sum(0) / error.size, rtol=1e-12
    )


def test_frozen_layers_do_not_change() -> None:
    model = classifier()
    first = model.network.layers[1]
    first.freeze()
    before = [p.numpy() for p in model.parameters()]
    model.fit(blobs(), epochs=1, verbose=0)
    after = [p.numpy() for p in model.parameters()]
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_shared_layer_has_one_set_of_parameters() -> None:
    shared = nn.Dense(4)
    model = cd.NeuralNetwork([nn.Input((4,)), shared, nn.ReLU(), shared])
    assert len(model.parameters()) == 2
    assert model.predict(np.ones((2, 4), "float32")).shape == (2, 4)


def test_sample_weights_of_zero_are_as_if_the_samples_were_not_there() -> None:
    x, y = blobs(count=64)
    spoiled = np.where(np.arange(64) < 32, y, (y + 1) % 3)
    weights = np.where(np.arange(64) < 32, 1.0, 0.0)

    def trained(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        model = cd.NeuralNetwork(
            [nn.Input((2,)), nn.Dense(3)],
            optimizer="sgd",
            learning_rate=0.5,
            batch_size=len(x),
            dtype="float64",
        )
        model.fit((x, y), epochs=3, shuffle=False, sample_weights=weights, verbose=0)
        return model.parameters()[0].numpy()

    np.testing.assert_allclose(
        trained(x, spoiled, weights), trained(x[:32], y[:32], None), rtol=1e-10
    )


def test_class_weights_weigh_the_samples_of_a_class() -> None:
    x, y = blobs(count=64)

    def trained(**weights: object) -> np.ndarray:
        model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)], seed=1, dtype="float64")
        model.fit((x, y), epochs=2, verbose=0, **weights)
        return model.parameters()[0].numpy()

    by_class = trained(class_weights={0: 3.0, 2: 0.5})
    by_sample = trained(sample_weights=np.array([3.0, 1.0, 0.5])[y])
    np.testing.assert_allclose(by_class, by_sample, rtol=1e-12)
    assert not np.allclose(by_class, trained())
    # Classes that nothing is said about count once, wherever they lie.
    np.testing.assert_allclose(
        trained(class_weights={0: 3.0}), trained(sample_weights=np.array([3.0, 1.0, 1.0])[y])
    )
    with pytest.raises(cd.DataError, match=r"class_weights for 3 classes.* got 2; a dict"):
        trained(class_weights=[3.0, 1.0])


def test_growing_batches_and_shrinking_rates() -> None:
    model = classifier(
        optimizer=optim.SGD(optim.ReduceOnPlateau(0.5, factor=0.5, patience=0, threshold=1.0)),
        batch_size=optim.GrowingBatch(16, factor=2, every=1),
        learning_rate=None,
    )
    sizes: list[int] = []

    class Watch(cd.Callback):
        def epoch_begins(self, run: cd.Run) -> None:
            sizes.append(run.loader.batch_size)

    model.fit(blobs(), epochs=3, callbacks=[Watch()], verbose=0)
    assert sizes == [16, 32, 64]
    assert model.optimizer.learning_rate.numpy() < 0.5


# --- models with a forward of their own


class TwoHeads(cd.Model):
    def __init__(self) -> None:
        super().__init__(
            loss={"label": "cross_entropy", "norm": "mean_squared"},
            loss_weights={"norm": 0.1},
            learning_rate=0.02,
        )
        self.body = nn.Dense(16, activation="tanh")
        self.label = nn.Dense(3)
        self.norm = nn.Dense(1)

    def forward(self, x: cd.Expr) -> dict[str, cd.Expr]:
        h = self.body(x)
        return {"label": self.label(h), "norm": self.norm(h)}


def test_several_outputs_with_weighted_losses() -> None:
    x, y = blobs()
    norms = np.linalg.norm(x, axis=1, keepdims=True).astype("float32")
    model = TwoHeads()
    history = model.fit((x, y, norms), validation=(x, y, norms), epochs=8, verbose=0)
    assert history["accuracy"][-1] > 0.8
    assert history["val_accuracy"][-1] > 0.8
    assert sorted(p.name for p in model.parameters())[0] == "body/bias"
    assert model.predict(x).shape == (len(x), 3)


def test_auxiliary_heads_share_the_targets() -> None:
    class Auxiliary(cd.Model):
        def __init__(self) -> None:
            super().__init__(
                loss={"main": "cross_entropy", "aux": "cross_entropy"}, loss_weights={"aux": 0.3}
            )
            self.main, self.aux = nn.Dense(3), nn.Dense(3)

        def forward(self, x: cd.Expr) -> dict[str, cd.Expr] | cd.Expr:
            outputs = {"main": self.main(x)}
            if nn.context().training:
                outputs["aux"] = self.aux(x)
            return outputs

    model = Auxiliary()
    x, y = blobs()
    model.build_for(x)
    model.fit((x, y), epochs=2, validation=(x, y), verbose=0)
    assert set(model.evaluate((x, y))) == {"loss", "accuracy"}


def test_several_inputs() -> None:
    class Sum(cd.Model):
        def __init__(self) -> None:
            super().__init__(loss="mean_squared", learning_rate=0.05)
            self.left, self.right = nn.Dense(1), nn.Dense(1)

        def forward(self, a: cd.Expr, b: cd.Expr) -> cd.Expr:
            return self.left(a) + self.right(b)

    generator = np.random.default_rng(0)
    a = generator.normal(size=(128, 2)).astype("float32")
    b = generator.normal(size=(128, 3)).astype("float32")
    target = (a.sum(1) - b.sum(1))[:, None]
    model = Sum()
    history = model.fit((a, b, target), epochs=20, verbose=0)
    assert history["loss"][-1] < 0.1 * history["loss"][0]
    assert model.predict(a, b).shape == (128, 1)
    np.testing.assert_array_equal(model.predict((a, b)), model.predict(a, b))


def test_a_training_step_of_your_own() -> None:
    """Layers are functions of expressions, so a step can be written by hand in a dozen lines."""
    x, y = blobs(count=96)
    net = nn.Sequential([nn.Dense(16), nn.BatchNorm(), nn.ReLU(), nn.Dense(3)])
    points = op.input("x", x.shape)
    labels = op.input("y", y.shape, dtype="int64")
    with nn.trace(training=True) as traced:
        logits = net(points)
    loss = op.cross_entropy(logits, labels) + 1e-3 * op.mean(op.square(logits))
    step = cd.compile([loss, *optim.Adam(0.02).train(loss, net.parameters()), *traced.updates])
    losses = [step.run({"x": x, "y": y})[0].item() for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


# --- mistakes


def test_mistakes_name_the_layer_and_what_it_got() -> None:
    with pytest.raises(cd.ShapeError, match=r"2-Dense: expected a batch of vectors"):
        cd.NeuralNetwork([nn.Input(()), nn.ReLU(), nn.Dense(3)])
    with pytest.raises(cd.ConfigError, match="adam"):
        classifier(optimizer="adm")
    with pytest.raises(cd.ConfigError, match="cross_entropy"):
        classifier(loss="crossentropy")
    model = classifier()
    with pytest.raises(cd.DataError, match=r"samples of shape \(2,\), got \(3,\)"):
        model.predict(np.zeros((4, 3), "float32"))
    with pytest.raises(cd.DataError, match="one weight for each of 240 samples"):
        model.fit(blobs(), sample_weights=np.ones(3), verbose=0)
    with pytest.raises(cd.ConfigError, match="checkpoint= with resume=True"):
        model.fit(blobs(), resume=True, verbose=0)
    with pytest.raises(cd.ConfigError, match="learning rate in one place"):
        classifier(optimizer=optim.Adam(), learning_rate=0.1)


# --- summary


def test_summary_totals_are_exact() -> None:
    model = cd.NeuralNetwork(
        [nn.Input((1, 8, 8)), nn.Conv2D(4, 3), nn.ReLU(), nn.Flatten(), nn.Dense(5)]
    )
    found = model.summary(show=False)
    assert found.parameters == 4 * 9 + 4 + 4 * 36 * 5 + 5 == sum(p.size for p in model.parameters())
    convolution = 2 * 4 * 36 * 9 + 4 * 36
    dense = 2 * 4 * 36 * 5 + 5
    assert found.flops == convolution + 4 * 36 + dense
    rows = {row.kind: row for row in found.rows}
    assert rows["Conv2D"].shape == (4, 6, 6)
    work = {each.method: each for each in rows["Conv2D"].work}
    assert work["direct"].work == 4 * 36 * 9
    assert work["direct"].depth == 0 + 2 + 2
    assert set(work) == {"direct", "im2col", "FFT", "Winograd"}
    assert "parameters  765 (765 trained)" in str(found)


def test_predict_gives_each_sample_its_own_result() -> None:
    x, _ = blobs(count=70)
    model = classifier()
    whole = model.predict(x, batch_size=70)
    np.testing.assert_allclose(model.predict(x, batch_size=32), whole, rtol=1e-5, atol=1e-6)
    assert model.predict(x[:0]).shape == (0, 3)
