"""Loops: `op.scan` is Scan."""

from __future__ import annotations

from typing import Any

from caldera.core.graph.opdef import parameter
from caldera.onnx.writing.dynamic_batch import Pair
from caldera.onnx.writing.rules.registry import inputs, writes


@writes("scan", by_samples=("body", "length"))
def _scan(write: Any, pair: Any) -> tuple[str, ...]:
    attrs = pair.attrs
    carries, sequences = attrs["carries"], attrs["sequences"]
    if not sequences:
        return NotImplemented
    given = inputs(write, pair)
    bodies = attrs["body"], pair.twin.attrs["body"]
    arguments = [
        Pair(*[parameter(i, body.parameters[i]) for body in bodies])
        for i in range(len(bodies[0].parameters))
    ]
    roots = [Pair(*each) for each in zip(*[body.outputs for body in bodies], strict=True)]
    body = write.body(arguments, given[carries + sequences :], carries + sequences, roots)
    directions = {}
    if attrs["reverse"]:
        counts = {
            "scan_input_directions": sequences,
            "scan_output_directions": len(roots) - carries,
        }
        # ONNX takes no empty list.
        directions = {name: [1] * count for name, count in counts.items() if count}
    names = write.add(
        "Scan",
        *given[: carries + sequences],
        outputs=len(roots),
        body=body,
        num_scan_inputs=sequences,
        **directions,
    )
    return names if isinstance(names, tuple) else (names,)
