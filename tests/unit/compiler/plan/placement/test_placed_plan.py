"""Plans of several devices: pins, copies between parts, and the same bits as on one device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.placement import parts
from caldera.compiler.plan.placement.placed_plan import PlacedPlan
from caldera.core.graph.node import pinned
from tests.transfers import counted_from_now

DEVICES = ("cpu", "loopback:0", "loopback:1")
SHAPE = (3, 4)


@pytest.fixture(autouse=True)
def _same_kernels() -> Iterator[None]:
    """Those of plans that measure, and of plans that will, are the same."""
    with cd.settings.override(tune_budget_s=0.0):
        yield


def variable(name: str, device: str, seed: int = 0) -> Variable:
    draw = np.random.default_rng([seed, sum(map(ord, name))])
    kind = draw.choice([cd.MANAGED, cd.MANAGED, cd.HOST, cd.DEVICE])
    return op.var(
        name, SHAPE, fill=draw.normal(size=SHAPE).astype("float32"), device=device, kind=kind
    )


def random_program(seed: int, placed: bool) -> tuple[list[Variable], list[Expr]]:
    """Some variables, outputs of them and assignments; `placed` puts all of it anywhere."""
    draw = np.random.default_rng(seed)
    places = [str(draw.choice(DEVICES)) for _ in range(40)]
    where = iter(places if placed else ["cpu"] * 40)
    variables = [variable(f"v{i}", next(where), seed) for i in range(3)]
    values: list[Expr] = [*variables, op.input("x", SHAPE)]
    for _ in range(12):
        a, b = (values[int(i)] for i in draw.integers(0, len(values), 2))
        kind, device, is_pinned = int(draw.integers(0, 5)), next(where), draw.random() < 0.6
        with pinned(device if is_pinned else None):
            made: Any
            if kind == 0:
                made = op.tanh(a) * b
            elif kind == 1:
                made = op.matmul(a, op.transpose(b)) @ a
            elif kind == 2:
                made, _ = op.sort(a, axis=1), None
            elif kind == 3:
                made = op.concat(op.split(a, 2, axis=1)[::-1], axis=1) - b
            else:
                made = a - op.max(b, axis=0, keepdims=True)
        values.append(made[0] if isinstance(made, tuple) else made)
    chosen = [values[int(i)] for i in draw.integers(0, len(values), 3)]
    # A swap, a new value, and perhaps one that stays.
    order = draw.permutation(3)
    updates = [
        op.assign(variables[order[0]], variables[order[1]]),
        op.assign(variables[order[1]], values[-1] + variables[order[0]]),
    ]
    return variables, [*chosen, *updates]


def results(seed: int, placed: bool, device: str | None) -> list[np.ndarray]:
    variables, wanted = random_program(seed, placed)
    plan = cd.compile(wanted, device=device, without=("fuse",))
    found: list[np.ndarray] = []
    for run in range(3):
        feeds = np.random.default_rng(run).normal(size=SHAPE).astype("float32")
        outputs = plan.run({"x": feeds} if plan.inputs else {})
        found += [each.numpy().copy() for each in outputs]
        if run == 1 and plan.can_capture and not plan.device.is_host:
            plan.capture()
    return [*found, *(each.numpy() for each in variables)]


@pytest.mark.parametrize("seed", range(4))
def test_programs_anywhere_give_the_bits_of_one_device(seed: int) -> None:
    here = results(seed, False, "cpu")
    for device in ("loopback:0", None):
        there = results(seed, True, device)
        assert all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))


def fitted(device: str, pin: str | None, keeper: str | None, **options: Any) -> Any:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 50, (64, 6)), draw.integers(0, 3, 64)
    model = cd.NeuralNetwork(
        [
            nn.Input((6,), dtype="int64"),
            nn.Embedding(50, 8, device=pin),
            nn.Flatten(),
            nn.Dense(16),
            nn.BatchNorm(),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Dense(3),
        ],
        optimizer=optim.Adam(0.01, device=keeper, **options),
        batch_size=16,
        device=device,
    )
    model.fit((x, y), epochs=1, verbose=0)
    return model, [model.evaluate((x, y)), [each.numpy().tolist() for each in model.parameters()]]


@pytest.mark.parametrize(
    ("device", "pin", "keeper", "options"),
    [
        ("loopback", "cpu", None, {}),
        ("loopback", None, "cpu", {"clip": optim.ClipNorm(1.0)}),
        ("loopback:1", "loopback:0", "cpu", {"accumulate": 2}),
    ],
)
def test_training_with_pinned_layers_and_updates_gives_the_same_bits(
    device: str, pin: str | None, keeper: str | None, options: dict[str, Any]
) -> None:
    _, alone = fitted("cpu", None, None, **options)
    model, placed = fitted(device, pin, keeper, **options)
    assert placed == alone
    home = cd.device(pin or device)
    assert model.parameters()[0].tensor.device is home
    kept = model.optimizer.kept_for(model.parameters()[0])
    assert all(each.tensor.device is cd.device(keeper or home) for each in kept)


def test_of_a_table_on_the_host_only_the_rows_are_copied() -> None:
    table = nn.Embedding(10_000, 4, device="cpu")
    words = op.input("words", (8,), dtype="int64")
    with nn.trace(device="loopback"):
        y = nn.Dense(2)(table(words))
    loss = op.sum(op.square(y))
    parameters = [table.weight, *[op.var("w", (1,), device="loopback")]]
    updates = optim.SGD(0.1).train(loss + op.sum(parameters[1]), parameters)
    plan = cd.compile([loss, *updates], device="loopback")
    feeds = {"words": np.arange(8)}
    plan.run(feeds)
    card = cd.device("loopback")
    counted_from_now(card)
    plan.run(feeds)
    card.stream.synchronize()
    assert isinstance(plan, PlacedPlan)
    assert card.counters.h2d_bytes + card.counters.d2h_bytes < 1000 < table.weight.tensor.nbytes
    assert plan.copied_bytes < 1000
    # Neither is a second table made: rows are changed where they lie.
    assert plan.arena_bytes + plan.held_bytes < table.weight.tensor.nbytes


def test_a_card_goes_on_while_the_host_computes() -> None:
    """The host's part is not kept waiting by a card that has not begun."""
    a = op.var("a", (4,), fill=cd.constant(2.0), device="loopback:2")
    b = op.var("b", (4,), fill=cd.constant(3.0), device="cpu")
    seen: list[str] = []
    with pinned("loopback:2"):
        far = op.exp(a)
    with pinned("cpu"):
        near = op.exp(b)
    plan = cd.compile([far, near], device="loopback:2")
    assert [part.device.name for part in plan.parts] == ["loopback:2", "cpu"]  # type: ignore[attr-defined]
    card = cd.device("loopback:2")
    plan.run()
    card.stream.synchronize()
    waits = card.counters.waits
    card.stream.launch(lambda: seen.append("begun"))
    plan.run()
    assert card.counters.waits == waits


