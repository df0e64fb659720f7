"""Recurrent layers, step by step in NumPy; masks, directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, testing
from caldera.errors import ConfigError, ShapeError

N, T, C, H = 3, 5, 4, 2
KINDS = [nn.RNN, nn.LSTM, nn.GRU]


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _run(layer: nn.Layer, *inputs: Any) -> np.ndarray:
    with nn.trace(dtype="float64"):
        return layer(*inputs).numpy()


def _made(kind: Any, **settings: Any) -> Any:
    """A layer in float64 whose biases are not zero."""
    layer = kind(H, **settings)
    with nn.trace(dtype="float64"):
        layer(_x(N, T, C))
    generator = np.random.default_rng(1)
    for parameter in layer.parameters():
        parameter.assign(generator.normal(size=parameter.shape))
    return layer


def _steps(layer: Any, x: np.ndarray) -> np.ndarray:
    """The outputs of all steps, by the textbook's formulas."""
    w, u, b, c = (variable.numpy() for variable in layer.parameters()[:4])
    h = cell = np.zeros((len(x), H))
    outputs = []
    for t in range(x.shape[1]):
        given, kept = x[:, t] @ w + b, h @ u + c
        if isinstance(layer, nn.RNN):
            h = np.tanh(given + kept)
        elif isinstance(layer, nn.LSTM):
            i, f, g, o = np.split(given + kept, 4, axis=1)
            cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(cell)
        else:
            (r, z, n), (ur, uz, un) = np.split(given, 3, axis=1), np.split(kept, 3, axis=1)
            new = np.tanh(n + _sigmoid(r + ur) * un)
            z = _sigmoid(z + uz)
            h = (1 - z) * new + z * h
        outputs.append(h)
    return np.stack(outputs, axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_follows_the_formulas(kind: Any) -> None:
    layer, x = _made(kind, return_sequences=True), _x(N, T, C)
    expected = _steps(layer, x)
    np.testing.assert_allclose(_run(layer, x), expected, atol=1e-12)
    layer.return_sequences = False
    np.testing.assert_allclose(_run(layer, x), expected[:, -1], atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_backwards_is_forwards_on_the_reversed_sequence(kind: Any) -> None:
    layer, x = _made(kind, return_sequences=True), _x(N, T, C)
    expected = _steps(layer, x[:, ::-1])[:, ::-1]
    layer.go_backwards = True
    np.testing.assert_allclose(_run(layer, x), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions_stand_side_by_side(kind: Any) -> None:
    layer, x = _made(kind, return_sequences=True, bidirectional=True), _x(N, T, C)
    both = _run(layer, x)
    forward, backward = _made(kind, return_sequences=True), _made(kind, go_backwards=True)
    backward.return_sequences = True
    parameters = [p.numpy() for p in layer.parameters()]
    for single, own in ((forward, parameters[:4]), (backward, parameters[4:])):
        for parameter, value in zip(single.parameters(), own, strict=True):
            parameter.assign(value)
    expected = np.concatenate([_run(forward, x), _run(backward, x)], axis=2)
    np.testing.assert_allclose(both, expected, atol=1e-12)
    # Each direction ends at its own end.
    layer.return_sequences = False
    ends = np.concatenate([expected[:, -1, :H], expected[:, 0, H:]], axis=1)
    np.testing.assert_allclose(_run(layer, x), ends, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padded_sequences_give_what_the_unpadded_ones_give(kind: Any, bidirectional: bool) -> None:
    layer = _made(kind, bidirectional=bidirectional)
    x, lengths = _x(N, T, C), np.array([5, 3, 1])
    mask = np.arange(T) < lengths[:, None]
    x[~mask] = 1e6
    for sequences in (False, True):
        layer.return_sequences = sequences
        by_length, by_mask = _run(layer, x, lengths), _run(layer, x, mask)
        np.testing.assert_array_equal(by_length, by_mask)
        for i, length in enumerate(lengths):
            alone = _run(layer, x[i : i + 1, :length])[0]
            found = by_length[i, :length] if sequences else by_length[i]
            np.testing.assert_allclose(found, alone, atol=1e-12)
        if sequences:
            assert not by_length[~mask].any()


def test_padding_in_front_works_as_well() -> None:
    layer, x = _made(nn.GRU), _x(1, T, C)
    mask = np.array([[False, False, True, True, True]])
    np.testing.assert_allclose(_run(layer, x, mask), _run(layer, x[:, 2:]), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: Any) -> None:
    layer = _made(kind, bidirectional=True)
    lengths = np.array([3, 2])
    testing.check_gradients(lambda x: layer(x, lengths), [_x(2, 3, C)])

    def of_weights(*values: Any) -> Any:
        layer._weights = [type(layer._weights[0])(*values)]
        return layer(_x(2, 3, C))

    layer = _made(kind)
    with nn.trace(dtype="float64"):
        testing.check_gradients(of_weights, [p.numpy() for p in layer.parameters()[:4]])


def test_padding_has_no_gradient() -> None:
    layer = _made(nn.LSTM, return_sequences=True)
    x = op.var("x", (N, T, C), fill=_x(N, T, C), dtype="float64")
    slope = op.grad(op.sum(layer(x, np.array([5, 3, 1]))), x).numpy()
    assert slope.any(-1).tolist() == (np.arange(T) < np.array([[5], [3], [1]])).tolist()


def test_masks_are_handed_on_in_a_sequence_of_layers() -> None:
    first, second = _made(nn.LSTM, return_sequences=True), nn.GRU(H)
    words = np.array([[3, 1, 2, 0, 0], [4, 0, 0, 0, 0]])
    table = nn.Embedding(5, C, mask_zero=True)
    with nn.trace(dtype="float64"):
        expected = second(first(*table(words)), words != 0).numpy()
    first.return_mask = True
    np.testing.assert_array_equal(_run(nn.Sequential([table, first, second]), words), expected)
    short = _run(nn.Sequential([table, first, second]), words[1:, :1])
    np.testing.assert_allclose(short[0], expected[1], atol=1e-12)


def test_the_forget_gate_begins_open() -> None:
    layer = nn.LSTM(H)
    layer(op.input("x", (N, T, C)))
    total = layer._weights[0].input_bias.numpy() + layer._weights[0].state_bias.numpy()
    assert total.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    square = layer._weights[0].state_weight.numpy()
    np.testing.assert_allclose(square @ square.T, np.eye(H), atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (np.ones(N + 1, np.int64), r"int64 of shape \(4,\)"),
        (np.ones((N, T)), r"float32 of shape \(3, 5\)"),
        (np.ones((T, N), bool), r"bool of shape \(5, 3\)"),
    ],
)
def test_other_masks_are_refused(mask: np.ndarray, got: str) -> None:
    expected = rf"LSTM: expected lengths of shape \(3,\), or booleans .* \(3, 5\), got {got}"
    with pytest.raises(ShapeError, match=expected):
        nn.LSTM(H)(op.input("x", (N, T, C)), mask)


def test_another_width_is_refused() -> None:
    layer = _made(nn.GRU)
    with pytest.raises(ShapeError, match=r"GRU: expected sequences \(N, T, 4\), got shape"):
        layer(op.input("x", (N, T, C + 1)))


def test_both_directions_by_name() -> None:
    layer = nn.Bidirectional(nn.GRU(H, return_sequences=True))
    assert nn.to_config(layer) == nn.to_config(nn.GRU(H, return_sequences=True, bidirectional=True))
    with pytest.raises(ConfigError, match=r"Bidirectional: expected a recurrent layer, such as"):
        nn.Bidirectional(nn.Dense(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"bidirectional": True}, {"go_backwards": True}])
@pytest.mark.parametrize("behind", [np.nan, np.inf])
def test_nothing_behind_the_mask_matters(kind: Any, settings: Any, behind: float) -> None:
    layer, clean = _made(kind, return_sequences=True, **settings), _x(N, T, C)
    lengths = np.arange(N) % T + 1
    hidden = np.arange(T) >= lengths[:, None]
    clean[hidden] = 0.0
    dirty = np.where(hidden[:, :, None], behind, clean)

    def results(given: np.ndarray) -> list[np.ndarray]:
        with nn.trace(dtype="float64"):
            x = op.var("x", given.shape, fill=given, dtype="float64")
            y = layer(x, lengths)
            slopes = op.grad(op.sum(y * y), [x, *layer.parameters()])
            return [each.numpy() for each in (y, *slopes)]

    for found, expected in zip(results(dirty), results(clean), strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_mean_over_steps_leaves_out_what_is_masked() -> None:
    x = np.array([[[1.0], [3.0], [np.nan]]])
    mask = np.array([[True, True, False]])
    assert nn.MeanPooling()(x, mask).tolist() == [[2.0]]


CELLS = {nn.RNN: nn.RNNCell, nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_states_go_in_and_come_out_as_pytorchs_do(kind: Any, both: bool) -> None:
    torch = pytest.importorskip("torch")
    layer = _made(kind, return_sequences=True, return_state=True, bidirectional=both)
    theirs = getattr(torch.nn, kind.__name__)(C, H, batch_first=True, bidirectional=both).double()
    values = [torch.tensor(each.numpy().T) for each in layer.parameters()]
    for parameter, value in zip(theirs.parameters(), values, strict=True):
        parameter.data = value
    x, held = _x(N, T, C), layer.states_held
    first = [_x(N, H) + number for number in range(held * (1 + both))]
    # Theirs are (directions, N, H): outputs, then cells.
    given = tuple(torch.tensor(np.stack(first[part::held])) for part in range(held))
    expected, last = theirs(torch.tensor(x), given if held > 1 else given[0])
    last = last if held > 1 else (last,)
    with nn.trace(dtype="float64"):
        y, *states = layer(x, state=tuple(op.cast(each, "float64") for each in first))
        np.testing.assert_allclose(y.numpy(), expected.detach(), atol=1e-12)
        for place, each in enumerate(states):
            wanted = last[place % held][place // held]
            np.testing.assert_allclose(each.numpy(), wanted.detach(), atol=1e-12)
        again = layer(x, state=np.stack(first))[0].numpy()
    np.testing.assert_array_equal(again, y.numpy())


RECORDED = {
    nn.RNN: [[-0.2952222], [-0.4064777]],
    nn.LSTM: [[0.0259821, 0.0477064], [0.0237316, 0.0421395]],
    nn.GRU: [[0.047309], [0.0418097]],
}
"""PyTorch's states after 3 steps: weights (i - 2) / 10, inputs (i - 3) / 4, first states 0.5."""


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_states_of_pytorch(kind: Any) -> None:
    layer = kind(1, return_state=True)
    _run_all(layer, np.zeros((2, 3, 1)))
    for parameter in layer.parameters():
        parameter.assign((np.arange(parameter.size).reshape(parameter.shape) - 2) / 10)
    x = ((np.arange(6) - 3) / 4).reshape(2, 3, 1)
    first = np.full((layer.states_held, 2, 1), 0.5)
    _, *last = _run_all(layer, x, state=first)
    np.testing.assert_allclose(np.concatenate(last, axis=1), RECORDED[kind], atol=1e-6)


def _run_all(layer: nn.Layer, *inputs: Any, **named: Any) -> list[np.ndarray]:
    with nn.trace(dtype="float64"):
        return [each.numpy() for each in layer(*inputs, **named)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_with_carried_states_are_the_whole(kind: Any, masked: bool) -> None:
    layer = _made(kind, return_sequences=True, return_state=True)
    x, lengths = _x(N, T, C), np.array([5, 2, 3])
    whole, *last = _run_all(layer, x, lengths) if masked else _run_all(layer, x)
    found, state = [], None
    for begin, end in ((0, 1), (1, 3), (3, 5)):
        mask = [np.clip(lengths - begin, 0, end - begin)] if masked else []
        part, *state = _run_all(
            layer, x[:, begin:end], *mask, state=None if state is None else np.stack(state)
        )
        found.append(part)
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, atol=1e-12)
    np.testing.assert_allclose(state, last, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_is_one_step_of_its_layer(kind: Any) -> None:
    layer, x = _made(kind, return_sequences=True), _x(N, T, C)
    cell = CELLS[kind](H)
    with nn.trace(dtype="float64"):
        cell(x[:, 0])
        for own, other in zip(cell.parameters(), layer.parameters(), strict=True):
            own.assign(other.numpy())
        state: tuple[Any, ...] = ()
        for step in range(T):
            state = cell(x[:, step], *state)
            state = state if isinstance(state, tuple) else (state,)
            np.testing.assert_allclose(state[0].numpy(), layer(x)[:, step].numpy(), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_state_has_a_gradient(kind: Any) -> None:
    layer, x = _made(kind), _x(N, T, C)
    with nn.trace(dtype="float64"):
        first = [_x(N, H)] * layer.states_held
        testing.check_gradients(lambda *state: layer(x, state=state), first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stateful_layer_goes_on_where_the_last_batch_ended(kind: Any) -> None:
    x = _x(N, 6, C).astype("float32")
    model = cd.NeuralNetwork([nn.Input((2, C)), kind(H, stateful=N)], "mean_squared", batch_size=N)
    whole = cd.NeuralNetwork([nn.Input((6, C)), kind(H)], "mean_squared")
    for own, other in zip(whole.parameters(), model.parameters(), strict=True):
        own.assign(other.numpy())
    for _ in range(2):
        parts = [model.predict(x[:, begin : begin + 2]) for begin in (0, 2, 4)]
        np.testing.assert_allclose(parts[-1], whole.predict(x), atol=1e-6)
        model.layers[1].reset_states()
    with pytest.raises(ConfigError, match=r"predict: expected 3 sequences.*got 2"):
        model.predict(x[:2, :2])
    y = np.zeros((N, H), "float32")
    first, second = model.evaluate(x[:, :2], y)["loss"], model.evaluate(x[:, :2], y)["loss"]
    assert first != second
    model.fit(x[:, :2], y, verbose=0)
    assert model.states()[0].numpy().any()
    with pytest.raises(ShapeError, match="batches of 3 sequences"):
        model.fit(x[:2, :2], y[:2], verbose=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stateful_model_is_saved_with_its_states(kind: Any, tmp_path: Path) -> None:
    layers = [nn.Input((2, C)), kind(H, stateful=N), nn.Dense(1)]
    model = cd.NeuralNetwork(layers, "mean_squared", batch_size=N)
    x = _x(2 * N, 2, C).astype("float32")
    model.fit(x, x[:, 0, :1], verbose=0)
    again = cd.load(model.save(tmp_path / "model.caldera"))
    for own, other in zip(model.states(), again.states(), strict=True):
        assert own.numpy().any()
        np.testing.assert_array_equal(other.numpy(), own.numpy())
    np.testing.assert_array_equal(again.predict(x[:N]), model.predict(x[:N]))
    assert nn.count_parameters(layers) == sum(each.size for each in model.parameters())


def test_a_stateful_layer_that_is_called_twice_goes_on_from_its_first_call() -> None:
    layer, x = nn.GRU(H, stateful=N), _x(N, 4, C).astype("float32")
    with nn.trace() as traced:
        _, last = layer(x[:, :2]), layer(x[:, 2:])
        whole = layer(x, state=np.zeros((N, H))).numpy()
    np.testing.assert_allclose(last.numpy(), whole, atol=1e-6)
    np.testing.assert_allclose(traced.updates[0].numpy(), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stateful": 2, "bidirectional": True}, "sequences that are read forwards"),
        ({"stateful": -1}, "stateful"),
        ({"return_mask": True, "return_state": True, "return_sequences": True}, "mask or states"),
    ],
)
def test_settings_of_states_that_make_no_sense(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nn.LSTM(2, **settings)


def test_a_state_of_another_shape_is_refused() -> None:
    layer, x = nn.LSTM(H), op.input("x", (N, T, C))
    state = op.input("h", (N, H))
    with pytest.raises(ShapeError, match=r"a state of 2 x \(3, 2\), got \(3, 2\)"):
        layer(x, state=state)
    with pytest.raises(
        ShapeError, match=r"samples \(N, C\) of a single step, got shape \(3, 5, 4\)"
    ):
        nn.LSTMCell(H)(x)
