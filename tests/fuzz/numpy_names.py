"""Calls NumPy's functions with random arguments on arrays that ranks share, and compares value,
shape, dtype or error with what NumPy gives for the whole arrays.

    python -m tests.fuzz.numpy_names --count 5000
    python -m tests.fuzz.numpy_names --seed 17 --count 1
    python -m tests.fuzz.numpy_names --function linalg.norm --count 200
    python -m tests.fuzz.numpy_names --count 100 --ranks processes

Arguments are those of NumPy's own signatures. Ranks are threads, or worker processes with
`--ranks processes`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import numpy as np

from caldera import dmath as dm
from caldera.dmath.numpy_functions.dispatch import TABLE
from caldera.dmath.numpy_functions.ufuncs import REDUCTIONS, RUNNING, UFUNCS
from caldera.errors import CalderaError
from tests.fuzz.numpy_arguments import Draw, Leaf, arguments

RANKS = 3
TOLERANCES = {"float64": 1e-8, "float32": 2e-4, "float16": 2e-2}
"""Of the largest number of a result, by the dtype of its parts."""


def names() -> dict[str, Any]:
    """NumPy's functions that dmath has, by name."""
    found: dict[str, Any] = {}
    for module, prefix in ((np, ""), (np.linalg, "linalg."), (np.fft, "fft.")):
        for name in sorted(dir(module)):
            function = getattr(module, name)
            is_ufunc = isinstance(function, np.ufunc) and function in UFUNCS
            if is_ufunc or (callable(function) and _known(function)):
                known = function not in found.values()
                if known:
                    found[prefix + name] = function
    for table, method in ((REDUCTIONS, "reduce"), (RUNNING, "accumulate")):
        found |= {f"{each.__name__}.{method}": getattr(each, method) for each in table}
    found |= {f"{each.__name__}.outer": each.outer for each in (np.add, np.less, np.multiply)}
    return found


def _known(function: Any) -> bool:
    try:
        return function in TABLE
    except TypeError:
        return False


NAMES = names()
FACTORISATIONS = frozenset(
    f"linalg.{name}"
    for name in (
        *("cholesky", "qr", "svd", "svdvals", "eigh", "eigvalsh", "inv", "solve", "det"),
        *("slogdet", "lstsq", "pinv", "cond", "matrix_rank", "matrix_power"),
    )
)


class Outcome(NamedTuple):
    """What came of a call: `wrong` where the answers differ or only NumPy refuses."""

    seed: int
    name: str
    what: str
    detail: str = ""


@dataclass
class Case:
    """A call: NumPy's function by name, and its arguments, in which arrays are leaves."""

    seed: int
    name: str
    args: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def called(self, change: Callable[[Leaf], Any]) -> Any:
        """What the function gives for these arrays."""
        args = [_changed(each, change) for each in self.args]
        options = {name: _changed(each, change) for name, each in self.options.items()}
        return NAMES[self.name](*args, **options)

    def leaves(self) -> list[Leaf]:
        """The arrays among the arguments."""
        found: list[Leaf] = []
        for each in (*self.args, *self.options.values()):
            _changed(each, found.append)
        return found

    def __str__(self) -> str:
        given = [repr(each) for each in self.args]
        given += [f"{name}={each!r}" for name, each in self.options.items()]
        return f"np.{self.name}({', '.join(given)})"


def _changed(value: Any, change: Callable[[Leaf], Any]) -> Any:
    if isinstance(value, Leaf):
        return change(value)
    if isinstance(value, list | tuple) and any(isinstance(each, Leaf) for each in value):
        return type(value)(_changed(each, change) for each in value)
    return value


def case_of(seed: int, name: str = "") -> Case:
    """The case of a seed; of this function, if one is named."""
    random = Random(f"numpy of {seed}")
    chosen = name or random.choice(sorted(NAMES))
    args, options = arguments(NAMES[chosen], chosen, Draw(random, seed, chosen))
    if chosen == "argsort":
        # Other kinds of sorting leave open the order of equal elements.
        args, options = args[:2], {k: v for k, v in options.items() if k in ("axis", "out")}
        options["kind"] = "stable"
    return Case(seed, chosen, args, options)


