"""Who is measured on a card: each framework in the settings in which it may be at its best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from caldera.bench.contestants import REFERENCE, Contestant
from caldera.bench.precision import REFERENCE_PRECISION
from caldera.bench.workloads import TrainingCase

CARD_PEERS = ("torch", "jax")
"""Peers that are measured on a card."""
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
    """Everybody who takes part; what the others must agree with first, then Caldera.

    That is PyTorch in float32; where this precision is not measured, it is only compared with.
    With `words`, only settings in whose label one of them is (and the reference).

    >>> from caldera.bench.workloads import WORKLOADS
    >>> case = WORKLOADS["mlp"].cases[0]
    >>> found = card_contestants(case, ["jax"], ["tf32"], compiler=False)
    >>> [each.label for each in found]
    ['caldera step, tf32', 'caldera fit, tf32', 'jax jit, tf32', 'jax scan, tf32']
    """
    found = []
    for precision in precisions:
        ours = [("step", {}), ("fit", {"fit": True})]
        found += [_made("caldera", name, precision, device, each) for name, each in ours]
        for peer in peers:
            settings = _torch(case, compiler) if peer == "torch" else _jax(case, precision)
            found += [_made(peer, name, precision, device, each) for name, each in settings]
    found = [each for each in found if not words or any(word in each.label for word in words)]
    found.sort(key=lambda each: each.framework != "caldera")
    if REFERENCE not in peers:
        return found
    reference = _made(REFERENCE, "eager", REFERENCE_PRECISION, device, {"compiled": False})
    is_measured = any(each.label == reference.label for each in found)
    others = [each for each in found if each.label != reference.label]
    return [reference if is_measured else reference.only_compared(), *others]


def _made(
    framework: str, setting: str, precision: str, device: str, options: dict[str, Any]
) -> Contestant:
    own = {"accuracy": "strict"} if framework == "caldera" else {}
    placed = {**own, **options, "device": device, "precision": precision}
    return Contestant(framework, setting, placed, precision)


def _torch(case: TrainingCase, compiler: bool) -> list[tuple[str, dict[str, Any]]]:
    ways: list[tuple[str, dict[str, Any]]] = [
        ("eager", {"compiled": False}),
        ("CUDA graph", {"compiled": False, "graph": True}),
    ]
    if compiler:
        ways += [
            ("compiled", {"compiled": True}),
            ("compiled reduce-overhead", {"compiled": "reduce-overhead"}),
        ]
        # Its steps are so long that launching them costs nothing.
        if not case.is_large:
            ways.append(("compiled CUDA graph", {"compiled": True, "graph": True}))
    return list(_in_both_formats(ways, case))


def _jax(case: TrainingCase, precision: str) -> list[tuple[str, dict[str, Any]]]:
    ways: list[tuple[str, dict[str, Any]]] = [("jit", {})]
    if not case.is_large:
        ways.append(("scan", {"scan": True}))
    if case.attention and precision == "bfloat16":
        # cuDNN's attention is for half precision alone.
        ways += [
            (f"{name} cuDNN attention", {**options, "cudnn_attention": True})
            for name, options in list(ways)
        ]
    return list(_in_both_formats(ways, case))


def _in_both_formats(
    ways: Iterable[tuple[str, dict[str, Any]]], case: TrainingCase
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Settings, and for images the same with channels last in memory."""
    for name, options in ways:
        yield name, options
        if case.has_images:
            yield f"{name} {CHANNELS_LAST}", {**options, CHANNELS_LAST: True}
