"""Which elements a window covers, and pooling of images that lie in different ways."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import product
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.native.pooling import taps
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call
from tests.unit.kernels.guard_pages import guarded


def test_taps_of_windows_and_of_elements_say_the_same() -> None:
    how = {"size": 3, "stride": 2, "padding": (1, 2), "dilation": 2}
    windows, elements = (taps(11, **how, adjoint=adjoint) for adjoint in (False, True))

    def pairs(found, swapped: bool) -> set[tuple[int, int, int]]:
        result = set()
        for place in range(len(found.begin) - 1):
            for other, position, _ in found.entries[found.begin[place] : found.begin[place + 1]]:
                result.add((other, place, position) if swapped else (place, other, position))
        return result

    assert pairs(windows, swapped=False) == pairs(elements, swapped=True)
    assert all(0 <= element < 11 for _, element, _ in pairs(windows, swapped=False))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 40, 41)).astype(np.float32)
    variable = op.var("x", x.shape, fill=x)
    pooled = op.max_pool2d(variable, 3, stride=2, padding=1)
    mean = op.avg_pool2d(variable, 3, stride=2, padding=1)
    outputs = [pooled, mean, op.grad(op.sum(pooled * pooled) + op.sum(mean * mean), variable)]
    with cd.settings.override(threads=1):
        expected = [each.numpy() for each in cd.compile(outputs).run()]
    with cd.settings.override(threads=threads):
        found = [each.numpy() for each in cd.compile([each * 1.0 for each in outputs]).run()]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_windows_too_large_for_a_byte() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 20, 30))
    variable = op.var("x", x.shape, fill=x, dtype="float64")
    pooled = op.max_pool2d(variable, (16, 24))
    np.testing.assert_array_equal(pooled.numpy()[0, :, 0, 0], x[0, :, :16, :24].max((1, 2)))
    slope = op.grad(op.sum(pooled), variable).numpy()
    assert slope.sum() == pooled.size
    assert (
        slope[0, 0].flat[x[0, 0, :16, :24].argmax() // 24 * 30 + x[0, 0, :16, :24].argmax() % 24]
        == 1
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("channels", [1, 3, 6, 17, 40])
def test_a_few_channels_and_nothing_beside_them(channels: int, dtype: str) -> None:
    """Part of a vector is read and written where channels end, and memory ends there too."""

    def image(shape: tuple[int, ...], kind: str) -> np.ndarray:
        n, c, h, w = shape
        memory = guarded(n * c * h * w * BY_NAME[kind].itemsize).view(BY_NAME[kind])
        return memory.reshape(n, h, w, c).transpose(0, 3, 1, 2)

    x = image((2, channels, 5, 4), dtype)
    x[...] = np.random.default_rng(0).standard_normal(x.shape)
    given = parameter(0, Spec(x.shape, BY_NAME[dtype]))
    how = {"size": (2, 3), "stride": (2, 1), "padding": ((0, 1), (1, 0))}
    # Windows side by side that cover all pixels are averaged without looking anything up.
    covering = {"size": (5, 2), "stride": (5, 2), "padding": ((0, 0), (0, 0))}
    larger = (2, channels, 25, 8)
    for node in (
        product.max_pool2d.node(given, **how, dilation=(1, 1)),
        product.avg_pool2d.node(given, **how, count_padding=False),
        product.avg_pool2d.node(given, **covering, count_padding=False),
        product.avg_pool2d_input.node(given, shape=larger, **covering, count_padding=True),
    ):
        kernel = next(each for each in TABLE.candidates(node, "cpu") if each.name == "native")
        outputs = tuple(image(spec.shape, spec.dtype.name) for spec in node.outputs)
        kernel.bind(Call(node, outputs, (x,)))()
        for found, right in zip(outputs, evaluate(node, [x]), strict=True):
            near = 1e-2 if dtype == "bfloat16" else 1e-6
            np.testing.assert_allclose(found.astype("f8"), right.astype("f8"), rtol=near)
