"""Connectionist temporal classification: labels in order, without alignment to frames.

A network returns log-probabilities of classes for each frame; one class is the blank. The
likelihood of labels is the sum over all alignments to the frames: any number of blanks between
labels, any label repeated from frame to frame, a blank between two equal ones (Graves and others,
2006). With a blank before, between and after L labels there are 2 L + 1 states. An alignment
proceeds from a state to itself, the next, or past a blank to the label after it.

Conventions, all of them tested: labels that do not fit into the frames have a likelihood of log(0)
= -inf. An invalid class, a blank as label, or an invalid length is NaN. In both cases the
posteriors are 0, so that the gradient is: a sample of weight 0 has no effect. Everything is
computed in float64: logarithms grow with the number of frames, and a posterior is an exponential of
their differences.
"""

from __future__ import annotations

import math

from caldera.core.graph import (
    Body,
    Node,
    Nodes,
    Spec,
    composite,
    items,
    parameter,
    refuse_dtype,
    refuse_shape,
)
from caldera.core.graph.ops import (
    add,
    broadcast_to,
    cast,
    concat,
    constant,
    equal,
    exp,
    expand_reduced,
    full,
    greater,
    greater_equal,
    iota,
    less,
    log,
    logical_and,
    logical_not,
    logical_or,
    logsumexp,
    maximum,
    mul,
    narrow,
    not_equal,
    pad,
    reshape,
    sub,
    sum_,
    transpose,
    where,
)
from caldera.core.graph.ops.control import scan
from caldera.core.graph.ops.indexing import put_along_axis_add, take_along_axis
from caldera.core.tensor.dtype import float64, int64, is_float, is_integer

IMPOSSIBLE = -1e30
"""The logarithm of no probability: a finite number, so that differences and derivatives exist."""


def _check(probabilities: Node, labels: Node, *lengths: Node, blank: int) -> None:
    if not is_float(probabilities.dtype):
        refuse_dtype("log-probabilities of a floating-point dtype")
    if not all(is_integer(each.dtype) for each in (labels, *lengths)):
        refuse_dtype("labels and lengths that are integers", hint="cast them with op.cast")
    if len(probabilities.shape) != 3:
        refuse_shape("log-probabilities (samples, frames, classes)")
    samples, _, classes = probabilities.shape
    if len(labels.shape) != 2 or labels.shape[0] != samples:
        refuse_shape(f"labels (samples, labels), a row for each of {samples} samples")
    if any(each.shape != (samples,) for each in lengths):
        refuse_shape(f"lengths of shape {(samples,)}: one a sample")
    if not 0 <= blank < classes:
        refuse_shape(f"a blank among the {classes} classes", got=f"blank={blank}")


def _at_every(node: Node, shape: tuple[int, ...], axis: int = 0) -> Node:
    """Return numbers for each sample, broadcast to `shape` with samples along `axis`."""
    column = [1] * len(shape)
    column[axis] = shape[axis]
    return broadcast_to(reshape(node, tuple(column)), shape)


def _whole(value: int) -> Node:
    return constant(value, int64)


class _States:
    """States of each sample's labels, (samples, 2 labels + 1), with their properties."""

    def __init__(
        self, shape: tuple[int, ...], labels: Node, frames: Node, blank: int, label_lengths: Node
    ) -> None:
        samples, most_frames, classes = shape
        labels, self.frames = cast(labels, int64), cast(frames, int64)
        counts = cast(label_lengths, int64)
        places = iota(shape=labels.shape, axis=1, dtype=int64)
        is_used = less(places, _at_every(counts, labels.shape))
        is_class = logical_and(greater_equal(labels, _whole(0)), less(labels, _whole(classes)))
        is_wrong = logical_and(
            is_used, logical_or(logical_not(is_class), equal(labels, _whole(blank)))
        )
        wrong = greater(sum_(cast(is_wrong, int64), (1,)), _whole(0))
        for given, most in ((self.frames, most_frames), (counts, labels.shape[1])):
            outside = logical_or(less(given, _whole(0)), greater(given, _whole(most)))
            wrong = logical_or(wrong, outside)
        self.wrong = wrong
        filled = where(logical_and(is_used, is_class), labels, _whole(blank))
        self.count = 2 * labels.shape[1] + 1
        self.shape = (samples, self.count)
        blanks = full((*filled.shape, 1), blank, int64)
        pairs = reshape(
            concat((blanks, reshape(filled, (*filled.shape, 1))), 2), (samples, self.count - 1)
        )
        self.classes = pad(pairs, ((0, 0), (0, 1)), blank)
        """The class of each state."""
        before = narrow(pad(self.classes, ((0, 0), (2, 0)), -1), 1, 0, self.count)
        self.skips = logical_and(
            not_equal(self.classes, _whole(blank)), not_equal(self.classes, before)
        )
        """Which states can follow the one before the last."""
        states = iota(shape=self.shape, axis=1, dtype=int64)
        last = _at_every(mul(counts, _whole(2)), self.shape)
        self.is_last = logical_or(equal(states, last), equal(states, sub(last, _whole(1))))
        self.is_empty = logical_and(equal(counts, _whole(0)), equal(self.frames, _whole(0)))


