"""CTC: the forward and backward variables of each sample's states, in float64.

A worker processes whole samples. A row contains the states of a frame, padded on both sides with
impossible states. Vectors of states can therefore read their neighbours without bounds checks:

    -2 | -1 the start | 0 1 2 ... the states, and nothing up to whole vectors | two more

Forbidden transitions are excluded by adding a large negative number, without a branch. See
`caldera.core.graph.ops.ctc` for the definitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.graph.node import Node
from caldera.core.graph.ops.ctc import IMPOSSIBLE
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.native.codegen import (
    F64,
    I64,
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    RegisterValue,
    any_layout,
    native_kernel,
    natural_lanes,
    offer,
    parts_for,
)
from caldera.kernels.native.codegen.math import exp_of_negative, log
from caldera.kernels.table import Call, Runner

_MARGIN = 2
"""Places before and after the states of a row."""


@dataclass(frozen=True)
class _Sample:
    """A sample inside a kernel: its labels, its rows, and its numbers of states and frames."""

    k: Emitter
    lanes: int
    probabilities: Pointer
    labels: Pointer
    count: RegisterValue
    frames: RegisterValue
    classes: RegisterValue
    width: RegisterValue
    """States of a row, in whole vectors."""
    skips: Pointer
    emissions: Pointer
    blank: int

    @property
    def stride(self) -> RegisterValue:
        """Places from one row to the next."""
        return self.width + 2 * _MARGIN

    def clear(self, row: Pointer, value: float = IMPOSSIBLE) -> None:
        """Set a row, with its margins."""
        fill = self.k.constant(value, F64)
        with self.k.loop(-_MARGIN, self.width + _MARGIN) as i:
            row.store(i, fill)

    def prepare(self) -> None:
        """Compute the properties of states that are the same for every frame."""
        k = self.k
        self.clear(self.skips)
        self.clear(self.emissions)
        before = k.variable(-1, I64)
        with k.loop(0, self.count) as i:
            label = self.label(i)
            allowed = label.differs(before.value)
            self.skips.store(i * 2 + 1, k.select(allowed, 0.0, k.constant(IMPOSSIBLE, F64)))
            before.value = label

    def label(self, i: RegisterValue) -> RegisterValue:
        """Return the class of a label."""
        return self.k.convert(self.labels.load(i), I64)

    def load_emissions(self, frame: RegisterValue) -> None:
        """The log-probabilities of a frame, state by state."""
        row = self.probabilities.at(frame * self.classes)
        blank = self._emission(row, self.k.constant(self.blank, I64))
        self.emissions.store(0, blank)
        with self.k.loop(0, self.count) as i:
            self.emissions.store(i * 2 + 1, self._emission(row, self.label(i)))
            self.emissions.store(i * 2 + 2, blank)

    def _emission(self, row: Pointer, place: RegisterValue) -> RegisterValue:
        value = self.k.convert(row.load(place), F64)
        # The second if one is a nan: that is passed on.
        return self.k.maximum(self.k.constant(IMPOSSIBLE, F64), value)

    def advance(self, before: Pointer, after: Pointer) -> None:
        """Compute the forward variables of a frame from the previous frame's."""
        with self.k.loop(0, self.width, self.lanes) as s:
            stay, follow = before.load(s, self.lanes), before.load(s - 1, self.lanes)
            skip = before.load(s - 2, self.lanes) + self.skips.load(s, self.lanes)
            total = _log_sum(self.k, stay, follow, skip)
            after.store(s, total + self.emissions.load(s, self.lanes))

    def retreat(self, after: Pointer, before: Pointer) -> None:
        """Compute the backward variables of a frame from the next frame's.

        The next frame's variables include its emissions.
        """
        with self.k.loop(0, self.width, self.lanes) as s:
            stay, follow = after.load(s, self.lanes), after.load(s + 1, self.lanes)
            skip = after.load(s + 2, self.lanes) + self.skips.load(s + 2, self.lanes)
            before.store(s, _log_sum(self.k, stay, follow, skip))

    def likelihood(self, last: Pointer) -> RegisterValue:
        """Return the log-likelihood, from the forward variables of the last frame."""
        k = self.k
        state = self.count * 2
        return _log_sum(k, last.load(state), last.load(state - 1), k.constant(IMPOSSIBLE, F64))


