"""Compressors: the same bits on every rank, nothing lost, state that survives a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera.comm import Communicator, SingleProcess, run_virtual_ranks
from caldera.compress import (
    QSGD,
    Cast,
    Compressor,
    Lossless,
    OneBit,
    PowerSGD,
    RandomK,
    TernGrad,
    TopK,
    compressors,
    redistribute,
)

Make = Callable[[], Compressor]
KEEPING: list[Make] = [
    lambda: TopK(0.05),
    lambda: TopK(7, bits=4),
    lambda: TopK(16, block=512, bits=4),
    lambda: TopK(0.1, scope="global"),
    lambda: TopK(0.05, sampled=True, algorithm="dense_switching"),
    lambda: TopK(0.05, bits=2, algorithm="recursive_doubling"),
    lambda: RandomK(0.1),
    lambda: PowerSGD(2),
    lambda: OneBit(bucket=64),
    lambda: QSGD(4, feedback=True),
    lambda: TernGrad(feedback=True),
    lambda: Cast("float16", feedback=True),
]
"""Those that keep what they leave out."""
PASSING: list[Make] = [
    lambda: QSGD(8),
    lambda: QSGD(2),
    TernGrad,
    Cast,
    lambda: Cast("float16"),
    Lossless,
    lambda: RandomK(0.5, feedback=False),
]
ALL = KEEPING + PASSING
SHAPES = {"w": (40, 30), "b": (30,), "v": (30, 17)}


def _gradients(rank: int, step: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng([rank, step])
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def _ids(make: Make) -> str:
    return repr(make())


@pytest.mark.parametrize("make", ALL, ids=_ids)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_end_with_the_same_bits(make: Make, ranks: int) -> None:
    def work(comm: Communicator) -> list[bytes]:
        compressor, seen = make(), []
        for step in range(2):
            together, alone = _gradients(comm.rank, step), _gradients(comm.rank, step + 10)
            compressor.exchange_all(together, comm)
            for name, gradient in alone.items():
                compressor.exchange(f"other {name}", gradient, comm)
            seen += [g.tobytes() for g in (*together.values(), *alone.values())]
        return seen

    first, *others = run_virtual_ranks(ranks, work)
    assert all(each == first for each in others)


@pytest.mark.parametrize("make", KEEPING, ids=_ids)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_was_applied_and_what_is_kept_are_all_gradients(make: Make, ranks: int) -> None:
    steps = 4

    def work(comm: Communicator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        compressor = make()
        applied = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        for step in range(steps):
            gradients = _gradients(comm.rank, step)
            compressor.exchange_all(gradients, comm)
            for name, gradient in gradients.items():
                applied[name] += gradient
        return applied, compressor.state()

    results = run_virtual_ranks(ranks, work)
    for name, shape in SHAPES.items():
        given = sum(_gradients(r, s)[name].astype("f8") for r in range(ranks) for s in range(steps))
        none = np.zeros(shape)
        kept = sum(state.get(f"residual/{name}", none).reshape(shape) for _, state in results)
        np.testing.assert_allclose(results[0][0][name] + kept, given, atol=2e-4)


@settings(max_examples=60)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=200),
    st.sampled_from([1, 3, 0.1, 0.5]),
    st.sampled_from(["layer", "global"]),
    st.booleans(),
)
def test_sent_and_residual_are_gradient_and_old_residual_bit_for_bit(
    values: list[float], k: float, scope: str, sampled: bool
) -> None:
    gradient = np.array(values, np.float32)
    compressor = TopK(k, scope=scope, sampled=sampled)
    for factor in (1.0, -0.5, 0.25):
        old = compressor.state().get("residual/w", np.zeros_like(gradient))
        sent = gradient * np.float32(factor)
        expected = sent + old
        compressor.exchange("w", sent, SingleProcess())
        new = compressor.state()["residual/w"]
        assert not (sent * new).any()
        assert (sent + new).tobytes() == (expected + np.float32(0)).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_blocks_send_the_largest_bit_for_bit(dtype: str) -> None:
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(33, 100)).astype(cd.tensor([0.0], dtype=dtype).numpy().dtype)
    compressor = TopK(16, block=512)
    sent = gradient.copy()
    compressor.exchange("w", sent, SingleProcess())
    kept = compressor.state()["residual/w"].reshape(sent.shape)
    wide = kept.dtype
    assert wide == ("float64" if dtype == "float64" else "float32")
    assert (sent.astype(wide) + kept).tobytes() == gradient.astype(wide).tobytes()
    flat = np.abs(gradient.astype(wide)).reshape(-1)
    for start in range(0, 3072, 512):
        block, chosen = flat[start : start + 512], sent.reshape(-1)[start : start + 512] != 0
        assert chosen.sum() == 16
        assert block[chosen].min() >= block[~chosen].max()


@pytest.mark.parametrize("bits", [None, 4])
def test_top_k_over_ranks_applies_exactly_what_ranks_took_from_their_residuals(
    bits: int | None,
) -> None:
    """Before the exchange gradient + old residual; after it the new residual: the rest was sent."""

    def work(comm: Communicator) -> tuple[np.ndarray, np.ndarray]:
        compressor = TopK(0.1, bits=bits)
        gradient = _gradients(comm.rank, 0)["w"]
        total = gradient.copy()
        compressor.exchange("w", total, comm)
        sent = gradient - compressor.state()["residual/w"].reshape(gradient.shape)
        return total, sent

    results = run_virtual_ranks(4, work)
    total = sum(sent.astype("f8") for _, sent in results)
    np.testing.assert_allclose(results[0][0], total, atol=1e-6 if bits is None else 1e-5)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_sampled_threshold_sends_about_as_much(scope: str) -> None:
    rng = np.random.default_rng(0)
    gradients = {name: rng.normal(size=50_000).astype(np.float32) for name in ("a", "b")}
    TopK(0.02, scope=scope, sampled=True).exchange_all(gradients, SingleProcess())
    sent = sum(int(np.count_nonzero(gradient)) for gradient in gradients.values())
    assert 1200 < sent < 3000


def test_global_scope_compares_parameters_with_each_other() -> None:
    gradients = {"small": np.full(10, 0.1, np.float32), "large": np.full(10, 5.0, np.float32)}
    TopK(4, scope="global").exchange_all(gradients, SingleProcess())
    assert not gradients["small"].any()
    assert gradients["large"].tolist() == [5.0] * 4 + [0.0] * 6


def test_momentum_correction_is_that_of_the_definition() -> None:
    """u = m u + g; v = v + u; what is sent leaves both (Lin and others, algorithm 2)."""
    rng = np.random.default_rng(0)
    compressor = TopK(3, momentum=0.9)
    u, v = np.zeros(20, np.float32), np.zeros(20, np.float32)
    for _ in range(10):
        gradient = rng.normal(size=20).astype(np.float32)
        u = np.float32(0.9) * u + gradient
        v = v + u
        chosen = np.argsort(-np.abs(v), kind="stable")[:3]
        expected = np.zeros(20, np.float32)
        expected[chosen] = v[chosen]
        u[chosen] = v[chosen] = 0
        compressor.exchange("w", gradient, SingleProcess())
        np.testing.assert_array_equal(gradient, expected)
    np.testing.assert_array_equal(compressor.state()["velocity/w"], u)


def test_random_k_without_feedback_is_unbiased() -> None:
    gradient = np.arange(1, 41, dtype=np.float32)
    compressor = RandomK(0.25, feedback=False)
    draws, total = 2000, np.zeros(40)
    for _ in range(draws):
        sent = gradient.copy()
        compressor.exchange("w", sent, SingleProcess())
        total += sent
    sigma = gradient * np.sqrt(3 / draws)
    assert (np.abs(total / draws - gradient) <= 4 * sigma).all()


def test_power_sgd_is_exact_for_gradients_of_low_rank_and_sends_only_factors() -> None:
    rng = np.random.default_rng(0)
    right = rng.normal(size=(3, 80)).astype(np.float32)
    lefts = rng.normal(size=(4, 60, 3)).astype(np.float32)

    def work(comm: Communicator) -> tuple[np.ndarray, int]:
        gradient = lefts[comm.rank] @ right
        before = comm.traffic.mark()
        PowerSGD(3).exchange("w", gradient, comm)
        return gradient, comm.traffic.since(before).total.bytes_sent

    for gradient, sent in run_virtual_ranks(4, work):
        np.testing.assert_allclose(gradient, lefts.sum(axis=0) @ right, rtol=1e-3, atol=1e-3)
        assert sent <= 2 * 4 * 3 * (60 + 80)


def test_lossless_is_a_plain_sum_in_the_order_of_ranks() -> None:
    parts = [_gradients(rank, 0)["w"] for rank in range(4)]

    def work(comm: Communicator) -> np.ndarray:
        gradient = parts[comm.rank].copy()
        Lossless().exchange("w", gradient, comm)
        return gradient

    expected = parts[0] + parts[1] + parts[2] + parts[3]
    np.testing.assert_array_equal(run_virtual_ranks(4, work)[0], expected)


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [(lambda: Cast("bfloat16"), 2e-2), (lambda: Cast("float16"), 3e-3), (lambda: QSGD(8), 1e-1)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sums_in_few_bits_are_near(make: Make, tolerance: float, dtype: str) -> None:
    def work(comm: Communicator) -> np.ndarray:
        gradient = _gradients(comm.rank, 0, dtype)["w"]
        make().exchange("w", gradient, comm)
        return gradient

    expected = sum(_gradients(rank, 0, dtype)["w"].astype("f8") for rank in range(3))
    found = run_virtual_ranks(3, work)[0]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize("ranks", [2, 4])
def test_dense_codes_send_what_the_formula_says(ranks: int) -> None:
    n, bits, bucket = 64 * 64, 4, 64

    def work(comm: Communicator) -> int:
        QSGD(bits, bucket=bucket).exchange("w", np.ones(n, np.float32), comm)
        return comm.traffic.total.bytes_sent

    part = n // ranks
    message = part * bits // 8 + 4 * part // bucket
    assert run_virtual_ranks(ranks, work) == [2 * (ranks - 1) * message] * ranks


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lossless(mean=True),
        lambda: TopK(0.99, mean=True),
        lambda: RandomK(1.0, mean=True),
        lambda: TopK(1200, mean=True, algorithm="dense_switching"),
        lambda: PowerSGD(30, mean=True),
    ],
    ids=_ids,
)
def test_the_mean_is_the_sum_over_the_number_of_ranks(make: Make) -> None:
    """Also in float16, where the sum would be too large."""

    def work(comm: Communicator) -> np.ndarray:
        gradient = np.full((40, 30), 20_000.0 + 16 * comm.rank, np.float16)
        make().exchange("w", gradient, comm)
        return gradient

    found = run_virtual_ranks(4, work)[0]
    assert (found == 20_024).mean() > 0.98


@pytest.mark.parametrize("make", ALL, ids=_ids)
def test_a_run_that_was_saved_and_restored_ends_with_the_same_bits(make: Make) -> None:
    def work(comm: Communicator) -> tuple[list[bytes], list[bytes]]:
        def steps(compressor: Compressor, first: int) -> list[bytes]:
            seen = []
            for step in range(first, first + 2):
                gradients = _gradients(comm.rank, step)
                compressor.exchange_all(gradients, comm)
                seen += [gradient.tobytes() for gradient in gradients.values()]
            return seen

        whole = make()
        steps(whole, 0)
        state = whole.state()
        resumed = make()
        resumed.restore(state)
        return steps(whole, 2), steps(resumed, 2)

    for uninterrupted, resumed in run_virtual_ranks(2, work):
        assert uninterrupted == resumed


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_residuals_of_four_ranks_go_to_another_number(size: int) -> None:
    def work(comm: Communicator) -> dict[str, np.ndarray]:
        compressor = TopK(0.1, momentum=0.9)
        compressor.exchange_all(_gradients(comm.rank, 0), comm)
        return compressor.state()

    states = run_virtual_ranks(4, work)
    found = redistribute(states, size)
    assert len(found) == size
    for name in SHAPES:
        for kind in ("residual", "velocity"):
            key = f"{kind}/{name}"
            before = sum(state[key].astype("f8") for state in states)
            after = sum(state[key].astype("f8") for state in found)
            np.testing.assert_allclose(after, before, atol=1e-5)
    assert all(state["step/w"] == 1 for state in found)
    TopK(0.1).restore(found[0])


def test_for_means_the_mean_of_the_residuals_stays() -> None:
    states = [{"residual/w": np.array([rank + 1.0])} for rank in range(4)]
    found = redistribute(states, 2, mean=True)
    assert np.mean([state["residual/w"] for state in found]) == 2.5


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(cd.CheckpointError, match="momentum/w"):
        TopK(0.1).restore({"momentum/w": np.zeros(3)})


@pytest.mark.parametrize("make", [*KEEPING, lambda: TopK(0.01, momentum=0.9)], ids=_ids)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_shows_at_once_and_does_not_stay(make: Make, bad: float) -> None:
    def work(comm: Communicator) -> tuple[bool, bool]:
        compressor = make()
        if isinstance(compressor, RandomK):
            compressor.k = 1.0
        gradients = _gradients(comm.rank, 0)
        if comm.rank == 1:
            gradients["w"][3:6] = bad
        with np.errstate(all="ignore"):
            compressor.exchange_all(gradients, comm)
        shown = not all(np.isfinite(gradient).all() for gradient in gradients.values())
        for step in (1, 2):
            gradients = _gradients(comm.rank, step)
            compressor.exchange_all(gradients, comm)
        return shown, all(np.isfinite(gradient).all() for gradient in gradients.values())

    assert run_virtual_ranks(2, work) == [(True, True)] * 2


@pytest.mark.parametrize("name", list(compressors))
def test_compressors_have_names_and_configurations(name: str) -> None:
    made = compressors.make(name)
    again = compressors.from_config(made.config())
    assert again.config() == made.config()
    assert type(again) is type(made)


def test_top16_q4_is_16_of_512_in_four_bits() -> None:
    made = compressors.make("top16_q4")
    assert isinstance(made, TopK)
    assert (made.k, made.block) == (16, 512)
    assert made.arguments()["bits"] == 4


def test_gradients_that_cannot_be_exchanged_are_refused() -> None:
    comm = SingleProcess()
    with pytest.raises(cd.DtypeError, match="a float dtype"):
        QSGD().exchange("w", np.zeros(3, np.int32), comm)
    with pytest.raises(cd.ShapeError, match="contiguous"):
        QSGD().exchange("w", np.zeros((4, 4), np.float32)[:, ::2], comm)
    compressor = TopK(1)
    compressor.exchange("w", np.ones(3, np.float32), comm)
    with pytest.raises(cd.ShapeError, match="3 elements, as before"):
        compressor.exchange("w", np.ones(4, np.float32), comm)


@pytest.mark.parametrize(
    "arguments",
    [
        {"k": 0},
        {"k": 1.5},
        {"k": 600, "block": 512},
        {"k": 0.1, "block": 512},
        {"momentum": 1.0},
        {"scope": "world"},
        {"k": 16, "block": 512, "sampled": True},
        {"algorithm": "ring"},
        {"bits": 5},
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(cd.ConfigError):
        TopK(**arguments)  # type: ignore[arg-type]


def test_empty_gradients_are_left_alone() -> None:
    gradients = {"none": np.empty((0, 4), np.float32), "one": np.ones(1, np.float32)}
    TopK(0.5).exchange_all(gradients, SingleProcess())
    assert gradients["one"].tolist() == [1.0]
    QSGD().exchange("none", gradients["none"], SingleProcess())
