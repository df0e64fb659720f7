"""Data sets from arrays: splitting, classes, and the digits that need no file."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera import data
from caldera.base.registry import optional_import
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    test=st.one_of(st.floats(0, 0.95), st.integers(0, 6)),
    stratify=st.booleans(),
    seed=st.integers(0, 5),
)
@settings(deadline=None)
def test_a_split_is_exact_and_fair(
    counts: list[int], test: float, stratify: bool, seed: int
) -> None:
    y = np.repeat(np.arange(len(counts)), counts)
    total = len(y)
    if isinstance(test, int) and test > total:
        return
    x = np.arange(total)
    train, held_out = data.split((x, y), test=test, seed=seed, stratify=stratify)
    assert sorted(train.x.tolist() + held_out.x.tolist()) == x.tolist()
    wanted = test if isinstance(test, int) else round(test * total)
    assert len(held_out) == wanted
    if stratify:
        taken = np.bincount(held_out.y, minlength=len(counts))
        shares = np.array(counts) * (wanted / max(total, 1))
        assert (np.abs(taken - shares) < 1 + 1e-9).all()


def test_a_split_is_random_and_repeats() -> None:
    samples = data.ArrayData(np.arange(100))
    first = data.split(samples, seed=1)[1].x.tolist()
    assert data.split(samples, seed=1)[1].x.tolist() == first
    assert data.split(samples, seed=2)[1].x.tolist() != first
    assert first != list(range(20))


def test_a_split_keeps_stages_and_scale() -> None:
    images = data.ArrayData(np.zeros((10, 1, 4, 4), np.uint8), scale=None)
    samples = data.Pipeline(images, data.Crop(2))
    train, held_out = data.split(samples)
    assert train.shape == held_out.shape == (1, 2, 2)
    assert train.dtype == np.uint8


@pytest.mark.parametrize("test", [1.0, -0.1, 11, -1, True, "0.2"])
def test_parts_that_make_no_sense_are_refused(test: object) -> None:
    with pytest.raises(ConfigError, match=r"data\.split"):
        data.split(data.ArrayData(np.arange(10)), test=test)  # type: ignore[arg-type]


def test_stratifying_needs_classes() -> None:
    with pytest.raises(ConfigError, match="stratify"):
        data.split((np.zeros(4), np.array([0.5, 1.5, 2.5, 3.5])), stratify=True)
    with pytest.raises(ConfigError, match="stratify"):
        data.split(data.ArrayData(np.zeros(4)), stratify=True)


@pytest.mark.parametrize(
    ("y", "numbers", "names"),
    [
        ([0, 1, 2, 1], [0, 1, 2, 1], ("0", "1", "2")),
        (np.array([0, 2, 2, 0], np.uint16), [0, 2, 2, 0], ("0", "1", "2")),
        ([-1, 1, -1, 1], [0, 1, 0, 1], ("-1", "1")),
        ([True, False, True, False], [1, 0, 1, 0], ("False", "True")),
        (["b", "a", "c", "a"], [1, 0, 2, 0], ("a", "b", "c")),
        (np.array(["b", "a", "b", "a"], object), [1, 0, 1, 0], ("a", "b")),
        ([1001, 2002, 1001, 2002], [0, 1, 0, 1], ("1001", "2002")),
        ([[0, 1], [1, 1], [0, 0], [1, 0]], [[0, 1], [1, 1], [0, 0], [1, 0]], ("0", "1")),
    ],
    ids=["numbers", "gap", "signed", "bools", "texts", "objects", "catalogue", "two axes"],
)
def test_classes_are_numbered(y: object, numbers: object, names: tuple[str, ...]) -> None:
    found = data.arrays(np.zeros((4, 1)), y, test=0)  # type: ignore[arg-type]
    assert found.train.y is not None
    assert found.train.y.tolist() == numbers
    assert found.train.y.dtype == np.int64
    assert (found.class_names, found.classes) == (names, len(names))


def test_values_are_no_classes_unless_asked() -> None:
    y = np.array([0.5, 1.0, 0.5, 2.5])
    values = data.arrays(np.zeros((4, 1)), y, test=0)
    assert values.classes == 0
    assert values.train.y is not None
    assert values.train.y.dtype == np.float32
    classes = data.arrays(np.zeros((4, 1)), y, test=0, classes=True)
    assert classes.class_names == ("0.5", "1", "2.5")
    counts = data.arrays(np.zeros((4, 1)), [1, 2, 3, 4], test=0, classes=False)
    assert counts.classes == 0
    with pytest.raises(DataError, match="texts"):
        data.arrays(np.zeros((2, 1)), ["a", "b"], classes=False)
    with pytest.raises(DataError, match="nan"):
        data.arrays(np.zeros((2, 1)), [0.5, float("nan")], classes=True)


def test_arrays_to_test_with_can_be_given() -> None:
    found = data.arrays(np.zeros((2, 3)), ["a", "c"], test=(np.ones((2, 3)), ["b", "c"]))
    assert found.class_names == ("a", "b", "c")
    assert found.train.y is not None
    assert found.test.y is not None
    assert found.train.y.tolist() == [0, 2]
    assert found.test.y.tolist() == [1, 2]
    assert found.train.dtype == np.float32
    with pytest.raises(ShapeError, match=r"test samples of shape \(3,\)"):
        data.arrays(np.zeros((2, 3)), [0, 1], test=(np.ones((2, 4)), [0, 1]))
    for wrong in ([[0], [1]], ["a", "b"], 3):
        with pytest.raises(ShapeError, match="the same type of targets"):
            data.arrays(np.zeros((2, 3)), [0, 1], test=(np.ones((2, 3)), wrong))


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(ShapeError):
        data.arrays(np.zeros((3, 2)), [0, 1])
    with pytest.raises(DtypeError):
        data.arrays(np.zeros((2, 2)), np.array([None, 1], object))
    samples = data.ArrayData(np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="3 names"):
        data.Dataset(samples, samples, 3, ("a",), "wrong")


def test_digits() -> None:
    digits = data.digits()
    assert digits.shape == (1, 8, 8)
    assert digits.classes == 10
    assert digits.name == "digits"
    assert (len(digits.train), len(digits.test)) == (1438, 359)
    assert digits.train.dtype == np.float32
    x = digits.train.x
    assert (x.min(), x.max()) == (0, 1)
    counts = np.bincount(digits.test.y)
    assert counts.min() >= 34
    assert counts.max() <= 37
    np.testing.assert_array_equal(data.digits().test.x, digits.test.x)
    assert (data.digits(seed=1).test.x != digits.test.x).any()


def test_the_digits_are_those_of_scikit_learn() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    for seed in (0, 3):
        ours = data.digits(seed=seed)
        wanted = data.arrays(theirs.images[:, None] / 16, theirs.target, seed=seed, name="digits")
        for part in ("train", "test"):
            found, there = getattr(ours, part), getattr(wanted, part)
            np.testing.assert_array_equal(found.x, there.x)
            np.testing.assert_array_equal(found.y, there.y)
            assert (found.x.dtype, found.y.dtype) == (there.x.dtype, there.y.dtype)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match="pip install pillow"):
        data.Decode()(np.array([b"x"], object), data.Draw())
    with pytest.raises(ConfigError, match="the package pillow"):
        optional_import("caldera.no_such_module", "pillow", "data.images")