def _log_sum(k: Emitter, a: RegisterValue, b: RegisterValue, c: RegisterValue) -> RegisterValue:
    """log(e^a + e^b + e^c), of which the largest takes no exponential."""
    high, low = k.maximum(a, b), k.minimum(a, b)
    top = k.maximum(high, c)
    second = k.maximum(low, k.minimum(high, c))
    third = k.minimum(low, c)
    total = exp_of_negative(k, second - top) + exp_of_negative(k, third - top) + 1.0
    return top + log(k, total)


def _is_known(
    k: Emitter, sample: _Sample, most_frames: RegisterValue, most_labels: RegisterValue
) -> RegisterValue:
    """Return true if the lengths and labels of a sample are valid."""
    count, frames = sample.count, sample.frames
    fits = (count >= 0) & (count <= most_labels) & (frames >= 0) & (frames <= most_frames)
    wrong = k.variable(0, I64)
    with k.if_then(fits), k.loop(0, count) as i:
        label = sample.label(i)
        bad = (label < 0) | (label >= sample.classes) | label.equals(sample.blank)
        wrong.value = wrong.value | k.convert(bad, I64)
    return fits & wrong.value.equals(0)


@dataclass(frozen=True)
class _Given:
    """Arguments of both kernels."""

    probabilities: Pointer
    labels: Pointer
    input_lengths: Pointer
    label_lengths: Pointer
    scratch: Pointer
    scratch_step: Integer
    samples: Integer
    frames: Integer
    classes: Integer
    most_labels: Integer
    width: Integer

    def sample(self, k: Emitter, index: RegisterValue, blank: int) -> tuple[_Sample, Pointer]:
        """Return a sample, and the scratch rows of its frames."""
        stride = self.width + 2 * _MARGIN
        room = self.scratch.at(k.part * self.scratch_step + _MARGIN)
        sample = _Sample(
            k,
            natural_lanes(F64),
            self.probabilities.at(index * self.frames * self.classes),
            self.labels.at(index * self.most_labels),
            k.convert(self.label_lengths.load(index), I64),
            k.convert(self.input_lengths.load(index), I64),
            self.classes,
            self.width,
            room,
            room.at(stride),
            blank,
        )
        return sample, room.at(stride * 2)


@native_kernel
def _likelihood(k: Emitter, given: _Given, out: Pointer, blank: int) -> None:
    """Compute likelihoods with two alternating rows of scratch memory."""
    with k.loop(*k.part_range(given.samples)) as index:
        sample, rows = given.sample(k, index, blank)
        known = _is_known(k, sample, given.frames, given.most_labels)
        with k.if_else(known) as (yes, no):
            with yes:
                sample.prepare()
                _begin(sample, rows)
                with k.loop(0, sample.frames) as frame:
                    sample.load_emissions(frame)
                    turn = (frame % 2) * sample.stride
                    sample.advance(rows.at(turn), rows.at(sample.stride - turn))
                    _close(sample, rows, frame)
                total = sample.likelihood(rows.at((sample.frames % 2) * sample.stride))
                found = k.select(total < IMPOSSIBLE / 2, -math.inf, total)
                out.store(index, k.convert(found, out.type))
            with no:
                out.store(index, math.nan)


def _begin(sample: _Sample, rows: Pointer) -> None:
    """Initialise the forward variables: before the first frame only the start is possible."""
    sample.clear(rows)
    sample.clear(rows.at(sample.stride))
    rows.store(-1, sample.k.constant(0.0, F64))


def _close(sample: _Sample, rows: Pointer, frame: RegisterValue) -> None:
    """Make the start impossible after the first frame."""
    with sample.k.if_then(frame.equals(0)):
        rows.store(-1, sample.k.constant(IMPOSSIBLE, F64))


@native_kernel
def _posteriors(k: Emitter, given: _Given, out: Pointer, blank: int) -> None:
    """All rows of forward variables are kept; backward ones have two rows that take turns."""
    with k.loop(*k.part_range(given.samples)) as index:
        sample, rows = given.sample(k, index, blank)
        size = given.frames * given.classes
        target = out.at(index * size)
        k.clear_bytes(target, size * (8 if out.type == F64 else 4))
        known = _is_known(k, sample, given.frames, given.most_labels)
        with k.if_then(known & (sample.frames > 0)):
            sample.prepare()
            _begin(sample, rows)
            backward, forward = rows, rows.at(sample.stride)
            # The first row is the start; it is free again when the second has been written.
            with k.loop(0, sample.frames) as frame:
                sample.load_emissions(frame)
                row = forward.at(frame * sample.stride)
                sample.clear(row)
                sample.advance(row.at(-1 * sample.stride), row)
                _close(sample, rows, frame)
            last = forward.at((sample.frames - 1) * sample.stride)
            total = sample.likelihood(last)
            with k.if_then(total > IMPOSSIBLE / 2):
                _walk_back(sample, forward, backward, total, target)


