"""Trains random networks on a card and on the CPU, each in a process of its own, and compares them.

    python -m tests.fuzz.card --count 200 --jobs 14 --seconds 140
    python -m tests.fuzz.card --seed 17 --count 1
    python -m tests.fuzz.card --seeds 17,34,3111 --jobs 3
    python -m tests.fuzz.card --device played --small --varied

The CPU computes by NumPy's functions, which need no compiler; where the card differs from these, by
its own kernels. A difference counts only if it is larger than what a rounding does to the CPU's own
run: samples, first weights and what each layer gives are changed in the last of the bits that the
network's precision has, or the results of every op are, or the same is computed by NumPy. What a
rounding does is not in proportion to it everywhere: of a gradient next to 0 Adam makes a step up or
down, and a relu lets a number through or not. Such a turn is taken by one correct run in five, say,
and moves all that follows; so what looks like a difference is compared with many changes, the later
of which are of two roundings and count half.

With `--draw` kernels of the card are drawn instead of measured, so that also those run which are
seldom fastest; with `--blocks` networks are made of residual blocks, as transformers are; with
`--varied` of more kinds of layers, and trained in more ways. The device "played" is the card that
the tests play on the host. At the end stands how many networks crashed, hung, differed or agreed,
and each that did not agree as a program that can be run.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from caldera import NeuralNetwork, load
from caldera.core.graph.opdef import OPS
from caldera.errors import CalderaError
from caldera.kernels.cuda.runtime import driver
from caldera.kernels.table import TABLE
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import choices
from tests.fuzz.networks import (
    LARGE,
    SMALL,
    LayerRounding,
    RandomNetwork,
    drawn_kernels,
    random_network,
    state_of,
)
from tests.fuzz.rounding import PRECISION_STEP, rounded_ops

MOST_CHANGES = 40
"""How often the CPU is asked what a rounding does, before a difference counts."""
SMALL_CHANGES = 8
"""So many of these are of one rounding, the others of two."""
MARGIN = 4.0
"""Every op of a step rounds, not only what is given to the first: so many times that counts."""
TIME_FOR_CHANGES = 0.6
"""The part of the time until a network hangs after which no change is begun."""
PLAYED = "played"
TELL_EVERY = 50
NONE: Mapping[str, str] = {}
ONE_THREAD = dict.fromkeys(
    ("CALDERA_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""The processes themselves keep all cores busy."""
OUTCOMES = ("crash", "hang", "difference", "agreed", "refused")


class Change(NamedTuple):
    """A change of a run by so many roundings, drawn from a seed."""

    seed: int
    roundings: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """What became of a seed."""

    seed: int
    what: str
    detail: str = ""


# --- one network


@contextmanager
def fixed(kernels: Mapping[str, str], family: str) -> Iterator[None]:
    """Inside, these ops are computed by these kernels, where they can be."""
    for op, name in kernels.items():
        choices.fix(op, name, family, optional=True)
    try:
        yield
    finally:
        for op in kernels:
            choices.unfix(op, family)


def trained(network: RandomNetwork, device: Any, change: Change | None = None) -> list[np.ndarray]:
    """Losses, what was learnt and predictions."""
    if network.before is not None and change is None and device != "cpu":
        # What it leaves behind counts, not whether its own values stay finite.
        or_error(network.before, device)
    x, y = network.data()
    model = network.model(device)
    if change is not None:
        draw = np.random.default_rng(change.seed)
        step = change.roundings * PRECISION_STEP[network.precision or "float32"]

        def rounded(array: np.ndarray) -> np.ndarray:
            signs = draw.integers(0, 2, array.shape).astype(np.float32) * 2 - 1
            return (array * (1 + np.float32(step) * signs)).astype(array.dtype)

        x = x if network.words else rounded(x)
        first = [rounded(np.array(each.numpy())) for each in model.parameters()]
        model = network.model(device, lambda index: LayerRounding(step, (change.seed, index)))
        for each, weights in zip(model.parameters(), first, strict=True):
            each.assign(weights)
    losses: list[float] = []
    for number in range(network.settings.fits):
        if number and network.settings.saved:
            model = _through_a_file(model).to(device)
        losses += model.fit((x, y), **network.options())["loss"]
    if network.settings.evaluated:
        losses.append(model.evaluate((x, y))["loss"])
    found = [np.array(losses), *state_of(model), np.array(model.predict(x), np.float64)]
    if network.settings.saved:
        found.append(np.array(_through_a_file(model).predict(x), np.float64))
    return found


def _through_a_file(model: NeuralNetwork) -> NeuralNetwork:
    """What is read of the file that a model writes; on the CPU."""
    with TemporaryDirectory() as folder:
        return load(model.save(Path(folder) / "fuzz.caldera"))


