"""The planner: what a training step would cost in every way that ranks can share it.

`parallel.plan(model, ranks=1024, link="100Gb")` and `caldera plan` are its doors.
"""

from __future__ import annotations

from caldera.arguments import guard as _guard
from caldera.planner.cluster import Cluster, Wire
from caldera.planner.compute import Compute
from caldera.planner.layer_cost import LayerCost
from caldera.planner.link_benchmark import measured_wire
from caldera.planner.prediction import Prediction, Setting, Way
from caldera.planner.proposal import Proposal, plan, proposed
from caldera.planner.ranking import Ranking, rank
from caldera.planner.workload import Workload, workload_of

__all__ = [
    "Cluster",
    "Compute",
    "LayerCost",
    "Prediction",
    "Proposal",
    "Ranking",
    "Setting",
    "Way",
    "Wire",
    "Workload",
    "measured_wire",
    "plan",
    "proposed",
    "rank",
    "workload_of",
]

_guard(globals())
