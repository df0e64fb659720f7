"""Optimizers, schedules and losses beside PyTorch's, in float64, with options drawn at random."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.nn import losses

torch = pytest.importorskip("torch")

STEPS = 24
Pair = tuple[optim.Optimizer, Callable[[Any], Any]]


def _draw(r: random.Random) -> dict[str, float]:
    """Options that several optimizers have."""
    return {
        "rate": 10 ** r.uniform(-4, -1.3),
        "decay": r.choice([0.0, 10 ** r.uniform(-4, -1)]),
        "eps": 10 ** r.uniform(-10, -4),
        "first": r.choice([0.0, r.uniform(0.3, 0.99)]),
        "second": r.choice([0.999, r.uniform(0.3, 0.999)]),
        "momentum": r.choice([0.0, r.uniform(0.1, 0.99)]),
    }


def _sgd(r: random.Random, o: dict[str, Any]) -> Pair:
    nesterov = bool(o["momentum"]) and r.random() < 0.5
    more = {"momentum": o["momentum"], "nesterov": nesterov, "weight_decay": o["decay"]}
    return optim.SGD(o["rate"], **more), lambda p: torch.optim.SGD(p, lr=o["rate"], **more)


def _rmsprop(r: random.Random, o: dict[str, Any]) -> Pair:
    more = {"momentum": o["momentum"], "centered": r.random() < 0.5, "weight_decay": o["decay"]}
    ours = optim.RMSProp(o["rate"], smoothing=o["second"], epsilon=o["eps"], **more)
    return ours, lambda p: torch.optim.RMSprop(
        p, lr=o["rate"], alpha=o["second"], eps=o["eps"], **more
    )


def _adagrad(r: random.Random, o: dict[str, Any]) -> Pair:
    ours = optim.Adagrad(o["rate"], epsilon=o["eps"], weight_decay=o["decay"])
    return ours, lambda p: torch.optim.Adagrad(
        p, lr=o["rate"], eps=o["eps"], weight_decay=o["decay"]
    )


def _adadelta(r: random.Random, o: dict[str, Any]) -> Pair:
    ours = optim.Adadelta(
        o["rate"], smoothing=o["second"], epsilon=o["eps"], weight_decay=o["decay"]
    )
    return ours, lambda p: torch.optim.Adadelta(
        p, lr=o["rate"], rho=o["second"], eps=o["eps"], weight_decay=o["decay"]
    )


def _adams(
    ours: Callable[..., optim.Optimizer], theirs: str, amsgrad: bool, drawn: Sequence[str] = ()
) -> Callable[[random.Random, dict[str, Any]], Pair]:
    """An optimizer of the family of Adam; its decay may be decoupled where PyTorch has a word."""

    def make(r: random.Random, o: dict[str, Any]) -> Pair:
        here: dict[str, Any] = {"weight_decay": o["decay"]}
        there: dict[str, Any] = {"weight_decay": o["decay"]}
        if amsgrad:
            here["amsgrad"] = there["amsgrad"] = r.random() < 0.5
        if "decoupled" in drawn and r.random() < 0.5:
            here = {"decay": optim.Decoupled(o["decay"])}
            there["decoupled_weight_decay"] = True
        if "momentum_decay" in drawn:
            here["momentum_decay"] = there["momentum_decay"] = r.choice([0.0, 4e-3, r.random()])
        made = ours(o["rate"], beta1=o["first"], beta2=o["second"], epsilon=o["eps"], **here)
        betas = (o["first"], o["second"])
        return made, lambda p: getattr(torch.optim, theirs)(
            p, lr=o["rate"], betas=betas, eps=o["eps"], **there
        )

    return make


def _asgd(r: random.Random, o: dict[str, Any]) -> Pair:
    shrinkage, power = r.choice([0.0, 10 ** r.uniform(-5, -1)]), r.uniform(0, 2)
    ours = optim.ASGD(o["rate"], shrinkage=shrinkage, power=power, weight_decay=o["decay"])
    return ours, lambda p: torch.optim.ASGD(
        p, lr=o["rate"], lambd=shrinkage, alpha=power, weight_decay=o["decay"]
    )


def _rprop(r: random.Random, o: dict[str, Any]) -> Pair:
    factors = (r.uniform(0.2, 0.9), r.uniform(1.05, 2))
    sizes = (10 ** r.uniform(-7, -2), 10 ** r.uniform(-1, 2))
    ours = optim.Rprop(o["rate"], factors=factors, sizes=sizes)
    return ours, lambda p: torch.optim.Rprop(p, lr=o["rate"], etas=factors, step_sizes=sizes)


def _adafactor(r: random.Random, o: dict[str, Any]) -> Pair:
    power, epsilon = r.choice([0.8, r.uniform(0, 1.5)]), r.choice([None, 10 ** r.uniform(-16, -2)])
    least, most, rate = 10 ** r.uniform(-6, -1), r.uniform(1, 3), 10 * o["rate"]
    ours = optim.Adafactor(
        rate,
        power=power,
        epsilon=epsilon,
        least_size=least,
        most_change=most,
        weight_decay=o["decay"],
    )
    return ours, lambda p: torch.optim.Adafactor(
        p, lr=rate, beta2_decay=-power, eps=(epsilon, least), d=most, weight_decay=o["decay"]
    )


def _muon(r: random.Random, o: dict[str, Any]) -> Pair:
    scale = r.choice(["original", "match_rms_adamw"])
    coefficients = r.choice([(3.4445, -4.775, 2.0315), (1.875, -1.25, 0.375)])
    nesterov, iterations = r.random() < 0.5, r.randint(1, 8)
    common = {"momentum": o["momentum"], "nesterov": nesterov, "weight_decay": o["decay"]}
    ours = optim.Muon(
        o["rate"],
        coefficients=coefficients,
        iterations=iterations,
        epsilon=o["eps"],
        scale=scale,
        **common,
    )
    return ours, lambda p: torch.optim.Muon(
        p,
        lr=o["rate"],
        ns_coefficients=coefficients,
        ns_steps=iterations,
        eps=o["eps"],
        adjust_lr_fn=scale,
        **common,
    )


OPTIMIZERS: dict[str, Callable[[random.Random, dict[str, Any]], Pair]] = {
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "adagrad": _adagrad,
    "adadelta": _adadelta,
    "adam": _adams(optim.Adam, "Adam", True),
    "adamw": _adams(optim.AdamW, "AdamW", True),
    "adamax": _adams(optim.Adamax, "Adamax", False),
    "nadam": _adams(optim.Nadam, "NAdam", False, ("decoupled", "momentum_decay")),
    "radam": _adams(optim.RAdam, "RAdam", False, ("decoupled",)),
    "asgd": _asgd,
    "rprop": _rprop,
    "adafactor": _adafactor,
    "muon": _muon,
}


@contextmanager
def _exact() -> Iterator[None]:
    """Inside, Muon does not iterate in bfloat16, nor do ASGD and NAdam keep scalars in float32."""
    rounded, usual = torch.Tensor.bfloat16, torch.get_default_dtype()
    torch.Tensor.bfloat16 = lambda self: self.clone()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.Tensor.bfloat16 = rounded
        torch.set_default_dtype(usual)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_the_steps_of_pytorch(name: str, seed: int) -> None:
    r, g = random.Random(f"{name} {seed}"), np.random.default_rng(seed)
    shapes = [
        tuple(g.integers(1, 5, size=axes)) for axes in (2, 2, *([0, 1, 3] * (name != "muon")))
    ]
    starts = [g.normal(size=shape) for shape in shapes]
    slopes = [g.uniform(0.2, 2, size=shape) for shape in shapes]
    ours, make = OPTIMIZERS[name](r, _draw(r))

    ws = [op.var(f"w{i}", s.shape, fill=s, dtype="float64") for i, s in enumerate(starts)]
    terms = [op.sum(a * w**4.0 / 4.0 + op.sin(w)) for w, a in zip(ws, slopes, strict=True)]
    plan = cd.compile(ours.train(sum(terms[1:], terms[0]), ws))
    # PyTorch's matrices have the outputs first, which matters to Muon alone.
    theirs = [torch.tensor(s.T if name == "muon" else s, requires_grad=True) for s in starts]
    factors = [torch.tensor(a.T if name == "muon" else a) for a in slopes]
    optimizer = make(theirs)
    with _exact():
        for _ in range(STEPS):
            plan.run()
            optimizer.zero_grad()
            sum(
                (a * w**4 / 4 + torch.sin(w)).sum() for w, a in zip(theirs, factors, strict=True)
            ).backward()
            optimizer.step()
            for left, right in zip(ws, theirs, strict=True):
                expected = right.detach().numpy()
                found = left.numpy().T if name == "muon" else left.numpy()
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_evaluates_the_points_of_pytorch(search: str | None, seed: int) -> None:
    g = np.random.default_rng(seed)
    starts, slopes = [g.normal(size=(2, 2)), g.normal(size=3)], g.uniform(0.2, 3, size=7)
    rate, history, points = (1.0 if search else 0.3), (2, 5, 10)[seed], []
    theirs = [torch.tensor(each, requires_grad=True) for each in starts]

    class Ended(Exception):
        pass

    def closure() -> Any:
        points.append(np.concatenate([w.detach().numpy().reshape(-1) for w in theirs]))
        if len(points) > STEPS:
            raise Ended
        optimizer.zero_grad()
        w = torch.cat([each.reshape(-1) for each in theirs])
        loss = (torch.tensor(slopes) * w**4 / 4 + torch.sin(w)).sum()
        loss.backward()
        return loss

    limits = {"max_iter": 1000, "max_eval": 100_000, "history_size": history}
    optimizer = torch.optim.LBFGS(theirs, lr=rate, line_search_fn=search, **limits)
    with contextlib.suppress(Ended):
        optimizer.step(closure)
    ws = [op.var(f"w{i}", s.shape, fill=s, dtype="float64") for i, s in enumerate(starts)]
    w = op.concat([op.reshape(each, (-1,)) for each in ws])
    loss = op.sum(cd.tensor(slopes) * w**4.0 / 4.0 + op.sin(w))
    ours = optim.LBFGS(rate, history=history, line_search=search)
    plan = cd.compile(ours.train(loss, ws))
    for expected in points[1:]:
        plan.run()
        found = np.concatenate([each.numpy().reshape(-1) for each in ws])
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_schedules_have_the_rates_of_pytorch(seed: int) -> None:
    scheduler, r = torch.optim.lr_scheduler, random.Random(seed)
    rate, factor, n, start = 10 ** r.uniform(-4, 0), r.uniform(0.1, 1), r.randint(4, 20), r.random()
    at = sorted({r.randint(1, 20) for _ in range(3)})
    exponential = optim.Exponential(rate, factor=factor)
    cases: list[tuple[optim.Schedule, Callable[[Any], Any], int]] = [
        (
            optim.StepDecay(rate, factor=factor, every=n),
            lambda o: scheduler.StepLR(o, n, factor),
            24,
        ),
        (
            optim.StepDecay(rate, factor=factor, at=at),
            lambda o: scheduler.MultiStepLR(o, at, factor),
            24,
        ),
        (exponential, lambda o: scheduler.ExponentialLR(o, factor), 24),
        (
            optim.Cosine(rate, steps=n, final=rate * start),
            lambda o: scheduler.CosineAnnealingLR(o, n, rate * start),
            n,
        ),
        (
            optim.LinearWarmUp(n, then=rate, start=rate * start),
            lambda o: scheduler.LinearLR(o, start, 1.0, n),
            24,
        ),
        (
            optim.LinearWarmUp(n, then=exponential, start=rate * start),
            lambda o: scheduler.SequentialLR(
                o, [scheduler.LinearLR(o, start, 1.0, n), scheduler.ExponentialLR(o, factor)], [n]
            ),
            24,
        ),
        (
            optim.OneCycle(rate, steps=n, rising=0.5, start_divisor=7.0, final_divisor=90.0),
            lambda o: scheduler.OneCycleLR(
                o,
                rate,
                n,
                pct_start=0.5,
                div_factor=7.0,
                final_div_factor=90.0,
                cycle_momentum=False,
            ),
            n,
        ),
    ]
    at_step = op.input("step", (), "float64")
    for ours, theirs, count in cases:
        plan = cd.compile([ours.rate(at_step)])
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
        made = theirs(optimizer)
        for step in range(count):
            found = plan.run({"step": np.float64(step)})[0].item()
            assert found == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), (ours, step)
            optimizer.step()
            if step + 1 < count:
                made.step()


@pytest.mark.parametrize("seed", range(4))
def test_a_plateau_is_that_of_pytorch(seed: int) -> None:
    r = random.Random(seed)
    rate, is_max = r.choice([0.1, 1e-7]), r.random() < 0.5
    same = {
        "factor": r.uniform(0.1, 0.9),
        "patience": r.randint(0, 4),
        "cooldown": r.randint(0, 3),
        "threshold": r.choice([1e-4, 0.0, 0.1]),
    }
    least = r.choice([0.0, rate * r.random(), 2 * rate])
    ours = optim.ReduceOnPlateau(rate, minimum=least, larger_is_better=is_max, **same)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if is_max else "min", min_lr=least, **same
    )
    for _ in range(60):
        value = r.choice([r.expovariate(1), 1.0, float("nan"), 2.0])
        theirs.step(value)
        expected = optimizer.param_groups[0]["lr"]
        assert ours.after_epoch({"loss": value}) == pytest.approx(expected, rel=1e-9)


def _by_sample(x: Any) -> Any:
    return x.reshape(x.shape[0], -1).mean(1)


@pytest.mark.parametrize("seed", range(4))
def test_losses_and_their_gradients_are_those_of_pytorch(seed: int) -> None:
    functional = torch.nn.functional
    r, g = random.Random(seed), np.random.default_rng(seed)
    n, classes, rest = r.randint(1, 6), r.randint(2, 6), tuple(g.integers(1, 4, size=seed % 3))
    scale, delta, smoothing = 10 ** r.uniform(-3, 2.5), 10 ** r.uniform(-2, 1), r.uniform(0, 0.9)
    p, y = (scale * g.normal(size=(n, classes, *rest)) for _ in range(2))
    even = np.moveaxis(g.dirichlet(np.ones(classes), size=(n, *rest)), -1, 1).copy()
    index, bits = g.integers(0, classes, size=(n, *rest)), g.integers(0, 2, size=p.shape) * 1.0
    frames, labels = g.normal(size=(n, 8, 5)), g.integers(1, 5, size=(n, 3))
    lengths = torch.full((n,), 8), torch.full((n,), 3)

    def entropy(q: Any, t: Any) -> Any:
        return functional.cross_entropy(q, t, reduction="none", label_smoothing=smoothing)

    def kl(q: Any, t: Any) -> Any:
        return functional.kl_div(functional.log_softmax(q, 1), t, reduction="none").sum(1)

    def ctc(q: Any, t: Any) -> Any:
        ahead = functional.log_softmax(q, 2).transpose(0, 1)
        return functional.ctc_loss(ahead, t, *lengths, reduction="none") / 3

    def huber(q: Any, t: Any) -> Any:
        return functional.huber_loss(q, t, reduction="none", delta=delta)

    def plain(name: str) -> Callable[[Any, Any], Any]:
        return lambda q, t: getattr(functional, name)(q, t, reduction="none")

    cases: list[tuple[losses.Loss, Callable[[Any, Any], Any], np.ndarray, np.ndarray]] = [
        (losses.CrossEntropy(smoothing, axis=1), entropy, p, index),
        (losses.CrossEntropy(smoothing, axis=1, probabilities=True), entropy, p, even),
        (losses.BinaryCrossEntropy(), plain("binary_cross_entropy_with_logits"), p, bits),
        (losses.MeanSquared(), plain("mse_loss"), p, y),
        (losses.MeanAbsolute(), plain("l1_loss"), p, y),
        (losses.Huber(delta), huber, p, y),
        (losses.Hinge(), lambda q, t: torch.clamp(1 - q * t, min=0), p, 2 * bits - 1),
        (losses.KullbackLeibler(axis=1), kl, p, even),
        (nn.CTCLoss(), ctc, frames, labels),
    ]
    for weights in (None, g.uniform(0.1, 3, size=n)):
        for loss, theirs, prediction, target in cases:
            given = op.var("p", prediction.shape, fill=prediction, dtype="float64")
            found = loss(given, cd.tensor(target), weights)
            plan = cd.compile([found, op.grad(found, [given])[0]])
            value, slope = (each.numpy() for each in plan.run())
            q = torch.tensor(prediction, requires_grad=True)
            each = _by_sample(theirs(q, torch.tensor(target)))
            by = torch.ones(n, dtype=torch.float64) if weights is None else torch.tensor(weights)
            expected = (each * by).sum() / by.sum()
            expected.backward()
            np.testing.assert_allclose(value, expected.item(), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(slope, q.grad.numpy(), rtol=1e-9, atol=1e-12)
