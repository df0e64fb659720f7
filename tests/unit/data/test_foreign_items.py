"""Samples as other libraries have them: objects with len and [], loaders, pairs, dicts, tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import caldera as cd
from caldera import data, nn
from caldera.errors import CalderaError, ConfigError, DataError


class FakeTensor:
    """What is used of a tensor of PyTorch; NumPy may not read it by itself if it has gradients."""

    def __init__(self, values: Any, dtype: str = "torch.float32") -> None:
        self.values, self.dtype = np.asarray(values), dtype
        self.shape = self.values.shape

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self) -> FakeTensor:
        return self

    def cpu(self) -> FakeTensor:
        return self

    def float(self) -> FakeTensor:
        return FakeTensor(self.values.astype("float32"))

    def numpy(self) -> np.ndarray:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


class Samples:
    """Like a `Dataset` of PyTorch."""

    def __init__(self, count: int = 40, **_: Any) -> None:
        self.x = np.random.default_rng(0).normal(size=(count, 3)).astype("float32")
        self.y = (self.x[:, 0] > 0).astype("int64")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        return FakeTensor(self.x[number]), int(self.y[number])


class Batches:
    """Like a `DataLoader` of PyTorch, whose batches are lists of tensors."""

    def __init__(self, dataset: Samples, batch_size: int) -> None:
        self.dataset, self.batch_size, self.collate_fn = dataset, batch_size, list

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.dataset), self.batch_size):
            part = slice(start, start + self.batch_size)
            yield [FakeTensor(self.dataset.x[part]), FakeTensor(self.dataset.y[part])]


def given() -> dict[str, Any]:
    samples = Samples()
    x, y = samples.x, samples.y
    return {
        "dataset": samples,
        "loader": Batches(samples, 7),
        "pairs": [(each, int(label)) for each, label in zip(x, y, strict=True)],
        "pairs of tensors": [(FakeTensor(a), FakeTensor(b)) for a, b in zip(x, y, strict=True)],
        "dict": {"y": y, "x": x},
        "dict of tensors": {"image": FakeTensor(x), "label": FakeTensor(y)},
        "tensors": (FakeTensor(x), FakeTensor(y)),
        "lists": (x.tolist(), y.tolist()),
        "generator": ((a, b) for a, b in zip(x, y, strict=True)),
        "dicts": ({"x": a, "label": b} for a, b in zip(x, y, strict=True)),
    }


@pytest.mark.parametrize("kind", list(given()))
def test_whatever_holds_the_samples_they_are_the_same(kind: str) -> None:
    samples = Samples()
    loader = data.Loader(data.Pipeline.of(given()[kind]), 7, shuffle=False)
    x, y = (np.concatenate(each) for each in zip(*[batch.arrays for batch in loader], strict=True))
    np.testing.assert_array_equal(x.astype("float32"), samples.x)
    np.testing.assert_array_equal(y, samples.y)


def test_fit_takes_them_and_a_loader_brings_its_batch_size() -> None:
    sizes = []

    class Seen(cd.Callback):
        def run_begins(self, run: Any) -> None:
            sizes.append(run.loader.batch_size)

    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2)], learning_rate=0.1)
    samples = Samples()
    assert model.fit(Batches(samples, 7), verbose=0, callbacks=[Seen()], epochs=2)["loss"]
    model.fit(samples, validation=0.25, verbose=0, callbacks=[Seen()])
    model.fit(Batches(samples, 7), batch_size=5, verbose=0, callbacks=[Seen()])
    assert sizes == [7, 32, 5]
    with pytest.raises(DataError, match="pass only the data"):
        model.fit(samples, samples.y)
    with pytest.raises(DataError, match="a stream"):
        model.fit(Batches(samples, 7), validation=0.2, verbose=0)


def test_pictures_have_their_channels_first() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
    items = [(Image.fromarray(pixels), 1), (Image.fromarray(pixels).convert("RGBA"), 0)]
    x, y = data.ItemData(items).raw_batch(np.array([0, 1]))
    np.testing.assert_array_equal(x, [pixels.transpose(2, 0, 1)] * 2)
    assert y.tolist() == [1, 0]
    assert data.ItemData(items).dtype == np.float32


def test_bfloat16_is_read() -> None:
    assert data.as_data(FakeTensor([1.0, 2.0], "torch.bfloat16")).shape == ()


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match=r"list\[1\]: expected samples of shape \(2,\) and \(\)"):
        data.ItemData([([1, 2], 0), ([1, 2, 3], 0)]).batch(np.array([0, 1]))
    with pytest.raises(ConfigError, match=r"len\(items\)"):
        data.ItemData(iter([1]))
    with pytest.raises(DataError, match="one target in a dict"):
        data.as_data({"y": [1], "label": [1], "x": [1]})
    with pytest.raises(DataError, match="an empty dict"):
        data.as_data({})
    with pytest.raises(DataError, match=r"data\.texts"):
        data.as_data((["some", "words"], [0, 1]))
    for bad in ({"x": ["a"], "y": [0]}, [({}, 1)], [(None, 1)], [("a", 1)], [object()]):
        with pytest.raises(CalderaError):
            data.as_data(bad)