def compared(
    network: RandomNetwork, device: Any, kernels: Mapping[str, str] = NONE, seconds: float = inf
) -> Outcome:
    """Train a network on a device, ops by these kernels, and on the CPU; no change is begun after
    so many seconds."""
    end = perf_counter() + seconds
    with fixed(kernels, "cuda"):
        there = or_error(network, device)
    return judged(network, str(device), there, end)


def judged(network: RandomNetwork, name: str, there: Any, end: float = inf) -> Outcome:
    """What came elsewhere beside what comes on the CPU."""
    by_numpy = _by_numpy(network)
    if not isinstance(there, str) and not isinstance(by_numpy, str):
        rounded = _by_numpy(network, Change(0))
        if not isinstance(rounded, str):
            step = PRECISION_STEP[network.precision or "float32"]
            worst, detail = _worst(there, by_numpy, [(1.0, rounded)], step)
            if worst <= 1:
                return Outcome(network.seed, "agreed", detail)
    return _judged_again(network, name, there, by_numpy, end)


def _judged_again(
    network: RandomNetwork, name: str, there: Any, by_numpy: Any, end: float
) -> Outcome:
    """What came elsewhere beside the CPU's own kernels.

    NumPy rounds less often, and its last bits are others: where a tanh is as good as 1, its slope
    is 0 or not, and Adagrad makes of the smallest gradient as large a step as of any.
    """
    here = or_error(network, "cpu")
    if isinstance(there, str) or isinstance(here, str):
        agreed = isinstance(there, str) and isinstance(here, str)
        detail = f"{name}: {_shown(there)}; cpu: {_shown(here)}"
        return Outcome(network.seed, "agreed" if agreed else "difference", detail)
    changed: list[tuple[float, list[np.ndarray]]] = []
    worst, detail = inf, ""
    while worst > 1 and len(changed) < MOST_CHANGES and (not changed or perf_counter() < end):
        roundings = 1.0 if len(changed) < SMALL_CHANGES else 2.0
        change = Change(len(changed), roundings)
        found = by_numpy if len(changed) == 1 else _changed(network, change)
        if isinstance(found, str):
            return Outcome(network.seed, "agreed", "a rounding makes the CPU fail")
        changed.append((roundings, found))
        worst, detail = _worst(there, here, changed, PRECISION_STEP[network.precision or "float32"])
    detail = f"{detail}, {len(changed)} changes"
    return Outcome(network.seed, "agreed" if worst <= 1 else "difference", detail)


def _changed(network: RandomNetwork, change: Change) -> Any:
    """What roundings do: in samples, weights and layers, or in every op."""
    if change.seed % 2:
        return or_error(network, "cpu", change)
    with rounded_ops(change.seed, change.roundings):
        return _by_numpy(network)


def _by_numpy(network: RandomNetwork, change: Change | None = None) -> Any:
    names = [name for name in OPS if ORACLE in TABLE.names(name, "cpu")]
    with fixed(dict.fromkeys(names, ORACLE), "cpu"):
        return or_error(network, "cpu", change)


def _worst(
    there: list[np.ndarray],
    here: list[np.ndarray],
    changed: Sequence[tuple[float, list[np.ndarray]]],
    step: float,
) -> tuple[float, str]:
    """The largest difference of two runs, over what changes by so many roundings make of it; in
    words."""
    worst, where = 0.0, "equal"
    for index, (one, other) in enumerate(zip(there, here, strict=True)):
        usual = max(distance(each[index], other) / roundings for roundings, each in changed)
        allowed = MARGIN * usual + step * float(np.linalg.norm(other)) + 1e-12
        off = distance(one, other)
        if off and off / allowed > worst:
            worst = off / allowed
            # After the losses and the parameters come predictions.
            shown = "predictions" if other.shape == here[-1].shape else f"parameter {index - 1}"
            part = shown if index else "losses"
            size = float(np.linalg.norm(other))
            where = f"{worst:.3g} of what is allowed: {part} {other.shape} {off:.3g} of {size:.3g}"
    return worst, where


def or_error(network: RandomNetwork, device: Any, change: Change | None = None) -> Any:
    """What a run gives, or the name of the error with which a network is refused."""
    try:
        return trained(network, device, change)
    except CalderaError as error:
        return f"{type(error).__name__}: {error}"


