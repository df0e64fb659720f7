"""Contestants on the CPU and on a GPU: each framework in the settings that may be its fastest."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from caldera.base.children import run_program
from caldera.bench.equality import REFERENCE_PRECISION
from caldera.bench.frameworks.tensorflow_tasks import runs
from caldera.bench.workloads import (
    Case,
    ConvolutionCase,
    FormulaCase,
    InputCase,
    LearningCase,
    TrainingCase,
    UpdateCase,
)

PEERS: Mapping[str, str] = {"torch": "PyTorch", "jax": "JAX"}
"""Frameworks that every comparison has, and their names."""
ALL_PEERS: Mapping[str, str] = {**PEERS, "tensorflow": "TensorFlow"}
"""Frameworks of comparisons on the CPU; TensorFlow only takes part if it is installed."""
INSTALL: Mapping[str, str] = {
    "torch": "pip install torch",
    "jax": "pip install jax",
    "tensorflow": "pip install tensorflow-cpu",
}
ACCURACIES = ("strict", "fast")
BEFORE = " before"
"""Ends the setting of Caldera with the code of a run before."""
_COMPILER_SECONDS = 60


@dataclass(frozen=True)
class Contestant:
    """A framework in one setting.

    >>> Contestant("torch", "eager").label
    'torch eager'
    """

    framework: str
    setting: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    precision: str = ""
    """Precision on a GPU, and on the CPU if it is not float32."""
    is_measured: bool = True
    """True if it is timed; otherwise other contestants are only compared with it."""
    sources: str = ""
    """Folder of Caldera's package, if it differs from this one."""

    @property
    def label(self) -> str:
        """Name of the contestant in tables."""
        name = f"{self.framework} {self.setting}"
        return f"{name}, {self.precision}" if self.precision else name

    def before(self, sources: str) -> Contestant:
        """Return the same one with the code of a run before.

        >>> Contestant("caldera", "strict").before("/tmp/old").label
        'caldera strict before'
        """
        return replace(self, setting=f"{self.setting}{BEFORE}", sources=sources)

    def rounded_to(self, precision: str) -> Contestant:
        """Return the contestant on the CPU in another precision.

        >>> Contestant("torch", "eager").rounded_to("bfloat16").label
        'torch eager, bfloat16'
        """
        return replace(self, precision=precision, options={**self.options, "precision": precision})

    def only_compared(self) -> Contestant:
        """Return the contestant as a reference for results, without measurements of its time."""
        return replace(self, is_measured=False)


REFERENCE = "torch"
"""Framework whose first setting produces the reference results."""


def usual_peers(device: str = "cpu") -> list[str]:
    """Return the peers that take part unless others are named.

    >>> usual_peers("cuda")
    ['torch', 'jax']
    """
    return [
        peer
        for peer in ALL_PEERS
        if peer in PEERS or (device == "cpu" and find_spec(peer) is not None)
    ]


def missing_peers(peers: Sequence[str]) -> dict[str, str]:
    """Return peers that are not installed, each with the command that installs it."""
    return {peer: INSTALL[peer] for peer in peers if find_spec(peer) is None}


def contestants(
    case: Case,
    peers: Sequence[str],
    accuracies: Sequence[str],
    *,
    compiler: bool,
    without: Sequence[str] = (),
    workspaces: Sequence[int] = (),
    precisions: Sequence[str] = (),
) -> list[Contestant]:
    """Return all contestants of a case: the reference first, then Caldera.

    In training steps Caldera is also measured without each pass named in `without`, and with each
    number of MiB in `workspaces`, a limit under which convolutions are split into micro-batches.
    `precisions` applies to training steps and defaults to float32. The reference always computes in
    float32.

    >>> from caldera.bench.workloads import WORKLOADS
    >>> case = WORKLOADS["mlp"].cases[0]
    >>> [each.label for each in contestants(case, ["jax"], ["strict"], compiler=False)]
    ['caldera strict', 'jax jit', 'jax scan']
    """
    settings: dict[str, Callable[[], list[Contestant]]] = {
        "torch": lambda: _torch(case, compiler),
        "jax": lambda: _jax(case),
        "tensorflow": lambda: _tensorflow(case),
    }
    ours = [Contestant("caldera", each, {"accuracy": each}) for each in accuracies]
    if isinstance(case, TrainingCase) and accuracies:
        first = accuracies[0]
        ours += [
            Contestant("caldera", f"{first} without {name}", {"accuracy": first, "without": [name]})
            for name in without
        ]
        ours += [
            Contestant(
                "caldera",
                f"{first} with {mib} MiB of workspace",
                {"accuracy": first, "workspace_limit": mib << 20},
            )
            for mib in workspaces
        ]
    theirs = [contestant for peer in peers for contestant in settings[peer]()]
    theirs.sort(key=lambda each: each.framework != REFERENCE)
    reference = [each for each in theirs[:1] if each.framework == REFERENCE]
    found = [*ours, *theirs[len(reference) :]]
    if not precisions or not isinstance(case, TrainingCase):
        return [*reference, *found]
    rounded = [
        each.rounded_to(name)
        for name in precisions
        if name != REFERENCE_PRECISION
        for each in [*reference, *found]
    ]
    return [*reference, *(found if REFERENCE_PRECISION in precisions else ()), *rounded]