def test_a_plan_of_the_host_reads_what_a_card_has() -> None:
    w = op.var("w", (2,), fill=cd.constant(3.0), device="loopback")
    plan = cd.compile([w * 2.0, op.assign(w, w + 1.0)], device="cpu")
    assert [plan.run()[0].tolist() for _ in range(2)] == [[6.0, 6.0], [8.0, 8.0]]
    assert (w * 1.0).eval().device.name == "loopback:0"
    assert w.numpy().tolist() == [5.0, 5.0]


def test_a_pin_is_kept_in_a_file(tmp_path: Any) -> None:
    model, _ = fitted("loopback", "cpu", "cpu")
    model.save(tmp_path / "model.caldera")
    again = cd.load(tmp_path / "model.caldera")
    pins = [layer.pin for layer in again.walk()]
    assert pins.count("cpu") == 1
    assert again.optimizer.device == "cpu"
    again.to("loopback")
    assert {each.tensor.device.name for each in again.parameters()} == {"cpu", "loopback:0"}
    x = np.zeros((4, 6), np.int64)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_placement_names_the_device_of_what_is_not_pinned() -> None:
    x = op.var("x", (2,), fill=cd.constant(3.0), device="cpu")
    for name, device in (("loopback", "loopback:0"), ("cpu", "cpu"), ("auto", "cpu")):
        with cd.settings.override(placement=name):
            result = (x * 2.0).eval()
        assert result.device.name == device
        assert result.tolist() == [6.0, 6.0]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(cd.ConfigError, match=r"placement.*one of auto.*did you mean 'cuda'"):
        cd.settings.placement = "cudaa"
    with pytest.raises(cd.DeviceError, match=r"expected.*\"cpu\""):
        nn.Dense(3, device="gpu")(op.input("x", (1, 2)))
    with pytest.raises(cd.ConfigError, match="device= a name"):
        nn.Dense(3, device=0)(op.input("x", (1, 2)))
    plan = cd.compile([variable("a", "cpu") + variable("b", "loopback")])
    with pytest.raises(cd.ConfigError, match="a value for each of: no inputs"):
        plan.run({"x": 1.0})


def test_wrong_inputs_of_a_later_part_change_nothing() -> None:
    first, second = variable("a", "cpu"), variable("b", "loopback")
    shape = first.shape
    x, y = op.input("x", shape), op.input("y", shape)
    with cd.pinned("cpu"):
        new = first + x
    with cd.pinned("loopback"):
        other = new * second + y
    plan = cd.compile([op.assign(first, new), op.assign(second, other)])
    assert len(plan.parts) > 1
    before = first.numpy().copy()
    right = np.ones(shape, "float32")
    for wrong in (np.ones((9, 9), "float32"), "text"):
        with pytest.raises(cd.CalderaError, match=r"input y|dtype"):
            plan.run({"x": right, "y": wrong})
        np.testing.assert_array_equal(first.numpy(), before)
    with pytest.raises(cd.ConfigError, match="feeds= a dict"):
        plan.run([right])
    plan.run({"x": right, "y": right})
    np.testing.assert_array_equal(first.numpy(), before + 1)