def _emissions(probabilities: Node, states: _States) -> Node:
    """Return the log-probability of each state's class at each frame: (frames, samples, states)."""
    frames = probabilities.shape[1]
    taken = cast(take_along_axis(probabilities, _in_every_frame(states, frames), axis=2), float64)
    return transpose(maximum(taken, constant(IMPOSSIBLE, float64)), (1, 0, 2))


def _in_every_frame(states: _States, frames: int) -> Node:
    samples, count = states.shape
    return broadcast_to(reshape(states.classes, (samples, 1, count)), (samples, frames, count))


def _log_sum(parts: Nodes) -> Node:
    largest = parts[0]
    for part in parts[1:]:
        largest = maximum(largest, part)
    total = exp(sub(parts[0], largest))
    for part in parts[1:]:
        total = add(total, exp(sub(part, largest)))
    return add(largest, log(total))


def _choice(condition: Node, yes: Node) -> Node:
    return where(condition, yes, constant(IMPOSSIBLE, float64))


def _loop(step, carry: Node, sequences: Nodes, outer: Nodes, *, reverse: bool) -> Nodes:  # type: ignore[no-untyped-def]
    """`step(carry, *sequences at t, *outer) -> (carry, y)` over all frames."""
    specs = [carry.spec, *[Spec(each.shape[1:], each.dtype) for each in sequences]]
    specs += [each.spec for each in outer]
    arguments = [parameter(i, spec) for i, spec in enumerate(specs)]
    node = scan.node(
        carry,
        *sequences,
        *outer,
        body=Body(arguments, step(*arguments)),
        carries=1,
        sequences=len(sequences),
        length=sequences[0].shape[0],
        reverse=reverse,
    )
    return items(node)


def _times(frames: int) -> Node:
    return iota(shape=(frames,), axis=0, dtype=int64)


def _forward(emissions: Node, states: _States) -> Nodes:
    """Return the last row of forward variables, and all rows: (frames, samples, states).

    Two more states precede: one without transitions, and the start, which leads to the first blank
    and the first label.
    """
    samples, count = states.shape
    first = concat(
        (
            full((samples, 1), IMPOSSIBLE, float64),
            full((samples, 1), 0, float64),
            full((samples, count), IMPOSSIBLE, float64),
        ),
        1,
    )

    def step(alpha: Node, time: Node, emission: Node, skips: Node, frames: Node) -> list[Node]:
        stay, follow = narrow(alpha, 1, 2, count), narrow(alpha, 1, 1, count)
        skip = _choice(skips, narrow(alpha, 1, 0, count))
        new = add(_log_sum((stay, follow, skip)), emission)
        row = pad(new, ((0, 0), (2, 0)), IMPOSSIBLE)
        is_inside = _at_every(less(broadcast_to(time, (samples,)), frames), row.shape)
        return [where(is_inside, row, alpha), new]

    times = _times(emissions.shape[0])
    return _loop(step, first, (times, emissions), (states.skips, states.frames), reverse=False)


