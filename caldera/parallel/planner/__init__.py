"""Planner: predicted time and memory of a training step for every strategy.

Public functions are `parallel.plan(model, ranks=1024, link="100Gb")` and the command `caldera
plan`.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.parallel.planner.cluster import Cluster, Wire, measured_wire
from caldera.parallel.planner.model_network import LayerCost
from caldera.parallel.planner.prediction import Compute, Prediction, Setting
from caldera.parallel.planner.prediction import TrainingWay as Way
from caldera.parallel.planner.proposal import Proposal, plan, proposed
from caldera.parallel.planner.ranking import Ranking, rank
from caldera.parallel.planner.workload import ModelWorkload as Workload
from caldera.parallel.planner.workload import workload_of

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