def _walk_back(
    sample: _Sample, forward: Pointer, backward: Pointer, total: RegisterValue, target: Pointer
) -> None:
    """Add up posteriors by class, from the last frame to the first."""
    k = sample.k
    spare = forward.at(sample.frames * sample.stride)
    sample.clear(backward)
    sample.clear(spare)
    state = sample.count * 2
    with k.loop(0, sample.frames) as step:
        frame = sample.frames - 1 - step
        with k.if_else(step.equals(0)) as (first, later):
            with first:
                spare.store(state, k.constant(0.0, F64))
                with k.if_then(state > 0):
                    spare.store(state - 1, k.constant(0.0, F64))
            with later:
                sample.retreat(backward, spare)
        alpha = forward.at(frame * sample.stride)
        sample.load_emissions(frame)
        with k.loop(0, sample.width, sample.lanes) as s:
            beta = spare.load(s, sample.lanes)
            below = k.minimum(alpha.load(s, sample.lanes) + beta - total, 0.0)
            alpha.store(s, exp_of_negative(k, below))
            backward.store(s, beta + sample.emissions.load(s, sample.lanes))
        _by_class(sample, alpha, target.at(frame * sample.classes))


def _by_class(sample: _Sample, posterior: Pointer, target: Pointer) -> None:
    k = sample.k
    blanks = k.variable(posterior.load(0))
    with k.loop(0, sample.count) as i:
        label = sample.label(i)
        own = k.convert(target.load(label), F64) + posterior.load(i * 2 + 1)
        target.store(label, k.convert(own, target.type))
        blanks.value = blanks.value + posterior.load(i * 2 + 2)
    target.store(sample.blank, k.convert(blanks.value, target.type))


# --- tying them to arrays


def _rows(node: Node) -> tuple[int, int, int]:
    """Return the number of workers, the width of a row, and the scratch elements per worker."""
    (samples, frames, _), (_, most) = node.inputs[0].shape, node.inputs[1].shape
    lanes = natural_lanes(F64)
    width = -(-(2 * most + 1) // lanes) * lanes
    rows = 4 if node.op.name == "ctc_log_likelihood" else frames + 4
    return max(1, min(samples, thread_count())), width, rows * (width + 2 * _MARGIN)


def _workspace(node: Node) -> int:
    workers, _, step = _rows(node)
    return workers * step * 8


def _bind(call: Call) -> Runner | None:
    if not all(array.flags.c_contiguous for array in (*call.inputs, *call.outputs)):
        return None
    probabilities, labels, input_lengths, label_lengths = call.inputs
    samples, frames, classes = probabilities.shape
    workers, width, step = _rows(call.node)
    scratch = np.asarray(call.workspace)[: workers * step * 8].view(np.float64)
    kernel = _likelihood if call.node.op.name == "ctc_log_likelihood" else _posteriors
    states = samples * frames * width
    return NativeRunner(
        [
            kernel.call(
                given={
                    "probabilities": probabilities,
                    "labels": labels,
                    "input_lengths": input_lengths,
                    "label_lengths": label_lengths,
                    "scratch": scratch,
                    "scratch_step": step,
                    "samples": samples,
                    "frames": frames,
                    "classes": classes,
                    "most_labels": labels.shape[1],
                    "width": width,
                },
                out=call.outputs[0],
                blank=call.node.attrs["blank"],
                parts=min(workers, parts_for(states, costly=True)),
            )
        ]
    )


offer(
    ("ctc_log_likelihood", "ctc_posteriors"),
    "native",
    any_layout(_bind),
    lambda node: (
        node.inputs[0].dtype in (float32, float64)
        and all(given.dtype.kind == "i" for given in node.inputs[1:])
    ),
    _workspace,
    priority=10,
)