def large_step(device: str, keeper: str | None) -> tuple[Any, list[Any]]:
    """A plan of three layers of 64 KiB that Adam trains, and the parameters."""
    draw = np.random.default_rng(0)
    weights = [
        op.var(
            f"w{i}",
            (128, 128),
            fill=draw.normal(size=(128, 128)).astype("float32") / 16,
            device=device,
        )
        for i in range(3)
    ]
    y: Expr = op.input("x", (4, 128))
    for weight in weights:
        y = op.tanh(y @ weight)
    loss = op.sum(op.square(y))
    updates = optim.Adam(0.01, device=keeper).train(loss, weights)
    return cd.compile([loss, *updates], device=device, remember=False), weights


def test_updates_on_the_host_begin_when_the_first_gradient_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "LEAST", 1)
    plan, weights = large_step("loopback", "cpu")
    devices = [part.device.name for part in plan.parts]
    assert devices == ["loopback:0", "cpu", "cpu", "cpu"]
    # Each has one gradient to wait for, and sends one new weight back.
    assert [len(part.sent) for part in plan.parts] == [3, 1, 1, 1]
    plain, alone = large_step("cpu", None)
    for step in range(3):
        feeds = {"x": np.full((4, 128), 0.1 * step, "float32")}
        assert plan.run(feeds)[0].item() == plain.run(feeds)[0].item()
    for here, there in zip(alone, weights, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())


def test_a_card_that_has_no_room_for_the_optimizer_trains_with_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feeds = {"x": np.ones((4, 128), "float32")}
    for keeper, device in ((None, "loopback:6"), ("cpu", "loopback:7")):
        # Room for weights and gradients, and for no more than that.
        monkeypatch.setattr(cd.device(device).pool, "_capacity", 7 * (1 << 16))
        if keeper is None:
            alone_on_it = cd.settings.override(placement="loopback")
            with alone_on_it, pytest.raises(cd.OutOfMemoryError):
                large_step(device, keeper)[0].run(feeds)
            continue
        plan, weights = large_step(device, keeper)
        plain, alone = large_step("cpu", None)
        for _ in range(2):
            assert plan.run(feeds)[0].item() == plain.run(feeds)[0].item()
        for here, there in zip(alone, weights, strict=True):
            np.testing.assert_array_equal(here.numpy(), there.numpy())


def test_a_plan_outlives_what_moves_elsewhere_and_is_made_anew_for_what_is_its_own() -> None:
    a, b, other = (
        op.var(name, (2,), fill=cd.constant(2.0), device=device)
        for name, device in (("a", "cpu"), ("b", "loopback"), ("other", "cpu"))
    )
    total = a + b
    plan = cd.compile(total)
    first = plan.run()[0].numpy().copy()
    other.move("loopback:1")
    assert cd.compile(total) is plan
    np.testing.assert_array_equal(plan.run()[0].numpy(), first)
    b.move("loopback:1")
    assert cd.compile(total) is not plan
    np.testing.assert_array_equal(total.numpy(), first)


def test_what_a_card_has_no_room_for_is_kept_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(device: str, capacity: int | None) -> set[str]:
        monkeypatch.setattr(cd.device(device).pool, "_capacity", capacity)
        draw = np.random.default_rng(0)
        model = cd.NeuralNetwork(
            [nn.Input((128,)), nn.Dense(256), nn.Dense(3)],
            optimizer=optim.Adam(0.01),
            batch_size=16,
            device=device,
        )
        model.fit((draw.normal(size=(32, 128)), draw.integers(0, 3, 32)), verbose=0)
        return {each.tensor.device.name for each in model.optimizer.variables()}

    assert kept("loopback:8", 1 << 30) == {"loopback:8"}
    # Weights of 132 kB, which with gradients and state are 528.
    assert kept("loopback:8", 500_000) == {"cpu"}
    with cd.settings.override(placement="loopback"), pytest.raises(cd.OutOfMemoryError):
        kept("loopback:8", 400_000)


def test_a_layer_is_pinned_before_its_parameters_exist() -> None:
    layer = nn.Dense(2, device="cpu")
    layer.device = "loopback"
    x = op.var("x", (1, 3), device="loopback")
    layer(x)
    layer.device = "loopback"
    with pytest.raises(cd.ConfigError, match=r"device= when the layer is made, .* device = 'cpu'"):
        layer.device = "cpu"
    assert layer.parameters()[0].tensor.device.name == "loopback:0"
