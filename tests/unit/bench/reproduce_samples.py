"""Samples that support each claim, and samples that contradict it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from caldera.bench.reproduce.criteria import ON_GPU, claims
from caldera.bench.reproduce.experiments.consistency import MESSAGES
from caldera.bench.reproduce.experiments.dmath_table import OTHERS, RANKS, SEED
from caldera.bench.reproduce.experiments.scaling import TABLE
from caldera.bench.reproduce.ranks import CONSISTENCY
from caldera.kernels.tuning.choice_store import ORACLE

Found = dict[str, dict[str, list[float]]]
FAST, SLOW = [1.0] * 9, [2.0] * 9
SEEDS = [0.9, 0.91, 0.92]


def _sums() -> Found:
    ways = {"our kernels": [1.1] * 9, "product with ones": FAST}
    ways |= {"BLAS gemv": FAST, "NumPy's sum": SLOW}
    return {f"{name}, {size}": ways for name in ("X.1", "X^T.1") for size in (64, 256, 1024)}


def _table() -> Found:
    found: Found = {name: {"images/s": list(rates)} for name, rates in SEED.items()}
    found["GoogLeNet 1024"]["images/s"][RANKS.index(16)] = 1600.0
    found["AlexNet 1024"]["bytes on 16"] = [2.3e9]
    found["GoogLeNet 1024"]["bytes on 16"] = [5.3e9]
    return found


def _calibrated() -> Found:
    """Predictions that are right within 10%, with error bars of 20%."""
    cases = [f"dmath: {name}, {ranks} GPUs" for name in SEED for ranks in RANKS[1:]]
    cases += [f"sparcml: {n}" for n in range(8)] + ["resnet: 256 GPUs"]
    return {case: {"predicted": [1.1], "reported": [1.0], "factor": [1.2]} for case in cases} | {
        "resnet: 256 GPUs": {"predicted": [0.9], "reported": [0.9], "factor": [1.0]}
    }


HONEST: dict[str, Callable[[], Found]] = {
    "fusion": lambda: {
        str(size): {"before": SLOW, "fused": FAST, "difference": [0.0], "kernels": [1.0]}
        for size in (1 << 12, 1 << 16, 1 << 20)
    },
    "mixed-precision": lambda: {
        size: {
            "before": SLOW,
            "fused": [1.5] * 9,
            "half": [1.5] * 9,
            "both": FAST,
            **{f"difference, {each}": [1e-6] for each in ("fused", "half", "both")},
            "kernels, before": [10.0],
            "kernels, fused": [4.0],
        }
        for size in ("128", "512")
    },
    "half-storage": lambda: {
        "accuracy": {"float32": SEEDS, "float16": SEEDS},
        "bytes": {"float32": [4.0], "float16": [2.0]},
    },
    "ternary-weights": lambda: {
        "accuracy": {"float32": [0.95, 0.96, 0.97], "ternary": [0.948, 0.957, 0.969]},
        "bytes": {"float32": [4.0], "ternary": [0.26]},
    },
    "products": lambda: {
        "16": {"single": SLOW, "batched": FAST},
        "64": {"single": SLOW, "batched": FAST},
        "1024": {"single": FAST, "batched": FAST},
    },
    "factorisations": lambda: {
        "svd": {"SVD": FAST, "LAPACK": SLOW, "difference": [1e-6]},
        "fft": {"FFT": FAST, "NumPy": SLOW, "difference": [1e-7]},
    },
    "reductions": _sums,
    "micro-batching": lambda: {
        "3 x 3, at most 1024 KiB": {"direct": SLOW, "2 x 16 by winograd": FAST}
    },
    "algorithm-choice": lambda: {
        f"{kind}, at most {size} KiB": {
            "chosen": FAST,
            "winograd": FAST,
            "direct": SLOW,
            "workspace over the limit": [0.5],
        }
        for kind in ("3 x 3", "5 x 5")
        for size in (128, 1024)
    },
    "replication": lambda: {"mlp": {"before": SLOW, "overlapped": FAST}},
    "cached-metadata": lambda: {
        "first call": {"messages": [4.0], "bytes": [4000.0]},
        "later call": {"messages": [4.0], "bytes": [200.0]},
        "single operations": {"messages": [160.0], "bytes": [8000.0]},
        "results": {"difference": [0.0] * 3},
    },
    "bench-overhead": lambda: {
        name: {"alone": FAST, "watched": [1.01] * 9} for name in ("mlp", "4 layers")
    },
    "input-tuning": lambda: {"slow disk": {"best fixed": FAST, "tuned": [1.02] * 9}},
    "search-time": lambda: {
        "one worker": {"seconds": [4.0, 5.0, 6.0]},
        "several workers": {"seconds": [2.5, 3.0, 3.5]},
        "several workers, stopped early": {"seconds": [1.5, 2.0, 2.5]},
    },
    "consistency": lambda: {n: {"accuracy": SEEDS, "seconds": FAST} for n in CONSISTENCY},
    "messages": lambda: {
        "whole gradients": {"accuracy": SEEDS, "bytes": [100.0] * 3},
        **{name: {"accuracy": SEEDS, "bytes": [25.0] * 3} for name in MESSAGES},
    },
    "ensemble": lambda: {
        "accuracy": {
            "members": SEEDS,
            "ensemble": [each + 0.01 for each in SEEDS],
            "averaged weights": SEEDS,
        }
    },
    "topk-assumption": lambda: {
        f"top {share}": {"xi": [1.0, 1.5, 1.4, 1.3]} for share in ("1%", "5%", "20%")
    },
    "sparcml": lambda: {
        "bytes of each rank": {"dense": [31.0], "Top16_Q4": [1.0]},
        **{
            f"{line.system}, {line.network}": {
                "communication": [line.exchange],
                "training": [line.training],
            }
            for line in TABLE
        },
    },
    "allreduce": lambda: {
        network: {"1 rank": FAST, "2 processes as ranks": [1.05] * 9, "predicted": [1.02] * 5}
        for network in ("mlp", "resnet20")
    },
    "many-cards": lambda: {
        f"{network}, {scaling}": {
            "ranks": [1.0, 64.0],
            "batch": [256.0, 8192.0],
            "images/s": [100.0, 6000.0],
            "images/s of one": [100.0],
        }
        for network in ("AlexNet", "ResNet-50")
        for scaling in ("strong", "weak")
    },
    "mlp-layers": lambda: {
        str(depth): {"caldera": [1e-3 * depth] * 9, "torch": [2e-3 * depth] * 9}
        for depth in (1, 2, 4)
    },
    "dmath-table": _table,
    "calibration": _calibrated,
    "fft-scaling": lambda: {
        "machine": {"cores": [2.0], "difference": [1e-7]},
        **{f"{n} ranks": {"seconds": [4.0 / n] * 9} for n in (1, 2, 4)},
    },
    "ring": lambda: {
        **{f"{n} MiB": {"ring": FAST, "doubling": [1.2] * 9, "master": SLOW} for n in (1, 16)},
        **{f"{n} nodes": {"ring": [1.0], "doubling": [1.3]} for n in (8, 16, 32, 64)},
    },
    "inception": lambda: {"64 K80 GPUs": {"images/s": [30.0, 1443.0]}},
}

Change = Callable[[Found], Any]


def _each(method: str, values: list[float]) -> Change:
    """Replace the numbers of a method in all cases that have it."""

    def change(found: Found) -> None:
        changed = [case for case in found.values() if method in case]
        assert changed, method
        for case in changed:
            case[method] = values

    return change


def _in(case: str, method: str, values: list[float]) -> Change:
    def change(found: Found) -> None:
        assert method in found[case]
        found[case][method] = values

    return change


LOWER = [0.7, 0.71, 0.72]
CONTRADICTING: dict[str, dict[str, Change]] = {
    "fusion": {
        "slower": _each("fused", [3.0] * 9),
        "as fast": _each("fused", SLOW),
        "three turns": _each("fused", FAST[:3]),
        "other values": _each("difference", [0.1]),
        "values that are not numbers": _each("difference", [float("nan")]),
        "two passes": _each("kernels", [2.0]),
        "kernels unknown": _in(str(1 << 20), "kernels", [float("nan")]),
        "large sizes missing": lambda found: found.pop(str(1 << 20)),
        "the small size missing": lambda found: found.pop(str(1 << 12)),
    },
    "mixed-precision": {
        "half precision is slower": _each("half", [2.5] * 9),
        "both are slower": _each("both", [3.9] * 9),
        "fusion is slower": _each("fused", [2.2] * 9),
        "1.1 times": _each("half", [1.8] * 9),
        "far off": _each("difference, both", [0.3]),
        "both are not numbers": _each("difference, both", [float("nan")]),
        "fused is far off": _each("difference, fused", [0.01]),
        "as many kernels": _each("kernels, fused", [10.0]),
        "a size is missing": lambda found: found.pop("128"),
    },
    "half-storage": {
        "accuracy lost": _in("accuracy", "float16", LOWER),
        "accuracy changed": _in("accuracy", "float16", [0.95, 0.96, 0.97]),
        "nothing learned": _each("float32", [0.1] * 3),
        "one seed": lambda found: found.update(accuracy={"float32": [0.9], "float16": [0.9]}),
        "nothing saved": _in("bytes", "float16", [4.0]),
    },
    "ternary-weights": {
        "accuracy lost": _in("accuracy", "ternary", LOWER),
        "lost for a seed": _in("accuracy", "ternary", [0.948, 0.8, 0.969]),
        "nothing learned": _each("float32", [0.1] * 3),
        "one seed": lambda found: found.update(accuracy={"float32": [0.95], "ternary": [0.95]}),
        "stored in bytes": _in("bytes", "ternary", [1.0]),
    },
    "products": {
        "batches are slower": _in("16", "batched", [3.0] * 9),
        "noise": _in("64", "batched", [1.0, 4.0, 1.5, 3.5, 2.0, 1.2, 3.0, 2.5, 1.8]),
        "batches stay faster": _in("1024", "single", [3.0] * 9),
        "small sizes missing": lambda found: found.pop("16"),
        "large sizes missing": lambda found: found.pop("1024"),
    },
    "factorisations": {
        "slower than LAPACK": _in("svd", "SVD", [3.0] * 9),
        "wrong SVD": _in("svd", "difference", [0.1]),
        "wrong FFT": _in("fft", "difference", [0.1]),
        "LAPACK crashed": _in("svd", "LAPACK", []),
    },
    "reductions": {
        "reducing is faster": _each("our kernels", [0.5] * 9),
        "a library's reduction is faster": _each("NumPy's sum", [0.5] * 9),
        "the slower way is chosen": _in("X.1, 1024", "our kernels", [5.0] * 9),
        "a size is missing": lambda found: found.pop("X^T.1, 1024"),
        "columns missing": lambda found: [
            found.update({k: {**found[k], "BLAS gemv": []}}) for k in found
        ],
    },
    "micro-batching": {
        "the whole batch is faster": _each("direct", [0.5] * 9),
        "as fast": _each("direct", FAST),
        "only the reference is faster": lambda found: [
            each.update({ORACLE: [0.1] * 9, "2 x 16 by winograd": SLOW}) for each in found.values()
        ],
        "nothing takes the whole batch": lambda found: [
            each.pop("direct") for each in found.values()
        ],
    },
    "algorithm-choice": {
        "the slower one is chosen": _each("chosen", SLOW),
        "20% slower": _in("3 x 3, at most 128 KiB", "chosen", [1.2] * 9),
        "more than the limit": _in("5 x 5, at most 128 KiB", "workspace over the limit", [1.5]),
        "memory unknown": _each("workspace over the limit", [float("nan")]),
        "nothing to choose": lambda found: [each.pop("direct") for each in found.values()],
    },
    "replication": {
        "no gain": _each("overlapped", SLOW),
        "slower": _each("overlapped", [2.5] * 9),
        "noise": _each("overlapped", [1.0, 4.0, 1.5, 3.5, 2.0, 1.2, 3.0, 2.5, 1.8]),
        "ranks crashed": _each("overlapped", []),
        "not run": dict.clear,
    },
    "cached-metadata": {
        "an order for each operation": _in("later call", "messages", [160.0]),
        "sent again": _in("later call", "bytes", [4000.0]),
        "as many bytes as single operations": _in("single operations", "bytes", [220.0]),
        "another result": _in("results", "difference", [0.0, 0.1, 0.0]),
        "a result that is no number": _in("results", "difference", [0.0, float("nan"), 0.0]),
        "no orders counted": _in("later call", "bytes", [float("nan")]),
    },
    "bench-overhead": {
        "10%": _each("watched", [1.1] * 9),
        "10% on one network": _in("mlp", "watched", [1.1] * 9),
        "a network is missing": lambda found: found.pop("mlp"),
        "crashed": _in("4 layers", "watched", []),
    },
    "input-tuning": {
        "80% of the rate": _in("slow disk", "tuned", [1.25] * 9),
        "noise": _in("slow disk", "tuned", [1.0, 1.4, 0.9, 1.5, 1.1, 1.3, 0.8, 1.2, 1.0]),
        "crashed": _in("slow disk", "tuned", []),
        "not run": dict.clear,
    },
    "search-time": {
        "no gain": _in("several workers", "seconds", [4.0, 5.0, 6.0]),
        "slower for a seed": _in("several workers", "seconds", [2.5, 5.5, 3.5]),
        "slower if stopped": _in("several workers, stopped early", "seconds", [5.0, 6.0, 7.0]),
        "never reached": _in("several workers, stopped early", "seconds", [1.5, float("inf"), 2.5]),
        "a search crashed": _in("several workers", "seconds", [2.5]),
        "one seed": lambda found: [
            each.update(seconds=each["seconds"][:1]) for each in found.values()
        ],
    },
    "consistency": {
        "one model does not converge": _in("gossip, ring", "accuracy", LOWER),
        "one seed": lambda found: [
            each.update(accuracy=each["accuracy"][:1]) for each in found.values()
        ],
        "a model diverged": _in("Hogwild", "accuracy", [float("nan")] * 3),
        "nothing learned": _each("accuracy", [0.1] * 3),
        "a model is missing": lambda found: found.pop("ensemble"),
    },
    "messages": {
        "accuracy lost": _in("top 1%", "accuracy", LOWER),
        "as many bytes": _in("TernGrad", "bytes", [100.0] * 3),
        "nothing learned": _each("accuracy", [0.1] * 3),
        "bytes unknown": _in("TernGrad", "bytes", [25.0, float("nan"), 25.0]),
        "a scheme is missing": lambda found: found.pop("top 10%"),
        "one seed": lambda found: [
            each.update(accuracy=each["accuracy"][:1]) for each in found.values()
        ],
    },
    "ensemble": {
        "worse": _in("accuracy", "ensemble", LOWER),
        "nothing learned": lambda found: found.update(
            accuracy={n: [v - 0.8 for v in each] for n, each in found["accuracy"].items()}
        ),
        "as good": _in("accuracy", "ensemble", SEEDS),
        "better with one seed of three": _in("accuracy", "ensemble", [0.89, 0.90, 0.95]),
    },
    "topk-assumption": {
        "large": _each("xi", [9.0, 9.0, 9.0, 9.0]),
        "growing": _in("top 1%", "xi", [1.0, 2.92, 3.0, 4.66]),
        "not a number at the end": _in("top 5%", "xi", [1.0, 1.5, 1.4, float("nan")]),
        "a share is missing": lambda found: found.pop("top 20%"),
    },
    "sparcml": {
        "as many bytes": _in("bytes of each rank", "Top16_Q4", [31.0]),
        "1.36 where the table has 4.53": _in("bytes of each rank", "Top16_Q4", [31.0 / 1.36]),
        "communication as fast as before": _each("communication", [1.01]),
        "training as fast as before": _each("training", [1.0]),
        "far above the table": _each("communication", [60.0]),
    },
    "allreduce": {
        "half": _in("mlp", "2 processes as ranks", SLOW),
        "80%": _in("resnet20", "2 processes as ranks", [1.25] * 9),
        "predicted half": _in("mlp", "predicted", [1.0, 2.0]),
        "one prediction is no number": _in("mlp", "predicted", [1.02] * 4 + [float("nan")]),
        "one prediction": _in("mlp", "predicted", [1.02]),
        "no predictions": _each("predicted", []),
        "one rank only": lambda found: [
            each.pop("2 processes as ranks") for each in found.values()
        ],
    },
    "many-cards": {
        "strong scaling at 10%": _in("ResNet-50, strong", "images/s", [100.0, 640.0]),
        "weak scaling at 60%": _in("AlexNet, weak", "images/s", [100.0, 3840.0]),
    },
    "mlp-layers": {
        "a peer grows more slowly": _each("torch", [2e-3] * 9),
        "a peer is as fast": lambda found: [
            case.update(torch=list(case["caldera"])) for case in found.values()
        ],
        "quadratic": lambda found: [
            case.update(caldera=[1e-3 * int(depth) ** 2] * 9) for depth, case in found.items()
        ],
        "the peer crashed": _each("torch", []),
        "one depth missing": lambda found: found.pop("2"),
        "no peer": lambda found: [case.pop("torch") for case in found.values()],
    },
    "dmath-table": {
        "8.16 times the paper's rate": lambda found: found["AlexNet 256"]["images/s"].append(
            8.16 * found["AlexNet 256"]["images/s"].pop()
        ),
        "no scaling": lambda found: found["AlexNet 1024"].update({"images/s": [479.0] * 7}),
        "behind its peer": lambda found: found["GoogLeNet 1024"].update(
            {"images/s": list(SEED["GoogLeNet 1024"])}
        ),
        "half of the memory": _in("AlexNet 1024", "bytes on 16", [1e9]),
    },
    "ring": {
        "the ring is slower": _in("1 MiB", "ring", [1.5] * 9),
        "the ring is three times as fast": _in("16 MiB", "ring", [0.4] * 9),
        "a master is as fast": _each("master", [1.2] * 9),
        "a large margin on many nodes": _in("64 nodes", "doubling", [2.2]),
        "doubling crashed": _in("1 MiB", "doubling", []),
    },
    "fft-scaling": {
        "slower": _in("2 ranks", "seconds", [5.0] * 9),
        "as fast": _in("2 ranks", "seconds", [4.0] * 9),
        "another result": _in("machine", "difference", [0.1]),
        "no numbers in the second round": _in("machine", "difference", [1e-7, float("nan")]),
        "four ranks crashed": lambda found: (
            found["machine"].update(cores=[4.0]),
            found.pop("4 ranks"),
        ),
        "two ranks crashed": lambda found: found.pop("2 ranks"),
    },
    "calibration": {
        "off by 3": _in("sparcml: 1", "predicted", [3.0]),
        "large error bars": _in("dmath: AlexNet 256, 64 GPUs", "factor", [2.5]),
        "half of the efficiency": _in("resnet: 256 GPUs", "predicted", [0.45]),
        "a row is missing": lambda found: found.pop("sparcml: 0"),
    },
    "inception": {
        "half of the paper's rate": _in("64 K80 GPUs", "images/s", [30.0, 700.0]),
        "twice the paper's rate": _in("64 K80 GPUs", "images/s", [30.0, 3000.0]),
    },
}
assert OTHERS
for _kinds in (HONEST, CONTRADICTING):
    # Claims on a GPU have the criteria and samples of those on a CPU.
    _kinds |= {
        name: _kinds[name.removesuffix(ON_GPU)] for name in claims() if name.endswith(ON_GPU)
    }


def contradicted(name: str, change: str) -> Found:
    """Return the supporting samples with one change that contradicts the claim."""
    found = copy.deepcopy(HONEST[name]())
    CONTRADICTING[name][change](found)
    return found
