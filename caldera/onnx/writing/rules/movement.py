"""Ops that move elements."""

from __future__ import annotations

from typing import Any

from caldera.onnx.writing.dynamic_batch import Samples, sizes
from caldera.onnx.writing.rules.registry import inputs, writes

_END = 2**63 - 1
"""Where a slice ends that goes to the end of its axis, however long that is."""


@writes("reshape", by_samples=("shape",))
def _reshape(write: Any, pair: Any) -> str:
    wanted = pair.sizes("shape")
    open_sizes = [i for i, each in enumerate(wanted) if isinstance(each, Samples)]
    if len(open_sizes) == 1:
        # ONNX finds one size by itself.
        wanted = tuple(-1 if i == open_sizes[0] else each for i, each in enumerate(wanted))
    return write.add("Reshape", *inputs(write, pair), write.shape(wanted), allowzero=0)


@writes("broadcast_to", by_samples=("shape",))
def _broadcast_to(write: Any, pair: Any) -> str:
    return write.add("Expand", *inputs(write, pair), write.shape(pair.sizes("shape")))


@writes("transpose")
def _transpose(write: Any, pair: Any) -> str:
    return write.add("Transpose", *inputs(write, pair), perm=list(pair.attrs["axes"]))


@writes("slice", by_samples=("bounds",))
def _slice(write: Any, pair: Any) -> str:
    given = pair.inputs[0]
    starts, ends, axes, steps = [], [], [], []
    bounds = zip(pair.node.attrs["bounds"], pair.twin.attrs["bounds"], strict=True)
    for axis, (first, second) in enumerate(bounds):
        start, stop, step = sizes(first, second, pair.node)
        goes_to_end = first[1] == given.node.shape[axis] and second[1] == given.twin.shape[axis]
        if goes_to_end and start == 0 and step == 1:
            continue
        starts.append(start)
        ends.append(_END if goes_to_end else stop)
        axes.append(axis)
        steps.append(step)
    vectors = [write.shape(each) for each in (starts, ends, axes, steps)]
    return write.add("Slice", *inputs(write, pair), *vectors)


@writes("flip")
def _flip(write: Any, pair: Any) -> str:
    axes = list(pair.attrs["axis"])
    vectors = ([-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes))
    return write.add("Slice", *inputs(write, pair), *[write.integers(each) for each in vectors])


@writes("pad")
def _pad(write: Any, pair: Any) -> str:
    widths = pair.attrs["widths"]
    flat = [before for before, _ in widths] + [after for _, after in widths]
    value = write.scalar(pair.attrs["value"], pair.spec.dtype)
    return write.add("Pad", *inputs(write, pair), write.integers(flat), value)


@writes("concat")
def _concat(write: Any, pair: Any) -> str:
    return write.add("Concat", *inputs(write, pair), axis=pair.attrs["axis"])


@writes("split", by_samples=("sizes",))
def _split(write: Any, pair: Any) -> tuple[str, ...]:
    parts = pair.sizes("sizes")
    names = write.add(
        "Split",
        *inputs(write, pair),
        write.shape(parts),
        outputs=len(parts),
        axis=pair.attrs["axis"],
    )
    return tuple(names)
