"""Our own matrix products on a card: every dtype, odd and empty shapes, arrays that lie anyhow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import epilogue, product
from caldera.core.graph.ops.epilogue import ACTIVATIONS
from caldera.core.graph.ops.few_bits import dequantise, quantised
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.common.product import Epilogue
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.product.problem import TILES, EpilogueCode, ProductTiling, ThreadTile
from caldera.kernels.cuda.runtime import device
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call
from tests.card.accepted import check_for_a_card
from tests.card.candidates import check, placed, run_kernel
from tests.card.emulated import EmulatedCard
from tests.unit.kernels.checking import DTYPES, compare

Shape = tuple[int, ...]
FEW_LAYOUTS = ("dense", "columns first", "backwards")


def numbers(*shapes: Shape, dtype: str = "float32") -> tuple[np.ndarray, ...]:
    """Arrays of these shapes."""
    generator = np.random.default_rng(7)
    return tuple(generator.uniform(-1, 1, shape).astype(BY_NAME[dtype]) for shape in shapes)


def products(a: Shape, b: Shape, *, ta: bool = False, tb: bool = False, dtype: str) -> Node:
    """The node of a product."""
    left, right = (parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate([a, b]))
    node: Node = product.matmul(left, right, ta=ta, tb=tb)
    return node


SMALL = [
    ((3, 4), (4, 5), False, False),
    ((4, 3), (4, 5), True, False),
    ((3, 4), (5, 4), False, True),
    ((4, 3), (5, 4), True, True),
    ((2, 3, 4), (4, 5), False, False),
    ((2, 1, 3, 4), (3, 5, 4), False, True),
    ((1, 7), (7, 1), False, False),
    ((0, 4), (4, 5), False, False),
    ((3, 0), (0, 5), False, False),
    ((0, 3, 4), (4, 5), False, False),
    ((2, 1, 2, 1, 2, 3, 4), (2, 1, 2, 1, 4, 5), False, False),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_products(card: Device, dtype: str) -> None:
    for a, b, ta, tb in SMALL:
        node = products(a, b, ta=ta, tb=tb, dtype=dtype)
        assert "tiles" in check(card, node, numbers(a, b, dtype=dtype))


LARGER = [
    ((33, 70), (70, 41), False, False),
    ((70, 36), (48, 70), True, True),
    ((40, 20), (3, 24, 20), False, True),
    ((2, 3, 4, 20), (20, 24), False, False),
    ((30, 0), (0, 40), False, False),
    ((1, 100), (100, 50), False, False),
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(LARGER[1], dtype) for dtype in DTYPES[1:]] + [(case, "float32") for case in LARGER],
    ids=str,
)
def test_tiles(card: Device, case: tuple[Shape, Shape, bool, bool], dtype: str) -> None:
    a, b, ta, tb = case
    node = products(a, b, ta=ta, tb=tb, dtype=dtype)
    assert "tiles" in check(card, node, numbers(a, b, dtype=dtype), layouts=FEW_LAYOUTS)


def test_sides_of_any_length(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real card the library computes them too, with zeros beside them."""
    monkeypatch.setattr(cublas, "FEWEST_FLOPS", 0)
    for a, b, ta, tb, dtype in (
        ((33, 70), (70, 41), False, False, "bfloat16"),
        ((70, 36), (70, 99), True, False, "float32"),
        ((40, 21), (24, 21), False, True, "bfloat16"),
    ):
        node = products(a, b, ta=ta, tb=tb, dtype=dtype)
        found = check(card, node, numbers(a, b, dtype=dtype), layouts=FEW_LAYOUTS)
        assert ("cublas padded" in found) == (device.cublas_lt() is not None)


