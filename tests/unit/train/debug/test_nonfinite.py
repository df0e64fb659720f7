"""Where a nan comes from is said by name: the step, the op, the layer or the data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from caldera import nn, op, optim
from caldera.compiler.lazy import Expr
from caldera.data import ArrayData, IterableData
from caldera.errors import NonFiniteError
from caldera.nn.losses import Loss
from caldera.train.callbacks import Callback
from caldera.train.debug.nonfinite import explain
from caldera.train.fit import make_steps
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run
from tests.unit.train.small import points


@dataclass(eq=False)
class Apply(nn.Layer):
    """A function as a layer."""

    function: Any

    def forward(self, x: Expr) -> Expr:
        result: Expr = self.function(x)
        return result


def fails(model: Model, data: Any, **settings: Any) -> str:
    given: dict[str, Any] = {"epochs": 3, "verbose": 0, "shuffle": False}
    with pytest.raises(NonFiniteError) as caught:
        model.fit(data, **{**given, **settings})
    return str(caught.value)


def test_the_op_and_the_layer_of_a_forward_value_are_named() -> None:
    layers = [nn.Input((2,)), nn.Dense(4), Apply(lambda x: op.log(x)), nn.Dense(2)]
    message = fails(NeuralNetwork(layers), points())
    assert message.startswith("fit, step 0: expected finite values, got nan from op.log")
    assert "in layer 2-Apply" in message
    assert re.search(r"inputs are -\d\S* to \d", message)
    assert "above 0" in message


def test_the_origin_is_named_not_what_came_of_it() -> None:
    # exp overflows to infinity, and only later that becomes nan.
    def overflow(x: Expr) -> Expr:
        large = op.exp(x * 1000.0)
        return large / (large + 1.0)

    message = fails(NeuralNetwork([nn.Input((2,)), Apply(overflow), nn.Dense(2)]), points())
    assert "got inf from op.exp in layer 1-Apply" in message


def test_layers_inside_layers_are_named_by_their_path() -> None:
    inner = nn.Sequential([nn.Dense(3), Apply(lambda x: op.sqrt(x - 100.0))], name="block")
    message = fails(NeuralNetwork([nn.Input((2,)), inner, nn.Dense(2)]), points())
    assert "nan from op.sqrt in layer block/1-Apply" in message


def test_constants_may_be_infinite() -> None:
    # A mask of minus infinity is no mistake; the log after it is.
    mask = np.array([[0.0, -np.inf]], np.float32)
    layers = [
        nn.Input((2,)),
        Apply(lambda x: op.softmax(x + mask)),
        Apply(lambda x: op.log(x - 1.5)),
    ]
    message = fails(NeuralNetwork([*layers, nn.Dense(2)]), points())
    assert "op.log in layer 2-Apply" in message


@pytest.mark.parametrize(("batch", "sample"), [(0, 3), (2, 5)])
def test_bad_data_is_named_with_its_sample(batch: int, sample: int) -> None:
    x, y = points(50)
    x[batch * 8 + sample, 1] = np.inf
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], batch_size=8)
    message = fails(model, (x, y))
    assert message.startswith(f"fit, step {batch}: ")
    assert f"inf in the input x0: 1 of 16 values, first in sample {sample}" in message


def test_bad_targets_and_weights_are_named() -> None:
    x, _ = points()
    y = x[:, :1].copy()
    y[7] = np.nan
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse", batch_size=10)
    assert "nan in the targets y0" in fails(model, (x, y))
    weights = np.ones(50)
    weights[30] = 1e300  # More than float32 can hold.
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse", batch_size=10)
    message = fails(model, (x, x[:, :1]), sample_weights=weights)
    assert "fit, step 3" in message
    assert "inf in the weights weights" in message


@pytest.mark.parametrize("place", [1, 19])
def test_a_short_stream_does_not_end_before_it_is_looked_at(place: int) -> None:
    x, y = points(20)
    y[place] = 7
    pairs = list(zip(x, y, strict=True))
    for stream, said in (
        (pairs, "nan from op.cross_entropy.* targets have to be classes from 0 on"),
        (lambda: iter(pairs), "nan from op.cross_entropy"),
        (iter(pairs), "a stream that cannot be read again"),
    ):
        model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], batch_size=10)
        with pytest.raises(NonFiniteError, match=rf"step {place // 10}.*{said}"):
            model.fit(IterableData(stream), epochs=2, verbose=0)


def test_the_batch_is_found_again_after_shuffling() -> None:
    x, y = points(50)
    x[20] = np.nan
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], batch_size=8)
    assert "nan in the input x0: 2 of 16 values" in fails(model, (x, y), shuffle=True)


@pytest.mark.parametrize("sample", [5, 115, 250])
def test_it_is_found_wherever_it_is_in_a_long_epoch(sample: int) -> None:
    x, y = points(301)
    x[sample] = np.nan
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], batch_size=10)
    message = fails(model, (x, y))
    assert message.startswith(f"fit, step {sample // 10}: ")
    assert f"first in sample {sample % 10} of the batch" in message


def test_diverging_is_told_apart_from_bad_data() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2)).astype("float32") * 100
    model = NeuralNetwork(
        [nn.Input((2,)), nn.Dense(8), nn.Dense(1)], loss="mse", optimizer="sgd", learning_rate=10.0
    )
    message = fails(model, (x, x[:, :1]), epochs=100)
    step = int(re.findall(r"step (\d+)", message)[0])
    assert step > 0
    assert "learning rate" in message


def test_a_gradient_that_is_not_finite_shows_in_the_step_after() -> None:
    # The slope of sqrt at 0 is infinite: a finite loss, and no weight left afterwards.
    x = np.zeros((50, 2), np.float32)
    layers = [nn.Input((2,)), nn.Dense(3, bias=False), Apply(lambda x: op.sqrt(op.abs(x)))]
    model = NeuralNetwork([*layers, nn.Dense(2)], optimizer="sgd", learning_rate=0.1)
    message = fails(model, (x, points()[1]))
    assert message.startswith("fit, step 1")
    assert "nan already in 1-Dense/weight" in message
    assert "gradients of the step before" in message


def test_the_state_is_that_of_the_bad_step() -> None:
    x, y = points(50)
    x[17] = np.nan

    class Keep(Callback):
        def batch_ends(self, run: Run) -> None:
            if run.step == 2:
                self.values = [each.numpy() for each in run.model.parameters()]

    keep = Keep()
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], batch_size=8, optimizer=optim.Adam(0.1))
    fails(model, (x, y), callbacks=[keep])
    # Two steps went well, the third and those after it changed nothing.
    for kept, parameter in zip(keep.values, model.parameters(), strict=True):
        assert kept.tobytes() == parameter.numpy().tobytes()


def test_a_model_of_ones_own_is_diagnosed_as_well() -> None:
    class Net(Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = nn.Dense(4)
            self.head = nn.Dense(2)

        def forward(self, x: Expr) -> Expr:
            return op.log(self.head(self.hidden(x)))

    assert "nan from op.log in layer Net" in fails(Net(), points())


class Reciprocal(Loss):
    """Infinite for a perfect prediction."""

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        return op.sum(1.0 / op.square(prediction - target), axis=1)


def test_the_loss_is_told_apart_from_the_last_layer() -> None:
    x = np.zeros((50, 2), np.float32)
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss=Reciprocal(), metrics=[])
    assert "inf from op.div after layer 1-Dense" in fails(model, (x, x[:, :1]))


def test_the_op_of_a_gradient_is_named() -> None:
    x = np.zeros((4, 2), np.float32)
    layers = [nn.Input((2,)), nn.Dense(3), Apply(lambda x: op.sqrt(op.abs(x))), nn.Dense(2)]
    model = NeuralNetwork(layers)
    data = ArrayData(x, np.zeros(4, np.int64))
    steps = make_steps(model, data)
    error, blamed = explain(steps, 4, steps.feeds(data.batch(np.arange(4)), None), 7)
    assert blamed == "op"
    assert re.search(
        r"step 7: .*(inf|nan) from op\.\w+ in the gradient of layer 2-Apply", str(error)
    )


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32", None])
def test_precision_is_blamed_if_all_is_finite_without_it(precision: str | None) -> None:
    x, y = points(8)
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], precision=precision)
    steps = make_steps(model, ArrayData(x, y))
    error, blamed = explain(steps, 8, steps.feeds((x, y), None), 0)
    assert blamed == "precision"
    # Who has the range of float32 gains nothing by another type of that range.
    assert ("bfloat16" in str(error)) == (precision == "float16")
    assert ("smaller learning rate" in str(error)) == (precision != "float16")


def test_a_model_that_was_trained_before_is_explained_as_well() -> None:
    model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], batch_size=8)
    x, y = points()
    model.fit((x, y), epochs=3, verbose=0)
    broken = x.copy()
    broken[19, 1] = np.nan
    message = fails(model, (broken, y))
    assert message.startswith("fit, step 2: expected finite values, got nan in the input x0")
    assert "first in sample 3 of the batch" in message
