"""Native attention and its gradient against the oracle: masks, layouts, dtypes, any sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import caldera as cd
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.attention import attention, attention_grad
from caldera.core.tensor.dtype import BY_NAME, bool_
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.binding import compute_dtype
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.unit.kernels.checking import DTYPES, LAYOUTS, check_kernel


@dataclass(frozen=True)
class Setting:
    """The shapes of q, k and v, masks of truth values and masks to be added."""

    q: Shape
    k: Shape
    v: Shape
    seen: tuple[Shape, ...] = ()
    added: tuple[Shape, ...] = ()
    causal: bool = False


SETTINGS = {
    "plain": Setting((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
    "several blocks": Setting((2, 37, 20), (2, 37, 20), (2, 37, 3), causal=True),
    "more queries than keys": Setting((70, 8), (33, 8), (33, 9), causal=True),
    "more keys than queries": Setting((33, 8), (70, 8), (70, 9), seen=((70,),), causal=True),
    "two masks": Setting((2, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 4), ((2, 1, 1, 6),), ((5, 6),)),
    "masks of columns": Setting(
        (2, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 4), ((2, 1, 5, 1),), ((1, 1, 1, 6),), causal=True
    ),
    "no keys": Setting((3, 4), (0, 4), (0, 5)),
    "no queries": Setting((0, 4), (3, 4), (3, 5)),
    "shared keys": Setting((2, 4, 5, 4), (2, 1, 6, 4), (2, 1, 6, 4)),
}


def _case(setting: Setting, dtype: str) -> tuple[Node, list[np.ndarray]]:
    generator = np.random.default_rng(0)
    specs = [Spec(shape, BY_NAME[dtype]) for shape in (setting.q, setting.k, setting.v)]
    specs += [Spec(shape, bool_) for shape in setting.seen]
    specs += [Spec(shape, BY_NAME[dtype]) for shape in setting.added]
    arrays = [
        generator.random(spec.shape) > 0.3
        if spec.dtype == bool_
        else generator.normal(size=spec.shape).astype(spec.dtype)
        for spec in specs
    ]
    nodes = [parameter(i, spec) for i, spec in enumerate(specs)]
    return attention.node(*nodes, causal=setting.causal, scale=0.37), arrays


def _gradient_case(setting: Setting, dtype: str) -> tuple[Node, list[np.ndarray]]:
    forward, arrays = _case(setting, dtype)
    y, logarithm = evaluate(forward, arrays)
    generator = np.random.default_rng(1)
    wide = compute_dtype(y.dtype)
    given = [
        generator.normal(size=y.shape).astype(y.dtype),
        *arrays[:3],
        generator.normal(size=logarithm.shape).astype(wide),
        logarithm,
        *arrays[3:],
    ]
    nodes = [parameter(i, Spec(array.shape, array.dtype)) for i, array in enumerate(given)]
    return attention_grad.node(*nodes, **forward.attrs), given


def _native(node: Node) -> Kernel | None:
    found = TABLE.candidates(node, "cpu")[0]
    return found if found.name == "native" else None


CASES = [(name, "float32") for name in SETTINGS]
CASES += [("masks of columns", dtype) for dtype in DTYPES if dtype != "float32"]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_attention(name: str, dtype: str) -> None:
    node, arrays = _case(SETTINGS[name], dtype)
    kernel = _native(node)
    assert kernel is not None
    for threads in (1, 2, 3):
        with cd.settings.override(threads=threads):
            for arrange in LAYOUTS.values():
                check_kernel(kernel, node, tuple(arrange(array) for array in arrays))


@pytest.mark.parametrize(("name", "dtype"), [case for case in CASES if case[0] != "shared keys"])
def test_its_gradient(name: str, dtype: str) -> None:
    node, arrays = _gradient_case(SETTINGS[name], dtype)
    kernel = _native(node)
    assert kernel is not None
    for threads in (1, 3):
        with cd.settings.override(threads=threads):
            for layout in ("dense", "with gaps", "backwards"):
                check_kernel(kernel, node, tuple(LAYOUTS[layout](array) for array in arrays))


def test_gradients_of_shared_keys_are_left_to_the_oracle() -> None:
    node, _ = _gradient_case(SETTINGS["shared keys"], "float32")
    assert _native(node) is None
    assert TABLE.candidates(node, "cpu")[0].name == "reference"


def test_rows_without_any_key_and_rows_that_are_not_finite() -> None:
    setting = Setting((4, 8), (6, 8), (6, 3), seen=((4, 6),))
    node, (q, k, v, seen) = _case(setting, "float32")
    seen[:] = True
    seen[1] = False
    q[2, 0] = np.nan
    q[3] = np.inf
    kernel = _native(node)
    assert kernel is not None
    check_kernel(kernel, node, (q, k, v, seen))
