"""Settings for tests: models of given layers, links of round numbers."""

from __future__ import annotations

import math

from caldera.parallel.planner import Cluster, Compute, LayerCost, Setting, Wire, Workload

MEGABYTE = 1e6


def layer(
    name: str, weight: float, nbytes: float = MEGABYTE, *, kind: str = "Dense", units: int = 64
) -> LayerCost:
    """A layer whose outputs are as large as its inputs: 1 kB a sample."""
    return LayerCost(name, kind, name, weight, weight, nbytes, nbytes, 1e3, 1e3, units=units)


def workload(layers: int = 8, nbytes: float = 8 * MEGABYTE) -> Workload:
    """Layers that are all alike; each has 8 MB of parameters, which is two messages' worth."""
    parts = tuple(layer(f"{i}", 1 / layers, nbytes) for i in range(layers))
    whole = layers * nbytes
    return Workload(
        "made",
        parts,
        1e9,
        2 * whole,
        activations=1e5,
        workspace=whole,
        shapes=((round(nbytes) // 4,),) * layers,
    )


def setting(
    ranks: int,
    *,
    latency: float = 1e-5,
    bandwidth: float = 1e9,
    batch: int = 256,
    sample_s: float = 1e-3,
    memory: float | None = None,
    work: Workload | None = None,
) -> Setting:
    """A step takes so many seconds a sample."""
    cluster = Cluster(ranks, Wire(latency, bandwidth), memory=memory)
    return Setting(work or workload(), Compute(((1.0, sample_s),)), cluster, batch)


def free(ranks: int, **more: float) -> Setting:
    """Links on which nothing takes any time."""
    return setting(ranks, latency=0.0, bandwidth=math.inf, **more)  # type: ignore[arg-type]