def _torch(case: Case, compiler: bool) -> list[Contestant]:
    if isinstance(case, LearningCase):
        return [Contestant("torch", "eager", {"compiled": False})]
    if isinstance(case, InputCase):
        return [
            Contestant("torch", "DataLoader"),
            Contestant("torch", "DataLoader of whole batches", {"whole": True}),
        ]
    if isinstance(case, UpdateCase):
        found = [
            Contestant("torch", "fused (RMSProp: a loop)", {"style": "fused"}),
            Contestant("torch", "foreach", {"style": "foreach"}),
        ]
        return [*found, *([Contestant("torch", "compiled", {"style": "compiled"})] * compiler)]
    ways = [False]
    if compiler and isinstance(case, TrainingCase | FormulaCase):
        ways.append(True)
    found = []
    for compiled in ways:
        name = "compiled" if compiled else "eager"
        found.append(Contestant("torch", name, {"compiled": compiled}))
        if _has_images(case):
            options = {"compiled": compiled, "channels_last": True}
            found.append(Contestant("torch", f"{name} channels_last", options))
    return found


def _jax(case: Case) -> list[Contestant]:
    if isinstance(case, InputCase):
        return []
    found = [Contestant("jax", "jit")]
    if isinstance(case, LearningCase):
        return found
    images = _has_images(case)
    if images:
        found.append(Contestant("jax", "jit channels_last", {"channels_last": True}))
    # Convolutions inside a loop are three times slower in JAX on the CPU (LeNet-5: 119 ms, not 37).
    if isinstance(case, TrainingCase) and case.is_small and not images:
        found.append(Contestant("jax", "scan", {"scan": True}))
    return found


def _tensorflow(case: Case) -> list[Contestant]:
    if not runs(case):
        return []
    ways: dict[str, dict[str, bool]] = {"function": {}}
    if isinstance(case, TrainingCase):
        ways["XLA"] = {"xla": True}
    return [Contestant("tensorflow", name, options) for name, options in ways.items()]


def _has_images(case: Case) -> bool:
    return isinstance(case, ConvolutionCase) or (isinstance(case, TrainingCase) and case.has_images)


@cache
def has_compiler() -> bool:
    """Return True if a C++ compiler works; torch.compile requires one."""
    program = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if program is None:
        return False
    source = b"#include <vector>\nint main() { return 0; }\n"
    words = (program, "-x", "c++", "-fsyntax-only", "-")
    done = run_program(*words, seconds=_COMPILER_SECONDS, content=source)
    return done is not None and done.returncode == 0


# --- on a card

CHANNELS_LAST = "channels_last"


def card_contestants(
    case: TrainingCase,
    peers: Sequence[str],
    precisions: Sequence[str],
    *,
    compiler: bool,
    words: Sequence[str] = (),
    device: str = "cuda",
) -> list[Contestant]:
    """Return all contestants on a GPU: the reference first, then Caldera.

    The reference is PyTorch in float32. If this precision is not measured, the reference is not
    timed. With `words`, only settings whose label contains a word are returned (and the reference).

    >>> from caldera.bench.workloads import WORKLOADS
    >>> case = WORKLOADS["mlp"].cases[0]
    >>> found = card_contestants(case, ["jax"], ["tf32"], compiler=False)
    >>> [each.label for each in found]
    ['caldera step, tf32', 'caldera fit, tf32', 'jax jit, tf32', 'jax scan, tf32']
    """
    found = []
    for precision in precisions:
        ours = [("step", {}), ("fit", {"fit": True})]
        found += [_on_card("caldera", name, precision, device, each) for name, each in ours]
        for peer in [each for each in peers if each in PEERS]:
            settings = (
                _torch_on_card(case, compiler) if peer == "torch" else _jax_on_card(case, precision)
            )
            found += [_on_card(peer, name, precision, device, each) for name, each in settings]
    found = [each for each in found if not words or any(word in each.label for word in words)]
    found.sort(key=lambda each: each.framework != "caldera")
    if REFERENCE not in peers:
        return found
    reference = _on_card(REFERENCE, "eager", REFERENCE_PRECISION, device, {"compiled": False})
    is_measured = any(each.label == reference.label for each in found)
    others = [each for each in found if each.label != reference.label]
    return [reference if is_measured else reference.only_compared(), *others]


def _on_card(
    framework: str, setting: str, precision: str, device: str, options: dict[str, Any]
) -> Contestant:
    own = {"accuracy": "strict"} if framework == "caldera" else {}
    placed = {**own, **options, "device": device, "precision": precision}
    return Contestant(framework, setting, placed, precision)


def _torch_on_card(case: TrainingCase, compiler: bool) -> list[tuple[str, dict[str, Any]]]:
    ways: list[tuple[str, dict[str, Any]]] = [
        ("eager", {"compiled": False}),
        ("CUDA graph", {"compiled": False, "graph": True}),
    ]
    if compiler:
        ways += [
            ("compiled", {"compiled": True}),
            ("compiled reduce-overhead", {"compiled": "reduce-overhead"}),
        ]
        # Not for large cases: their steps are so long that the cost of launches is negligible.
        if not case.is_large:
            ways.append(("compiled CUDA graph", {"compiled": True, "graph": True}))
    return list(_in_both_formats(ways, case))


def _jax_on_card(case: TrainingCase, precision: str) -> list[tuple[str, dict[str, Any]]]:
    ways: list[tuple[str, dict[str, Any]]] = [("jit", {})]
    if not case.is_large:
        ways.append(("scan", {"scan": True}))
    if case.attention and precision == "bfloat16":
        # cuDNN's attention supports only half precision.
        ways += [
            (f"{name} cuDNN attention", {**options, "cudnn_attention": True})
            for name, options in list(ways)
        ]
    return list(_in_both_formats(ways, case))


def _in_both_formats(
    ways: Iterable[tuple[str, dict[str, Any]]], case: TrainingCase
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield settings, and for images the same with channels last in memory."""
    for name, options in ways:
        yield name, options
        if case.has_images:
            yield f"{name} {CHANNELS_LAST}", {**options, CHANNELS_LAST: True}