def _backward(emissions: Node, states: _States) -> Node:
    """Return the backward variables of the frames that follow: (frames, samples, states)."""
    samples, count = states.shape

    def step(
        after: Node, time: Node, emission: Node, skips: Node, frames: Node, is_last: Node
    ) -> list[Node]:
        wide = pad(after, ((0, 0), (0, 2)), IMPOSSIBLE)
        may_skip = narrow(pad(cast(skips, int64), ((0, 0), (0, 2)), 0), 1, 2, count)
        skip = _choice(greater(may_skip, _whole(0)), narrow(wide, 1, 2, count))
        inner = _log_sum((after, narrow(wide, 1, 1, count), skip))
        ends = _at_every(equal(broadcast_to(add(time, _whole(1)), (samples,)), frames), inner.shape)
        beta = where(ends, _choice(is_last, constant(0, float64)), inner)
        is_inside = _at_every(less(broadcast_to(time, (samples,)), frames), inner.shape)
        beta = _choice(is_inside, beta)
        return [maximum(add(beta, emission), constant(IMPOSSIBLE, float64)), beta]

    none = full(states.shape, IMPOSSIBLE, float64)
    outer = (states.skips, states.frames, states.is_last)
    times = _times(emissions.shape[0])
    return _loop(step, none, (times, emissions), outer, reverse=True)[1]


def _ends(alpha: Node, states: _States) -> Node:
    """Return the log-likelihood, from the forward variables of the last frame."""
    last = _choice(states.is_last, narrow(alpha, 1, 2, states.count))
    total = logsumexp(last, axis=(1,), keepdims=False)
    return where(states.is_empty, constant(0, float64), total)


@composite("ctc_log_likelihood")
def ctc_log_likelihood(
    probabilities: Node, labels: Node, input_lengths: Node, label_lengths: Node, *, blank: int
) -> Node:
    """Return the logarithm of the likelihood of each sample's labels, (samples,), from
    log-probabilities (samples, frames, classes)."""
    _check(probabilities, labels, input_lengths, label_lengths, blank=blank)
    states = _States(probabilities.shape, labels, input_lengths, blank, label_lengths)
    total = _ends(_forward(_emissions(probabilities, states), states)[0], states)
    found = where(less(total, constant(IMPOSSIBLE / 2, float64)), _float(-math.inf), total)
    return cast(where(states.wrong, _float(math.nan), found), probabilities.dtype)


def _float(value: float) -> Node:
    return constant(value, float64)


@ctc_log_likelihood.gradient
def _(
    g: Node,
    y: Node,
    probabilities: Node,
    labels: Node,
    input_lengths: Node,
    label_lengths: Node,
    *,
    blank: int,
) -> tuple[Node | None, ...]:
    given = (probabilities, labels, input_lengths, label_lengths)
    spread = expand_reduced(g, probabilities.shape, (1, 2))
    return mul(spread, ctc_posteriors(*given, blank=blank)), None, None, None


@composite("ctc_posteriors")
def ctc_posteriors(
    probabilities: Node, labels: Node, input_lengths: Node, label_lengths: Node, *, blank: int
) -> Node:
    """Return probability of each class at each frame, given the labels.

    The derivative of `ctc_log_likelihood` is computed from it.
    """
    _check(probabilities, labels, input_lengths, label_lengths, blank=blank)
    samples, frames, classes = probabilities.shape
    states = _States(probabilities.shape, labels, input_lengths, blank, label_lengths)
    emissions = _emissions(probabilities, states)
    last, alpha = _forward(emissions, states)
    beta, total = _backward(emissions, states), _ends(last, states)
    known = logical_and(greater(total, _float(IMPOSSIBLE / 2)), logical_not(states.wrong))
    shape = (frames, *states.shape)
    below = sub(add(alpha, beta), _at_every(where(known, total, _float(0)), shape, axis=1))
    part = where(_at_every(known, shape, axis=1), exp(below), _float(0))
    inside = less(
        broadcast_to(reshape(_times(frames), (frames, 1, 1)), shape),
        _at_every(states.frames, shape, axis=1),
    )
    part = transpose(where(inside, part, _float(0)), (1, 0, 2))
    zeros = full((samples, frames, classes), 0, float64)
    spread = put_along_axis_add(zeros, _in_every_frame(states, frames), part, axis=2)
    return cast(spread, probabilities.dtype)
