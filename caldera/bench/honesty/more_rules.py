"""Rules 7 to 12 of the twelve, and three on peers, seeds and names of networks."""

from __future__ import annotations

import math
import statistics

from caldera.bench.honesty.claims import OPERATOR, STRONG, WALL_TIME, ClaimedRun, Claims
from caldera.bench.honesty.literature import published_weights, usual_shapes, weights_apart
from caldera.bench.honesty.rules import (
    RuleVerdict,
    fine,
    is_lower,
    mean,
    names,
    not_shown,
    not_shown_of,
    violated,
    violated_by,
)

LARGER = 1.1
"""Allowed size of a sample, relative to the usual number of values."""
SAME_TIME = 0.02
"""Times that differ by less, while the work grows with the ranks, were given, not needed."""
PRECISE = ("flop", "sample", "image", "token", "byte", "step", "batch", "word")
"""Units that a rate may count: the amount needed for a solution is known."""


def time_beside_rates(claims: Claims) -> RuleVerdict:
    """7: a rate must come with the unit that it counts and with the time to the end."""
    alone = [run for run in claims.runs if run.rate is not None and not run.seconds]
    vague = [
        run
        for run in claims.runs
        if run.rate is not None and not any(word in run.rate_unit.lower() for word in PRECISE)
    ]
    silent = [run for run in claims.runs if not run.seconds]
    short = [run for run in claims.runs if run.trains and run.seconds_of != "training"]
    return (
        violated_by(
            alone,
            f"{alone[0].rate:g} {alone[0].rate_unit or 'a second'} without a time" if alone else "",
            "Give the time next to the rate.",
        )
        or violated_by(
            vague,
            f"the unit counted by {vague[0].rate_unit or 'the rate'!r} is unknown" if vague else "",
            "State the unit that is counted, its precision, and the number that a solution needs.",
        )
        or not_shown_of(silent, "no time", "Give every time that was taken.")
        or not_shown_of(
            short,
            f"the time of {_part(short[0])}, not of the training" if short else "",
            "Give the time of the whole training.",
        )
        or fine("times are given, in seconds")
    )


def _part(run: ClaimedRun) -> str:
    return f"a part ({run.seconds_of})" if run.seconds_of else "an undeclared addend"


def same_options(claims: Claims) -> RuleVerdict:
    """8: the options must be the same in the speed and accuracy measurements."""
    wrong = [
        run
        for run in claims.runs
        if run.accuracy_options is not None and run.accuracy_options != (run.options or {})
    ]
    if wrong:
        fast, accurate = wrong[0].options or {}, wrong[0].accuracy_options or {}
        apart = [key for key in {**fast, **accurate} if fast.get(key) != accurate.get(key)]
        return violated(
            f"{wrong[0].name}: time and accuracy come from different {', '.join(apart)}",
            "Give time and accuracy of the same run.",
        )
    silent = [run for run in claims.runs if run.options is None]
    return not_shown_of(
        silent, "no options", "List the options that time and accuracy belong to."
    ) or fine("time and accuracy belong to the same options")


def usual_inputs(claims: Claims) -> RuleVerdict:
    """9: larger samples make more operations, and smaller ones an easier workload."""
    sized = [run for run in claims.runs if run.level != OPERATOR]
    for run in sized:
        published = usual_shapes(run.workload)
        # Axes may be in any order: channels are the first or the last.
        usual = sorted(run.usual_shape)
        if published and usual and usual not in map(sorted, published):
            return violated(
                f"{run.workload}: {_shape(run.usual_shape)} is called usual, published is "
                f"{' or '.join(map(_shape, published))}",
                "Give the published shape of a sample.",
            )
        factor = math.prod(run.input_shape) / math.prod(run.usual_shape)
        if run.input_shape and run.usual_shape and not 1.0 / LARGER <= factor <= LARGER:
            return violated(
                f"{run.name}: samples of {_shape(run.input_shape)}, usually "
                f"{_shape(run.usual_shape)}",
                "Give the time with samples of the usual size.",
            )
    silent = [run for run in sized if not run.input_shape or not run.usual_shape]
    return not_shown_of(
        silent,
        "the shape of a sample, or the usual shape, is not stated",
        "Give the shape of a sample next to the usual shape for this workload.",
    ) or fine("samples have their usual size")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def ends_by_work(claims: Claims) -> RuleVerdict:
    """10: who trains for a given time always gets twice the operations of twice the ranks."""
    timed = [run for run in claims.runs if run.stopped_by == WALL_TIME]
    if timed:
        return violated(
            f"{names(timed)}: ended by the clock",
            "Train to the same accuracy, or the same number of samples, at every number of ranks.",
        )
    for runs in claims.scaled():
        few, many = runs[0], runs[-1]
        said = many.scaling or claims.scaling
        if said != STRONG and few.stopped_by == many.stopped_by == "accuracy":
            # A batch that grows takes more samples to the same accuracy.
            continue
        if few.seconds and many.seconds and few.samples and many.samples > few.samples:
            before, after = statistics.median(few.seconds), statistics.median(many.seconds)
            if abs(after / before - 1.0) < SAME_TIME and few.seconds_of == "training":
                return violated(
                    f"{many.name} and {few.name}: the same time, {many.samples / few.samples:.3g} "
                    "times the samples",
                    "Give the time for the same number of samples at every number of ranks.",
                )
    silent = [run for run in claims.runs if run.trains and not run.stopped_by]
    return not_shown_of(
        silent, "the stopping criterion is not stated", "Say what ended each run."
    ) or fine("runs end when their work is done")