def _shown(result: Any) -> str:
    return " ".join(result.split())[:300] if isinstance(result, str) else "ran"


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Of two arrays; infinite where one is finite and the other is not."""
    finite = np.isfinite(one)
    if (finite != np.isfinite(other)).any():
        return inf
    return float(np.linalg.norm(one[finite] - other[finite]))


# --- many, each in a process of its own


def in_own_process(seed: int, options: argparse.Namespace) -> Outcome:
    """Compare the network of a seed; what kills a process kills no other."""
    command = [sys.executable, "-m", "tests.fuzz.card", "--one", "--seed", str(seed)]
    command += ["--device", options.device, "--timeout", str(options.timeout)]
    command += ["--small"] * options.small + ["--draw"] * options.draw
    command += ["--blocks"] * options.blocks + ["--varied"] * options.varied
    environment = {**os.environ, **ONE_THREAD}
    # Each would compile the packages anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=options.timeout,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        where = (error.stderr or b"").decode(errors="replace").strip()
        return Outcome(seed, "hang", f"after {options.timeout} s\n{where}".strip())
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = " | ".join(done.stderr.strip().splitlines()[-3:])
        return Outcome(seed, "crash", f"exit status {done.returncode}: {said[-500:]}")
    return Outcome(**json.loads(lines[-1]))


def outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    """Of all seeds, as far as the time goes."""
    end = perf_counter() + options.seconds

    def one(seed: int) -> Outcome | None:
        return in_own_process(seed, options) if perf_counter() < end else None

    with ThreadPoolExecutor(options.jobs) as pool:
        seeds = options.seeds or range(options.seed, options.seed + options.count)
        for each in as_completed([pool.submit(one, seed) for seed in seeds]):
            if (found := each.result()) is not None:
                yield found


def network_of(seed: int, options: argparse.Namespace) -> RandomNetwork:
    """What is drawn for a seed."""
    sizes = SMALL if options.small else LARGE
    return random_network(seed, sizes, blocks=options.blocks, varied=options.varied)


def device_of(name: str) -> Any:
    """The device of a name, which may be the card that tests play."""
    if name != PLAYED:
        return name
    from tests.card.emulated import EmulatedDriver, emulated_card

    driver.use(EmulatedDriver())
    return emulated_card()


def counted(found: Sequence[Outcome]) -> str:
    """How many networks had which outcome."""
    counts = Counter(each.what for each in found)
    return ", ".join(f"{what} {counts[what]}" for what in OUTCOMES)


def summary(found: Sequence[Outcome], options: argparse.Namespace) -> str:
    """What happened, and the networks that did not agree as programs."""
    lines = [counted(found)]
    for each in sorted(found, key=lambda each: each.seed):
        if each.what != "agreed":
            told = each.detail.replace("\n", "\n# ")
            lines += ["", f"# seed {each.seed}: {each.what}: {told}"]
            network = network_of(each.seed, options)
            kernels = drawn_kernels(each.seed) if options.draw else NONE
            device = "cuda" if options.device == PLAYED else options.device
            lines.append(network.code(device, kernels))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any network did not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="networks")
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    parser.add_argument(
        "--seeds", type=lambda text: [int(each) for each in text.split(",")], help="these alone"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at once on one card")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds until it hangs")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no network after this")
    parser.add_argument("--small", action="store_true", help="small networks")
    parser.add_argument("--blocks", action="store_true", help="networks of residual blocks")
    parser.add_argument("--varied", action="store_true", help="more layers, trained in more ways")
    parser.add_argument("--draw", action="store_true", help="draw the kernels of the card")
    parser.add_argument("--one", action="store_true", help="one network in this very process")
    options = parser.parse_args(arguments)
    if options.one:
        # Of one that hangs its threads say where, before it is ended.
        faulthandler.dump_traceback_later(0.9 * options.timeout)
        network = network_of(options.seed, options)
        kernels = drawn_kernels(options.seed) if options.draw else NONE
        seconds = TIME_FOR_CHANGES * options.timeout
        outcome = compared(network, device_of(options.device), kernels, seconds)
        print(json.dumps(vars(outcome)))
        return 0
    found: list[Outcome] = []
    begin = perf_counter()

    def tell_and_end(*_: Any) -> None:
        print(f"ended from outside\n{summary(found, options)}", flush=True)
        os._exit(1)

    # Who is ended by `timeout` says what was found until then.
    before = signal.signal(signal.SIGTERM, tell_and_end)
    for each in outcomes(options):
        found.append(each)
        print(f"seed {each.seed}: {each.what} {each.detail}", flush=True)
        if len(found) % TELL_EVERY == 0:
            print(f"{perf_counter() - begin:.0f} s: {counted(found)}", flush=True)
    signal.signal(signal.SIGTERM, before)
    print(summary(found, options), flush=True)
    return int(any(each.what != "agreed" for each in found))


if __name__ == "__main__":
    sys.exit(main())