def compared(case: Case) -> Outcome:
    """Call NumPy and dmath, and compare."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            expected: Any = case.called(lambda leaf: leaf.numpy())
        except Exception as error:
            expected = error
        try:
            found: Any = _here(case.called(lambda leaf: leaf.spread()))
        except CalderaError as error:
            found = error
        except Exception as error:
            if isinstance(expected, Exception) and type(error) is type(expected):
                return Outcome(case.seed, case.name, "both refused")
            return Outcome(case.seed, case.name, "raw", f"{type(error).__name__}: {error}"[:300])
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if isinstance(expected, Exception) and isinstance(found, Exception):
            return Outcome(case.seed, case.name, "both refused", f"{found}"[:120])
        inputs = [leaf.values for leaf in case.leaves()]
        wild = case.name in FACTORISATIONS and not (_is_finite(inputs) or _is_finite(found))
        if wild and isinstance(expected, np.linalg.LinAlgError):
            return Outcome(case.seed, case.name, "agreed")
        what = "refused" if isinstance(found, Exception) else "wrong"
        return Outcome(case.seed, case.name, what, f"{expected!r:.200} | {found!r:.300}")
    if case.name in FACTORISATIONS and not (_is_finite(expected) or _is_finite(found)):
        # What nan and infinity make of a factorisation is another matter in each library.
        return Outcome(case.seed, case.name, "agreed")
    kinds = [leaf.values.real.dtype.name for leaf in case.leaves()]
    least = max((TOLERANCES.get(each, 0.0) for each in kinds), default=0.0)
    apart = difference(*(_settled(case, each) for each in (expected, found)), least)
    return Outcome(case.seed, case.name, "wrong" if apart else "agreed", apart)


def _is_finite(made: Any) -> bool:
    several = made if isinstance(made, list | tuple) else [made]
    if any(isinstance(each, Exception) for each in several):
        return True
    return all(np.isfinite(each).all() for each in several)


def _here(made: Any) -> Any:
    if isinstance(made, dm.Array):
        return made.numpy()
    if isinstance(made, list | tuple):
        several = [_here(each) for each in made]
        return type(made)(*several) if hasattr(made, "_fields") else type(made)(several)
    return made


def _settled(case: Case, made: Any) -> Any:
    """Results without what a factorisation leaves open, such as signs."""
    short = case.name.rsplit(".", 1)[-1]
    if short == "svd" and isinstance(made, tuple):
        u, s, vh = made
        k = s.shape[-1]
        back = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
        return s, back, _adjoint(u) @ u, vh @ _adjoint(vh)
    if short == "qr":
        if isinstance(made, tuple):
            return made[0] @ made[1], _adjoint(made[0]) @ made[0], np.abs(made[1])
        return np.abs(made)
    if short == "eigh":
        return made[0], (made[1] * made[0][..., None, :]) @ _adjoint(made[1])
    if short == "empty_like":
        return np.zeros_like(made)
    if short in ("unique_values", "unique_counts", "unique_inverse"):
        values, *others = made if isinstance(made, tuple) else (made,)
        order = np.argsort(values, kind="stable")
        # NumPy may give them in any order.
        inverse = short == "unique_inverse"
        return values[order], *[values[each] if inverse else each[order] for each in others]
    return made


def _adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def difference(expected: Any, found: Any, least: float) -> str:
    """What is apart by more than roundings, those of the inputs too; empty if nothing is. NumPy
    rounds in between: its transforms of halves divide by a half."""
    if isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(expected) != len(found):
            return f"{found!r:.200} instead of {expected!r:.200}"
        named = getattr(expected, "_fields", ())
        if named and named != getattr(found, "_fields", ()):
            return f"{type(found)} instead of {type(expected)}"
        apart = [difference(*pair, least) for pair in zip(expected, found, strict=True)]
        return next((each for each in apart if each), "")
    if isinstance(expected, np.dtype | type):
        return "" if expected == found else f"{found} instead of {expected}"
    right, got = np.asarray(expected), np.asarray(found)
    if right.shape != got.shape or right.dtype != got.dtype:
        return f"{got.dtype} {got.shape} instead of {right.dtype} {right.shape}"
    if right.dtype.kind not in "fc":
        return "" if np.array_equal(right, got) else f"{got!r:.200} instead of {right!r:.200}"
    parts = [(right.real, got.real), (right.imag, got.imag)] if right.dtype.kind == "c" else []
    if parts:
        # A product or sum of complex numbers with an infinity or nan in one part of them leaves
        # open which part of the result has it.
        wild = ~np.isfinite(right) & ~np.isfinite(got)
        parts = [tuple(np.where(wild, 0, each) for each in pair) for pair in parts]
    for one, other in parts or [(right, got)]:
        if not _near(one, other, np.abs(right[np.isfinite(right)]).max(initial=0.0), least):
            return f"{got!r:.300} instead of {right!r:.300}"
    return ""


def _near(right: np.ndarray, got: np.ndarray, largest: float, least: float) -> bool:
    tolerance = max(TOLERANCES[right.dtype.name], least)
    same = (right == got) | (np.isnan(right) & np.isnan(got))
    finite = np.isfinite(right) & np.isfinite(got)
    apart = np.abs(right[finite].astype("f8") - got[finite].astype("f8"))
    bound = tolerance * (float(largest) + 1e-3)
    return bool((same | finite).all() and (apart <= bound).all())


def summary(found: Sequence[Outcome]) -> str:
    """How often each came, and which functions were refused or wrong most."""
    counts = Counter(each.what for each in found)
    lines = [", ".join(f"{count} {what}" for what, count in counts.most_common())]
    for what in ("wrong", "raw", "refused"):
        several = Counter(each.name for each in found if each.what == what)
        if several:
            lines.append(f"{what}: " + ", ".join(f"{n} {k}" for n, k in several.most_common(40)))
    return "\n".join(lines)


def _work(cases: Sequence[Case]) -> list[Outcome]:
    found = []
    for case in cases:
        found.append(compared(case))
        if found[-1].what in ("wrong", "raw"):
            print(f"seed {case.seed}: {found[-1].what}: {case}\n    {found[-1].detail}", flush=True)
    return found


def session(ranks: str) -> AbstractContextManager[Any]:
    """A session of these ranks."""
    return dm.connect(RANKS - 1) if ranks == "processes" else dm.connect(threads=RANKS)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any call is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="calls")
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--function", default="", help="such as linalg.norm")
    parser.add_argument("--ranks", choices=("threads", "processes"), default="threads")
    parser.add_argument("--refused", action="store_true", help="print what dmath alone refuses")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.count)
    cases = [case_of(seed, options.function) for seed in seeds]
    with session(options.ranks):
        found = _work(cases)
    if options.refused:
        for each, case in zip(found, cases, strict=True):
            if each.what == "refused":
                print(f"seed {each.seed}: {case}\n    {each.detail}")
    print(summary(found))
    return int(any(each.what in ("wrong", "raw") for each in found))


if __name__ == "__main__":
    sys.exit(main())