def honest_scaling(claims: Claims) -> RuleVerdict:
    """11: the data and the model stay as they are, so scaling is strong; a batch that grows with
    the ranks is another training."""
    if not claims.scaled():
        return fine("all runs of a system have the same number of ranks")
    runs = [run for scaled in claims.scaled() for run in scaled]
    silent = [run for run in runs if not run.batch]
    if silent or not all(run.scaling or claims.scaling for run in runs):
        return not_shown(
            f"{names(silent)}: no mini-batch"
            if silent
            else "the report does not state strong or weak scaling",
            "Say whether the mini-batch of all ranks together stays (strong) or grows (weak).",
        )
    for scaled in claims.scaled():
        grows = len({run.batch for run in scaled}) > 1
        said = scaled[0].scaling or claims.scaling
        if said == STRONG and grows:
            return violated(
                f"called strong, but the mini-batch grows from {scaled[0].batch} to "
                f"{scaled[-1].batch}",
                "Call it weak scaling, or keep the mini-batch of all ranks together.",
            )
        if said != STRONG and not grows:
            return violated(
                f"called weak, but the mini-batch stays at {scaled[0].batch}",
                "Call it strong scaling.",
            )
        if grows and any(not run.test_accuracy or run.seconds_of != "training" for run in scaled):
            return violated(
                f"the mini-batch grows to {scaled[-1].batch}, and the cost of this is not shown",
                "Give the time of the whole training and its test accuracy for every mini-batch.",
            )
    kinds = sorted({run.scaling or claims.scaling for run in runs})
    return fine(f"{' and '.join(kinds)} scaling, by the mini-batch of all ranks together")


def both_compared(claims: Claims) -> RuleVerdict:
    """12: a faster system that is less accurate has not won, nor has a slower one."""
    for runs in claims.workloads():
        if len({run.system for run in runs}) < 2:
            continue
        verdict = _comparison(runs)
        if not verdict.passes:
            return verdict
    if len(claims.systems()) < 2:
        return fine("no comparison with another system")
    return fine("systems are compared by time and by their results")


def _comparison(runs: list[ClaimedRun]) -> RuleVerdict:
    where = runs[0].workload
    by_accuracy = any(run.test_accuracy for run in runs)
    right = [bool(run.test_accuracy or (run.equal_results and not by_accuracy)) for run in runs]
    timed = [bool(run.seconds) for run in runs]
    if any(right) != all(right) or any(timed) != all(timed):
        return violated(
            f"{where}: some have a time and some an accuracy", "Give both for every system."
        )
    if not all(right) or not all(timed):
        missing = "time" if all(right) else "accuracy"
        return not_shown(f"{where}: no {missing} of any system", "Give both for every system.")
    for run in runs:
        for other in runs:
            if not run.test_accuracy or not other.test_accuracy or run.system == other.system:
                continue
            is_faster = statistics.median(run.seconds) < statistics.median(other.seconds)
            if is_faster and is_lower(run.test_accuracy, other.test_accuracy):
                return violated(
                    f"{run.name} is faster and reaches {mean(run.test_accuracy):.3f}, "
                    f"{other.name} {mean(other.test_accuracy):.3f}",
                    "Give the time in which every system reaches the same accuracy.",
                )
    return fine(f"{where}: time and accuracy of every system")


def all_peers(claims: Claims) -> RuleVerdict:
    """13: a comparison without the peers that crashed or were left out is a selection."""
    for runs in claims.workloads():
        failed = [run for run in runs if run.error]
        if failed and len(failed) < len(runs):
            return violated(
                f"{failed[0].name}: {failed[0].error}"
                + (f", and {len(failed) - 1} more" if len(failed) > 1 else ""),
                "Run every peer in all its usual settings, or leave out the whole workload.",
            )
    for level in dict.fromkeys(run.level for run in claims.runs):
        alike = [run for run in claims.runs if run.level == level]
        systems = dict.fromkeys(run.system for run in alike)
        for workload in dict.fromkeys(run.workload for run in alike):
            present = {run.system for run in alike if run.workload == workload}
            if absent := [each for each in systems if each not in present]:
                return not_shown(
                    f"{workload}: no run of {', '.join(absent)}",
                    "Run every system on every workload, or state the reason.",
                )
    return fine("every peer ran in every comparison")


def several_seeds(claims: Claims) -> RuleVerdict:
    """14: the accuracy of a single seed is luck."""
    single = [
        run
        for run in claims.runs
        if run.test_accuracy and min(len(run.test_accuracy), len(set(run.seeds)) or 2) < 2
    ]
    compared = [run for runs in claims.workloads() if len(runs) > 1 for run in runs]
    why, sentence = "an accuracy from a single seed", "Give the accuracy of several seeds."
    return (
        violated_by([run for run in single if run in compared], why, sentence)
        or not_shown_of(single, why, sentence)
        or fine("accuracies come from several seeds, or are absent")
    )


def named_network(claims: Claims) -> RuleVerdict:
    """15: a network with other weights is another workload, even under the same name."""
    silent = []
    for run in claims.runs:
        name, expected = published_weights(run.workload)
        if not name or run.level == OPERATOR:
            continue
        if run.weights is None:
            silent.append(run)
        elif apart := weights_apart(run.weights, expected):
            return violated(
                f"{run.name}: {apart} differ from {name}",
                "Give the workload its own name, or run the network of that name.",
            )
    return not_shown_of(
        silent,
        "the shapes of the network's weights are not given",
        "Give the number of weights by shape, as `caldera bench` does.",
    ) or fine("networks have the weights of their published namesakes")
