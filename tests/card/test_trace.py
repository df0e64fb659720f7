"""What `trace` sees of a plan on a card: kernels and copies on their streams."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import op
from caldera.core.memory import Device


def test_kernels_and_copies_have_tracks_of_their_own(card: Device, tmp_path: Path) -> None:
    x = op.input("x", (64, 32))
    w = op.var("w", (32,), fill=cd.one(), device=card)
    plan = cd.compile([op.sum(op.exp(x) * w), op.assign(w, w * 0.5)], device=card)
    path = plan.trace(tmp_path / "step.json", {"x": np.ones((64, 32), "float32")}, runs=2)
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in events
        if each["name"] == "thread_name"
    }
    kernels = [each for each in events if each.get("cat") == "kernel"]
    assert len(kernels) == 2 * sum(step.kernel.op != "copy" for step in plan.schedule.steps)
    assert {tracks[each["pid"], each["tid"]] for each in kernels} == {"calls"}
    copies = [each for each in events if each["name"] == "h2d"]
    assert {tracks[each["pid"], each["tid"]] for each in copies} == {"copies"}
    assert len(copies) == 2
    assert w.numpy().tolist() == [1.0] * 32
