"""Complex numbers: dtypes, functions at the edges, gradients, memory, and what refuses them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.compiler.lazy import Expr, lift, lift_all
from caldera.compiler.passes.complex_functions import FUNCTIONS
from caldera.compiler.passes.complex_parts import complex_parts, has_complex
from caldera.compiler.passes.constants import value_of
from caldera.compiler.passes.pipeline import passes
from caldera.core.graph.opdef import HOLOMORPHIC, LINEAR, OPS, OWN_RULE, TAKES_COMPLEX
from caldera.core.graph.ops.base import sum_
from caldera.core.graph.program import Program, topological
from caldera.core.graph.verify import verify
from caldera.core.tensor import dtype as dtypes
from caldera.errors import DtypeError, GradientError, ShapeError
from caldera.kernels.reference import interpret
from caldera.kernels.table import TABLE
from tests.unit.ops.case import complex_numbers, numbers

REAL = [each for each in dtypes.ALL if not dtypes.is_complex(each)]


def test_the_tables_name_ops_that_exist_once() -> None:
    assert set(OPS) >= TAKES_COMPLEX
    assert set(FUNCTIONS) <= TAKES_COMPLEX
    assert len(LINEAR) + len(HOLOMORPHIC) + len(OWN_RULE) == len(TAKES_COMPLEX)


# --- dtypes


@pytest.mark.parametrize("first", sorted(dtypes.COMPLEX, key=str), ids=str)
@pytest.mark.parametrize("second", dtypes.ALL, ids=str)
def test_dtypes_meet_as_in_numpy_but_integers_widen_nothing(first: Any, second: Any) -> None:
    # bfloat16 is no dtype of NumPy's own, and integers are no reason for complex128.
    takes_part = second != dtypes.bfloat16 and not dtypes.is_integer(second)
    right = np.promote_types(first, second) if takes_part else first
    assert dtypes.promote(first, second) == dtypes.promote(second, first) == right
    a, b = np.ones(2, first), np.ones(2, second)
    for x, y in ((a, b), (b, a)):
        result = op.mul(x, y)
        assert result.dtype == right


@pytest.mark.parametrize(
    ("operand", "right"),
    [
        ("bool", "complex64"),
        ("int64", "complex64"),
        ("float16", "complex64"),
        ("float32", "complex64"),
        ("float64", "complex128"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
    ],
)
def test_a_python_number_takes_the_precision_of_its_neighbour(operand: str, right: str) -> None:
    x = np.ones(2, operand)
    for number in (2j, np.complex128(2j)):
        result = Expr(lift(x)) * number
        assert result.dtype == right
        assert result.tolist() == [2j, 2j]
    assert lift_all(2j, 1)[0].dtype == dtypes.complex64
    assert op.add([1j, 2], 1.5).dtype == dtypes.complex64


def test_creation() -> None:
    assert op.zeros(2, "complex64").tolist() == [0j, 0j]
    assert op.ones(2, "complex128").dtype == dtypes.complex128
    assert op.full(2, 1 + 2j).dtype == dtypes.complex64
    assert op.full(2, 1 + 2j, "complex128").tolist() == [1 + 2j, 1 + 2j]
    assert op.full(1, 3, "complex64").tolist() == [3 + 0j]
    assert op.arange(3, dtype="complex64").tolist() == [0j, 1 + 0j, 2 + 0j]
    assert op.eye(2, dtype="complex64").tolist() == [[1, 0], [0, 1]]
    assert op.complex(np.float64(1), np.ones(2)).dtype == dtypes.complex128
    assert op.complex(1, 2).item() == 1 + 2j
    with pytest.raises(ShapeError, match="broadcast"):
        op.complex([1.0, 2.0], [1.0, 2.0, 3.0])
    assert dtypes.canonical(complex) == dtypes.complex64


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_casts(dtype: str) -> None:
    z = cd.tensor(np.array([0, 1j, 2 - 1j], dtype))
    assert op.cast(z, "bool").tolist() == [False, True, True]
    for other in ("complex64", "complex128"):
        assert op.cast(z, other).tolist() == [0, 1j, 2 - 1j]
        assert op.cast(np.array([1, 2]), other).tolist() == [1, 2]
    with pytest.raises(DtypeError, match=r"op\.cast: expected real numbers.*op\.real"):
        op.cast(z, "float32")
    assert op.real(z).dtype == op.abs(z).dtype == dtypes.part_of(z.dtype)


# --- values


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_functions_keep_their_digits(dtype: str) -> None:
    """Far from 0, near 0, near 1 and on the cuts: the formulas of the parts, computed by NumPy."""
    generator = np.random.default_rng(3)
    directions = np.exp(1j * generator.uniform(-np.pi, np.pi, 60))
    z = np.concatenate(
        [
            directions[:20] * 8,
            directions[20:40] * 1e-4,
            directions[40:],
            [0, 1, -1, 1j, -1j, 2, -2, 3j, -3j, 0.5, -0.5, complex(-2, -0.0), complex(2, -0.0)],
        ]
    ).astype(dtype)
    names = """exp log sqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh expm1 log2
        log10 exp2 square abs sign""".split()  # noqa: SIM905 - a table of names
    theirs = {
        "asin": "arcsin",
        "acos": "arccos",
        "atan": "arctan",
        "asinh": "arcsinh",
        "acosh": "arccosh",
        "atanh": "arctanh",
    }
    given = lift(cd.tensor(z))
    nodes = tuple(getattr(op, name)(Expr(given)).node for name in names)
    tolerance = 30 * np.finfo(dtype).eps
    with np.errstate(all="ignore"):
        results = interpret(complex_parts(Program(nodes)).outputs, {given: z})
        for name, result in zip(names, results, strict=True):
            right = getattr(np, theirs.get(name, name))(z)
            assert result.dtype == right.dtype
            scale = np.maximum(np.abs(right), np.finfo(dtype).tiny)
            error = np.abs(result - right) / scale
            finite = np.isfinite(right)
            assert error[finite].max() < tolerance, (name, z[finite][error[finite].argmax()])
            assert np.array_equal(np.isinf(result), np.isinf(right)), name


ENDS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 100.0, -1000.0, np.inf, -np.inf, np.nan]
"""Parts of numbers at which functions have values of their own (C99, Annex G)."""
OF_THE_STANDARD = {"expm1": {complex(np.inf, 0): complex(np.inf, 0), complex(-np.inf, np.nan): -1}}
"""Where NumPy gives nan and the array API standard, as here, another value."""


@pytest.mark.parametrize("device", ["cpu", "loopback", "the oracle of kernels"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_functions_of_infinities_and_nan_follow_annex_g(dtype: str, device: str) -> None:
    z = np.array([complex(a, b) for a in ENDS for b in ENDS], dtype)
    names = """exp log sqrt sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh
        log1p log2 log10 exp2 square absolute sign""".split()  # noqa: SIM905 - a table of names
    given = op.input("z", z.shape, dtype)
    outputs = [
        getattr(op, name.replace("arc", "a").replace("absolute", "abs"))(given) for name in names
    ]
    with np.errstate(all="ignore"):
        if device.startswith("the"):
            program = complex_parts(Program(tuple(each.node for each in outputs)))
            found = interpret(program.outputs, {given.node: z})
        else:
            plan = cd.compile(outputs, device=device)
            found = [each.numpy() for each in plan.run({"z": z})]
        for name, result in zip(names, found, strict=True):
            right = getattr(np, name)(z)
            parts = [[f(each) for f in (np.real, np.imag)] for each in (result, right)]
            # The sign of an infinity beside nan is nobody's.
            beside_nan = np.isnan(right) & np.isinf(np.stack(parts[1])).any(0)
            ours, numpys = (np.where(beside_nan, np.abs(each), each) for each in parts)
            np.testing.assert_allclose(
                ours, numpys, rtol=30 * np.finfo(dtype).eps, atol=1e-6, err_msg=name
            )
    for number, value in OF_THE_STANDARD["expm1"].items():
        assert op.expm1(cd.tensor(np.array([number], dtype))).tolist() == [value]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_arithmetic_of_infinities_nan_and_zeros_is_that_of_numpy(dtype: str) -> None:
    parts = [0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan]
    z = np.array([complex(a, b) for a in parts for b in parts], dtype)
    pairs = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    a, b = op.input("a", (z.size, 1), dtype), op.input("b", (z.size,), dtype)
    outputs = [getattr(op, name)(a, b) for name in pairs]
    found = cd.compile([*outputs, b**0.5]).run({"a": z[:, None], "b": z})
    with np.errstate(all="ignore"):
        rights = [function(z[:, None], z) for function in pairs.values()]
        rights.append(np.sqrt(z))
    for ours, numpys in zip(found, rights, strict=True):
        for part in (np.real, np.imag):
            got, right = part(ours.numpy()), part(numpys)
            np.testing.assert_allclose(got, right, rtol=30 * np.finfo(dtype).eps)
            assert np.array_equal(np.signbit(got)[right == 0], np.signbit(right)[right == 0])


def test_zeros_have_the_signs_that_annex_g_gives_them() -> None:
    z = np.array([complex(a, b) for a in (0.0, -0.0, 2.0, -np.inf) for b in (0.0, -0.0, 0.5)])
    for name in "exp sin cos tan sinh cosh tanh asinh atanh sqrt log1p sign".split():  # noqa: SIM905
        theirs = name.replace("asinh", "arcsinh").replace("atanh", "arctanh")
        with np.errstate(all="ignore"):
            ours, right = getattr(op, name)(z).numpy(), getattr(np, theirs)(z)
        for part in (np.real, np.imag):
            zero = part(right) == 0
            assert np.array_equal(np.signbit(part(ours)[zero]), np.signbit(part(right)[zero])), name


def test_division_does_not_overflow_on_the_way() -> None:
    a = np.array([1e300 + 1e300j, 1e-300j, 1.0, 3 + 4j])
    b = np.array([1e300 - 2e300j, 2e-300, 1e-300 + 1e-300j, 1j])
    np.testing.assert_allclose((cd.tensor(a) / cd.tensor(b)).numpy(), a / b, rtol=1e-15)


def test_powers() -> None:
    z = np.array([0, 1j, 2 - 1j, -3])
    assert (cd.tensor(z) ** 0).tolist() == [1, 1, 1, 1]
    # Whole powers are products: without the roundings of a logarithm.
    assert (cd.tensor(z) ** 3).tolist() == [0, -1j, 2 - 11j, -27]
    np.testing.assert_allclose((cd.tensor(z) ** (0.5 + 1j)).numpy(), z ** (0.5 + 1j), rtol=1e-14)
    np.testing.assert_allclose((cd.tensor(z[1:]) ** -2).numpy(), z[1:] ** -2, rtol=1e-15)


def test_questions() -> None:
    inf, nan = np.inf, np.nan
    z = np.array([1j, complex(nan, 1), complex(1, inf), complex(inf, nan), 0])
    for ours, numpys in ((op.isnan, np.isnan), (op.isfinite, np.isfinite), (op.isinf, np.isinf)):
        assert ours(z).tolist() == numpys(z).tolist()
    assert op.equal(z, z).tolist() == (z == z).tolist()
    assert op.not_equal(z, 1j).tolist() == (z != 1j).tolist()
    assert op.isclose(z, z + 1e-9).tolist() == np.isclose(z, z + 1e-9).tolist()
    assert op.any(z[:1]).item()
    np.testing.assert_array_equal(op.nan_to_num(z).numpy(), np.nan_to_num(z))


OPERATIONS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda a, b: a + b, lambda a, b: a + b),
    (lambda a, b: a * b, lambda a, b: a * b),
    (lambda a, b: op.conj(a) - b * 2j, lambda a, b: np.conj(a) - b * np.complex64(2j)),
    (lambda a, b: op.where(op.real(a) > 0.0, a, b), lambda a, b: np.where(a.real > 0, a, b)),
    (lambda a, b: op.transpose(a) @ b, lambda a, b: a.T @ b),
    (lambda a, b: op.concat([a, b], 1), lambda a, b: np.concatenate([a, b], 1)),
    (
        lambda a, b: op.flip(op.reshape(a, (-1,)), (0,)) * op.sum(b),
        lambda a, b: a.reshape(-1)[::-1] * b.sum(),
    ),
    (lambda a, b: op.mean(a, axis=0) + op.prod(b), lambda a, b: a.mean(0) + b.prod()),
    (
        lambda a, b: op.pad(a, 1, 1j)[1:] * op.norm(b),
        lambda a, b: np.pad(a, 1, constant_values=1j)[1:] * np.linalg.norm(b),
    ),
    (lambda a, b: op.cumprod(a, 0) + op.cumsum(b, 1), lambda a, b: a.cumprod(0) + b.cumsum(1)),
    (lambda a, b: op.gather(a, [0, 0, -1], axis=0), lambda a, b: a[[0, 0, -1]]),
    (
        lambda a, b: op.abs(op.fft(a, axis=0)) * op.angle(b),
        lambda a, b: np.abs(np.fft.fft(a, axis=0)) * np.angle(b),
    ),
]


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_random_operations_against_numpy_and_the_oracle(seed: int) -> None:
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(1, 5, 2))
    arrays = []
    for dtype in generator.choice(["complex64", "complex128"], 2):
        parts = generator.normal(size=(2, *shape))
        arrays.append((parts[0] + 1j * parts[1]).astype(dtype))
    a, b = (Expr(lift(cd.tensor(each))) for each in arrays)
    made = [ours(a, b) for ours, _ in OPERATIONS]
    leaves = dict(zip((a.node, b.node), arrays, strict=True))
    leaves |= {
        node: value_of(node)
        for node in topological([each.node for each in made])
        if node.op.name == "array"
    }
    nodes = tuple(each.node for each in made)
    oracle = interpret(nodes, leaves)
    if seed == 1:
        results = [each.numpy() for each in cd.compile(made).run()]
    else:
        # The parts by NumPy, which need not be compiled.
        results = interpret(complex_parts(Program(nodes)).outputs, leaves)
    for result, other, (_, numpys) in zip(results, oracle, OPERATIONS, strict=True):
        right = numpys(*arrays)
        np.testing.assert_allclose(result, right, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(result, other, rtol=2e-5, atol=2e-5)
        assert result.dtype == other.dtype


def test_only_memory_is_complex_after_the_pass_of_its_name() -> None:
    z, w = (Expr(lift(cd.tensor(complex_numbers(2, 3, seed=seed)))) for seed in (1, 2))
    y = op.ifft(op.fft(z) * op.exp(w)) / w
    program = Program((y.node, op.svd(z * w)[0].node, op.sum(op.abs(y)).node))
    for name, run in passes(lambda op: TABLE.has(op, "cpu")):
        program = run(program)
        verify(program, name)
        if name in ("losses", "few_bits", "precision"):
            continue
        complex_ops = {n.op.name for n in program.order() if has_complex(n)}
        assert complex_ops <= {"tensor", "complex", "svd", "item"}
    # One loop computes both parts.
    names = [node.op.name for node in program.order()]
    assert names.count("complex") == 3
    loops = [node for node in program.order() if node.op.name == "fused"]
    assert sorted(len(node.outputs) for node in loops)[-3:] == [2, 2, 3]


def test_elements_and_loops() -> None:
    z = cd.tensor(complex_numbers(3, 2))
    right = z.numpy().copy()
    right[1] = 1j
    assert np.array_equal((z * 1.0).at[1].set(1j).numpy(), right)
    assert op.sum(z[::2] * 1j).item() == pytest.approx((z.numpy()[::2] * 1j).sum())
    one = np.ones((), "complex128")
    last, _ = op.scan(lambda c, x: (c * x, x), one, z[:, 0] * 1.0)
    assert last.item() == pytest.approx(z.numpy()[:, 0].prod(), rel=1e-6)


# --- gradients


def test_the_gradient_is_that_of_the_parts() -> None:
    """d|z|^2 is 2x dx + 2y dy, so it is 2z: a step against it makes the loss smaller."""
    z = op.var("z", (2,), fill=[3 + 4j, -1j], dtype="complex64")
    assert op.grad(op.sum(op.square(op.abs(z))), z).tolist() == [6 + 8j, -2j]
    assert op.grad(op.sum(op.real(z * 1j)), z).tolist() == [-1j, -1j]
    # At 0 the magnitude has no slope.
    zero = op.var("zero", (), fill=0j, dtype="complex64")
    assert op.grad(op.abs(zero), zero).item() == 0


def test_a_real_variable_has_a_real_gradient() -> None:
    x = op.var("x", (3,), fill=[1.0, 2.0, 3.0])
    slope = op.grad(op.sum(op.abs(x * (3 + 4j))), x)
    assert slope.dtype == dtypes.float32
    np.testing.assert_allclose(slope.numpy(), [5, 5, 5], rtol=1e-6)


def test_a_complex_output_needs_a_seed() -> None:
    z = op.var("z", (), fill=1 + 2j, dtype="complex64")
    with pytest.raises(GradientError, match=r"expected a real value.*apply op\.real.*seed="):
        op.grad(z * z, z)
    assert op.grad(z * z, z, seed=1j).item() == pytest.approx(1j * np.conj(2 * (1 + 2j)))


def test_eigenvectors_of_repeated_eigenvalues_have_no_gradient() -> None:
    a = op.var("a", (2, 2), fill=cd.identity())
    w, v = (op.sum(op.real(each)) for each in op.eig(a))
    values, vectors = cd.compile([op.grad(w, a), op.grad(v, a)]).run()
    assert not np.isfinite(vectors.numpy()).all()
    # That of the eigenvalues exists as long as the eigenvectors are independent.
    assert values.tolist() == [[1, 0], [0, 1]]


# --- memory, files


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_tensors(dtype: str, tmp_path: Path) -> None:
    array = complex_numbers(2, 3).astype(dtype)
    t = cd.tensor(array)
    assert f"dtype={dtype}" in repr(t)
    assert t[0, 1] == array[0, 1]
    assert complex(t[:1, 0] * 1.0) == array[0, 0]
    t[0, 1] = 2 + 1j
    array[0, 1] = 2 + 1j
    for again in (t.copy(), t.to("loopback"), pickle.loads(pickle.dumps(t)), cd.from_dlpack(t)):
        assert np.array_equal(again.numpy(), array)
        assert again.dtype == array.dtype
    assert np.array_equal(np.from_dlpack(t), array)
    cd.io.save_npy(tmp_path / "t.npy", t)
    assert np.array_equal(cd.io.load_npy(tmp_path / "t.npy").numpy(), array)
    assert cd.Tensor((2,), fill=1j, dtype=dtype).tolist() == [1j, 1j]


def test_files_that_do_not_know_complex_numbers_say_so(tmp_path: Path) -> None:
    z = cd.tensor([1 + 2j])
    cd.io.save_safetensors(tmp_path / "t.safetensors", {"z": z})
    assert cd.io.load_safetensors(tmp_path / "t.safetensors")["z"].tolist() == [1 + 2j]
    with pytest.raises(DtypeError, match=r"'z': expected a dtype that safetensors.*complex128"):
        cd.io.save_safetensors(tmp_path / "t.safetensors", {"z": z.astype("complex128")})
    with pytest.raises(DtypeError, match="expected real numbers in a CSV file, got complex64"):
        cd.io.write_csv(tmp_path / "t.csv", z)
    (tmp_path / "t.csv").write_text("1\n")
    with pytest.raises(DtypeError, match="expected real numbers in a CSV file"):
        cd.io.read_csv(tmp_path / "t.csv", dtype="complex64")


def test_variables_and_inputs_hold_complex_numbers() -> None:
    z = op.var("z", (2,), fill=[1j, 2], dtype="complex64")
    fed = op.input("fed", (2,), dtype="complex64")
    plan = cd.compile([op.assign(z, z * fed), op.sum(z)])
    assert plan.run({"fed": [2j, 1]})[0].item() == 2 + 1j
    assert z.numpy().tolist() == [-2, 2]
    real = op.var("real", (2,))
    with pytest.raises(DtypeError, match=r"expected real numbers to cast to float32"):
        op.assign(real, z)


# --- what refuses them


REFUSED: list[Callable[[Any], Any]] = [
    lambda z: z > 1.0,
    lambda z: z <= z,
    op.floor,
    op.ceil,
    op.round,
    op.trunc,
    op.relu,
    op.gelu,
    op.sigmoid,
    op.softmax,
    op.erf,
    lambda z: z // 2,
    lambda z: z % 2,
    lambda z: op.maximum(z, 0),
    lambda z: op.clip(z, 0, 1),
    op.max,
    op.min,
    lambda z: op.argmax(z, 0),
    op.logsumexp,
    op.median,
    lambda z: op.sort(z, 0),
    lambda z: op.argsort(z, 0),
    lambda z: op.top_k(z, 1, 0),
    lambda z: op.cummax(z, 0),
    lambda z: op.hypot(z, z),
    lambda z: op.atan2(z, z),
    lambda z: op.logaddexp(z, z),
    lambda z: op.mean_squared_error(z, z),
    lambda z: op.mean_absolute_error(z, z),
    lambda z: op.huber(z, z),
    lambda z: op.rfft(z),
    lambda z: op.layer_norm(z, z, z),
    lambda z: op.dropout(z),
    lambda z: op.all_sum(z),
    lambda z: op.conv1d(op.reshape(z, (1, 2, 2)), np.ones((1, 2, 1))),
    lambda z: op.complex(z, z),
    lambda z: op.random_normal((2,), dtype="complex64"),
    lambda z: nn.Dense(2)(z),
    lambda z: nn.ReLU()(z.numpy()),
    lambda z: op.binary_cross_entropy(z, z),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_has_no_meaning_is_refused_at_the_door(number: int) -> None:
    z = op.var("z", (2, 2), fill=complex_numbers(2, 2), dtype="complex64")
    with pytest.raises(DtypeError, match=r"expected .*got"):
        REFUSED[number](z)


def test_optimizers_and_fillers_refuse_them() -> None:
    z = op.var("z", (2,), fill=[1j, 2], dtype="complex64")
    loss = op.sum(op.abs(z))
    with pytest.raises(DtypeError, match=r"SGD: expected real variables, got z complex64; train"):
        optim.SGD(0.1).apply([z], [op.grad(loss, z)])
    for fill in (cd.uniform(0, 1), cd.normal()):
        with pytest.raises(DtypeError, match="expected a float"):
            cd.Tensor((2,), fill=fill, dtype="complex64")


def test_data_for_networks_are_real() -> None:
    z = np.ones((4, 2), "complex64")
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)])
    for refused in (
        lambda: cd.data.ArrayData(z),
        lambda: cd.data.SubtractMean(mean=[1j]),
        lambda: model.fit((z, np.zeros(4, int))),
        lambda: model.predict(z),
    ):
        with pytest.raises(DtypeError, match=r"expected .*got complex"):
            refused()


def test_a_layer_may_compute_with_them_inside() -> None:
    class Filter(nn.Layer):
        """A convolution over all positions, by frequencies."""

        def build(self, x: Any) -> None:
            self.weight = self.parameter("weight", (x.shape[-1] // 2 + 1, 2), fill=cd.normal())

        def forward(self, x: Any) -> Any:
            spectrum = op.rfft(x) * op.view_as_complex(self.weight)
            return op.irfft(spectrum, x.shape[-1])

    layer = Filter()
    x = numbers(3, 8).astype("float32")
    result = layer(x)
    weight = layer.parameters()[0]
    step = optim.SGD(0.01).apply([weight], [op.grad(Expr(sum_(result.node, (0, 1))), weight)])
    before = op.sum(result).item()
    cd.compile(step).run()
    assert op.sum(result).item() < before
