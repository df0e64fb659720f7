"""Names, and optimizers and schedules as plain data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim

OPTIMIZERS = [
    optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    optim.SGD(optim.LinearWarmUp(5, then=optim.Cosine(0.1, steps=10)), decay=optim.L1(0.1)),
    optim.Adagrad(0.1, epsilon=1e-6, clip=optim.ClipNorm(1.0)),
    optim.Adadelta(0.5, smoothing=0.8),
    optim.Nadam(0.1, beta1=0.8),
    optim.Adamax(0.1, beta2=0.9),
    optim.Lion(0.1, beta2=0.9, weight_decay=0.1),
    optim.RMSProp(0.1, momentum=0.5, centered=True, clip=optim.ClipValue(0.5)),
    optim.Adam(optim.StepDecay(0.1, at=[2, 4]), beta1=0.5, accumulate=2),
    optim.AdamW(optim.OneCycle(0.1, steps=20)),
    optim.LARS(optim.Exponential(0.1, factor=0.5), groups=[optim.Group("b", 2.0, 0.0)]),
    optim.LAMB(optim.ReduceOnPlateau(0.1, patience=2)),
    optim.Adam(0.1, amsgrad=True),
    optim.Nadam(0.1, momentum_decay=0.5),
    optim.RAdam(0.1, beta2=0.8),
    optim.ASGD(0.1, shrinkage=0.1, power=0.5, start=2),
    optim.Rprop(0.1, factors=(0.25, 1.5), sizes=(1e-3, 2.0)),
    optim.Adafactor(0.1, epsilon=1e-8, most_change=2.0),
    optim.LBFGS(0.5, history=2),
    optim.Muon(0.1, coefficients=(1.5, -0.5, 0.0), scale="match_rms_adamw"),
    optim.SGD(np.float32(0.5)),  # type: ignore[arg-type]
]


def _trained(optimizer: optim.Optimizer) -> list[np.ndarray]:
    w = op.var("w", (2,), fill=np.array([1.0, -2.0]), dtype="float64")
    b = op.var("b", (), fill=3.0, dtype="float64")
    plan = cd.compile(optimizer.train(op.sum(w * w) + b * b, [w, b]))
    for _ in range(4):
        plan.run()
    return [w.numpy(), b.numpy()]


@pytest.mark.parametrize("given", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_an_optimizer_that_was_read_back_is_the_same(given: optim.Optimizer) -> None:
    text = json.dumps(given.config(), sort_keys=True)
    again = optim.optimizers.from_config(json.loads(text))
    assert type(again) is type(given)
    assert again.config() == given.config()
    for left, right in zip(_trained(given), _trained(again), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", [each for each in optim.optimizers if each != "lbfgs"])
def test_what_was_assigned_to_an_optimizer_is_written(name: str) -> None:
    changed = optim.get(name)
    numbers = [key for key, value in changed.arguments().items() if type(value) is float]
    assigned = {key: 0.625 for key in numbers if key != "learning_rate"}
    for key, value in {**assigned, "accumulate": 3, "clip": optim.ClipNorm(2.0)}.items():
        setattr(changed, key, value)
    read = optim.optimizers.from_config(changed.config())
    assert {key: getattr(read, key) for key in assigned} == assigned
    assert read.accumulate == 3
    assert read.clip.arguments() == {"limit": 2.0}
    assert read.config() == changed.config()
    assert "accumulate=3" in repr(changed)


def test_what_no_constructor_takes_is_refused_when_it_is_assigned_and_when_it_is_read() -> None:
    changed = optim.SGD(0.1)
    with pytest.raises(cd.ConfigError, match="accumulate"):
        changed.accumulate = 0
    vars(changed)["accumulate"] = 0
    assert "accumulate=0" in repr(changed)
    with pytest.raises(cd.ConfigError, match="accumulate"):
        optim.optimizers.from_config(changed.config())


def test_another_decay_that_was_assigned_takes_the_place_of_the_first() -> None:
    changed = optim.Adam(1e-3, weight_decay=0.5)
    changed.decay = optim.L1(0.25)
    read = optim.optimizers.from_config(changed.config())
    assert (type(read.decay), read.decay.arguments()) == (optim.L1, {"strength": 0.25})


def test_a_group_of_variables_is_written_as_their_names() -> None:
    v = op.var("odd[1]*name", ())
    config = optim.Group([v, "bias"], weight_decay=0.0).config()
    again = optim.SGD(groups=[optim.Group([v, "bias"], weight_decay=0.0)])
    (group,) = optim.optimizers.from_config(again.config()).groups
    assert config["arguments"]["match"][1] == "bias"
    assert group.holds(op.var("odd[1]*name", ()))
    assert not group.holds(op.var("odd1name", ()))


def test_every_name_makes_an_optimizer() -> None:
    names = {
        "sgd",
        "momentum",
        "nesterov",
        "adagrad",
        "adadelta",
        "rmsprop",
        "adam",
        "adamw",
        "adamax",
        "nadam",
        "lion",
        "lars",
        "lamb",
    }
    assert names <= set(optim.optimizers)
    for name in names:
        assert optim.get(name, learning_rate=0.5).arguments()["learning_rate"] == 0.5
    momentum = optim.get("momentum", weight_decay=0.25)
    assert isinstance(momentum, optim.SGD)
    assert (momentum.momentum, momentum.nesterov, momentum.decay.strength) == (0.9, False, 0.25)
    assert optim.get("momentum", momentum=0.5).config()["name"] == "sgd"
    adam = optim.Adam()
    assert optim.get(adam) is adam


def _config(**changes: Any) -> dict[str, Any]:
    return {**optim.Adam().config(), **changes}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: optim.get("adaam"), "optimizer: .*got 'adaam'; did you mean 'adam'"),
        (lambda: optim.get("zzz"), "known: adadelta, adafactor, adagrad, adam"),
        (lambda: optim.get("adam", bta1=0.5), "'bta1'; did you mean 'beta1'"),
        (lambda: optim.get("adam", acumulate=2), "'acumulate'; did you mean 'accumulate'"),
        (lambda: optim.get(optim.Adam(), beta1=0.5), "arguments only together with a name"),
        (lambda: optim.get(3), "a name or an object, got 3"),
        (lambda: optim.schedules.make("cosine", peak=1.0), "Cosine: expected steps=, got none"),
        (lambda: optim.optimizers.from_config({"name": "adam"}), "a dict of kind, name, arguments"),
        (lambda: optim.optimizers.from_config("adam"), "a dict of kind, name, arguments"),
        (lambda: optim.optimizers.from_config(_config(kind="schedule")), "kind 'optimizer'"),
        (lambda: optim.optimizers.from_config(_config(name="os.system")), "a registered name"),
        (lambda: optim.optimizers.from_config(_config(name=["x"])), "a name and arguments"),
        (lambda: optim.optimizers.from_config(_config(arguments=3)), "a name and arguments"),
        (lambda: optim.optimizers.from_config(_config(arguments={"x": 1})), "argument it takes"),
        (
            lambda: optim.optimizers.from_config(_config(arguments={"beta1": "much"})),
            "Adam: expected beta1= a number, got 'much'",
        ),
        (
            lambda: optim.optimizers.from_config(_config(arguments={"decay": {"kind": "module"}})),
            "kind: expected a registered name, got 'module'",
        ),
        (
            lambda: optim.optimizers.from_config(
                _config(arguments={"decay": optim.ClipNorm(1.0).config()})
            ),
            "decay= an object",
        ),
    ],
)
def test_what_cannot_be_made_is_named(read, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(cd.ConfigError, match=message):
        read()


def test_what_cannot_be_written_is_named() -> None:
    class Unknown(optim.Schedule):
        def rate(self, step):  # type: ignore[no-untyped-def]
            return step

    with pytest.raises(cd.ConfigError, match="Unknown: expected a registered class"):
        optim.Adam(Unknown()).config()

    @optim.schedules.register("test_holding")
    class Holding(optim.Schedule):
        def __init__(self, thing: object) -> None:
            pass

        def rate(self, step):  # type: ignore[no-untyped-def]
            return step

    with pytest.raises(
        cd.ConfigError, match="test_holding thing: expected a JSON-serialisable value"
    ):
        Holding(object()).config()
    with pytest.raises(TypeError, match="expected its own arguments, got rate="):
        Unknown(rate=3)  # type: ignore[call-arg]