@pytest.fixture(params=TILES, ids=lambda tile: f"{tile.side}")
def one_tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ThreadTile:
    """Products in tiles of one size, whatever would be faster."""
    tile: ThreadTile = request.param

    def chosen(rows: int, columns: int, length: int, count: int, *rest: int) -> ProductTiling:
        across, down = -(-columns // tile.side), -(-rows // tile.side)
        span = max(1, -(-length // tile.depth)) * tile.depth
        return ProductTiling(tile, across, down, 1, span, length, count)

    monkeypatch.setattr(tiled, "tiling", chosen)
    return tile


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tiles_of_every_size(card: Device, one_tile: ThreadTile, dtype: str) -> None:
    for rows, columns, length in ((132, 140, 40), (one_tile.side, one_tile.side, 24), (5, 131, 17)):
        node = products((rows, length), (length, columns), dtype=dtype)
        inputs = numbers((rows, length), (length, columns), dtype=dtype)
        assert check(card, node, inputs, ["tiles"], layouts=("dense", "columns first"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_sums_are_cut(card: Device, dtype: str) -> None:
    node = products((20, 2000), (2000, 24), dtype=dtype)
    (kernel,) = [each for each in TABLE.candidates(node, "cuda") if each.name == "tiles"]
    assert kernel.workspace(node) >= 2 * 20 * 24 * 4
    inputs = numbers((20, 2000), (2000, 24), dtype=dtype)
    check(card, node, inputs, ["tiles"], layouts=("dense", "columns first"))
    (first,), (second,) = (run_kernel(card, kernel, node, inputs) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_a_product_with_itself(card: Device) -> None:
    x = parameter(0, Spec((25, 30), BY_NAME["float32"]))
    node = product.matmul(x, x, ta=True, tb=False)
    (array,) = numbers((25, 30))
    assert check(card, node, (array, array), layouts=("dense",))


# --- endings

ATTRIBUTES: dict[str, tuple[tuple[str, Any], ...]] = {
    "elu": (("alpha", 0.7),),
    "leaky_relu": (("slope", 0.1),),
    "gelu": (("approximate", True),),
}
SPECIAL = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 90.0, -90.0, 1.0]])


def _epilogue(a: Shape, b: Shape, activation: str | None, bias: Shape | None, dtype: str) -> Node:
    shapes = [a, b] if bias is None else [a, b, bias]
    inputs = [parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate(shapes)]
    node: Node = epilogue.matmul_epilogue(
        *inputs,
        ta=False,
        tb=False,
        activation=activation,
        attributes=() if activation is None else ATTRIBUTES.get(activation, ()),
    )
    return node


@pytest.mark.parametrize("activation", [None, *sorted(ACTIVATIONS)])
def test_activations(card: Device, activation: str | None) -> None:
    node = _epilogue((3, 4), (4, 8), activation, (8,), "float32")
    left, right, bias = numbers((3, 4), (4, 8), (8,))
    assert check(card, node, (left, right, bias))
    # What is not finite, and both zeros: the product is the bias.
    check(card, node, (left * 0, right * 0, SPECIAL[0].astype("float32")), layouts=("dense",))


def test_the_exact_gelu(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTRIBUTES, "gelu", (("approximate", False),))
    node = _epilogue((3, 4), (4, 8), "gelu", (8,), "float64")
    check(card, node, numbers((3, 4), (4, 8), (8,), dtype="float64"), layouts=("dense",))


@pytest.mark.parametrize(
    ("bias", "dtype"),
    [(None, "float32"), ((1, 41), "float32"), *[((41,), dtype) for dtype in DTYPES]],
    ids=str,
)
def test_endings_of_tiles(card: Device, bias: Shape | None, dtype: str) -> None:
    shapes = [(33, 30), (30, 41)] if bias is None else [(33, 30), (30, 41), bias]
    node = _epilogue((33, 30), (30, 41), "tanh", bias, dtype)
    check(card, node, numbers(*shapes, dtype=dtype), ["tiles"], layouts=("dense", "with gaps"))


def test_endings_of_cut_sums_and_of_batches(card: Device) -> None:
    for a, b in (((20, 2000), (2000, 24)), ((2, 20, 300), (2, 300, 24))):
        node = _epilogue(a, b, "sigmoid", (24,), "float32")
        check(card, node, numbers(a, b, (24,)), ["tiles"], layouts=("dense",))


# --- accumulation


def _accumulation(rows: int, columns: int, length: int, dtype: str, ta: bool = False) -> Node:
    shapes = [(rows, columns), (length, rows) if ta else (rows, length), (length, columns), (), ()]
    c, a, b, alpha, beta = (
        parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate(shapes)
    )
    node: Node = epilogue.matmul_accumulate(c, a, b, alpha, beta, ta=ta, tb=False)
    return node


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "length"), [(3, 5, 4), (33, 20, 18), (20, 24, 2000)])
def test_accumulation(
    card: Device,
    rows: int,
    columns: int,
    length: int,
    dtype: str,
) -> None:
    node = _accumulation(rows, columns, length, dtype)
    c, a, b = numbers((rows, columns), (rows, length), (length, columns), dtype=dtype)
    alpha, beta = (np.array(x, BY_NAME[dtype]) for x in (-0.25, 0.5))
    assert check(card, node, (c, a, b, alpha, beta), layouts=("dense", "columns first"))


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_what_is_multiplied_by_0_is_not_looked_at(
    card: Device,
    alpha: float,
    beta: float,
) -> None:
    node = _accumulation(3, 5, 4, "float32")
    c, a, b = numbers((3, 5), (3, 4), (4, 5))
    (a if alpha == 0 else c).fill(np.nan)
    if alpha == beta:
        c.fill(np.nan)
    scales = tuple(np.array(x, "float32") for x in (alpha, beta))
    assert np.isfinite(evaluate(node, (c, a, b, *scales))[0]).all()
    assert check(card, node, (c, a, b, *scales), layouts=("dense",))


def test_accumulation_in_place(card: Device) -> None:
    if not isinstance(card, EmulatedCard):
        pytest.skip("the host looks at the result where it lies, which a real card does not allow")
    node = _accumulation(33, 20, 100, "float32", ta=True)
    c, a, b = numbers((33, 20), (100, 33), (100, 20))
    scales = tuple(np.array(x, "float32") for x in (-0.25, 0.5))
    (right,) = evaluate(node, (c, a, b, *scales))
    for kernel in TABLE.candidates(node, "cuda"):
        assert kernel.in_place(node)
        there = placed(card, c.copy())
        room = np.empty(kernel.workspace(node), np.uint8)
        kernel.bind(Call(node, (there,), (there, a, b, *scales), room))()
        compare(there, right)


# --- whole plans


def test_training_steps(card: Device) -> None:
    images = np.random.default_rng(0).uniform(-1, 1, (20, 30)).astype("float32")
    losses = {}
    for place in ("cpu", card):
        x = cd.tensor(images, device=place)
        w = op.var("w", (30, 24), fill=cd.constant(0.05), device=place)
        hidden = op.relu(op.matmul(x, w) + 0.125)
        loss = op.mean(hidden * hidden)
        plan = cd.compile([loss, op.assign(w, w - 0.1 * op.grad(loss, w))], device=place)
        losses[place] = [plan.run()[0].item() for _ in range(3)]
        kernels = {step.node.op.name: step.kernel for step in plan.schedule.steps}
        assert kernels["matmul_accumulate"].family == ("cpu" if place == "cpu" else "cuda")
    np.testing.assert_allclose(losses[card], losses["cpu"], rtol=1e-5)


# --- for a real card

EPILOGUES = [
    EpilogueCode("float32", Epilogue(True, "relu")),
    EpilogueCode("float64", accumulates=True),
    EpilogueCode("float16", Epilogue(False, "gelu", (("approximate", True),))),
    EpilogueCode("bfloat16"),
]


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda epilogue: epilogue.dtype)
def test_the_text_is_cuda(epilogue: EpilogueCode) -> None:
    many = min(4, 16 // BY_NAME[epilogue.dtype].itemsize)
    sources = [
        tiled._tiles_text(epilogue, tile, (along, many), (not along, 1), along)
        for tile in TILES[1 if epilogue.dtype == "float64" else 0 :]
        for along in (True, False)
    ]
    sources.append(tiled._text(tiled._EACH, epilogue))
    sources.append(tiled._text(tiled._SPLIT_K_REDUCE, epilogue, index="u64", term="T"))
    for source in sources:
        check_for_a_card(source)


def test_weights_of_a_few_bits_are_decoded(libraries: Device) -> None:
    draw = np.random.default_rng(0)
    for bits, group in ((8, 0), (4, 32)):
        codes, scale = quantised(draw.normal(size=(9, 150)).astype("float32"), bits, group)
        x, feeds = op.input("x", (3, 150)), draw.normal(size=(3, 150)).astype("float32")
        weight = Expr(dequantise(lift(codes), lift(scale), columns=150))
        found = [
            cd.compile([op.matmul(x, weight, transpose_b=True)], device=place).run({"x": feeds})[0]
            for place in (libraries, "cpu")
        ]
        np.testing.assert_allclose(found[0].numpy(), found[1].numpy(), rtol=1e-4, atol=1e-4)
