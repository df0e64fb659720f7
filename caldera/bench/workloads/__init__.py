"""Everything that `caldera bench` can measure, by name."""

from __future__ import annotations

from caldera.base.registry import Registry
from caldera.bench.workloads.base import (
    BenchWorkload as Workload,
)
from caldera.bench.workloads.base import (
    Case,
    ConvolutionCase,
    FormulaCase,
    InputCase,
    LearningCase,
    ProductCase,
    TrainingCase,
    UpdateCase,
)
from caldera.bench.workloads.base import (
    UpdateRule as Rule,
)
from caldera.bench.workloads.kernels import kernels
from caldera.bench.workloads.training import learning, networks

WORKLOADS: Registry[Workload] = Registry("work")
"""Work by name."""

for _work in (*networks(), *kernels(), *learning()):
    WORKLOADS.add(_work.name, _work)

__all__ = [
    "WORKLOADS",
    "Case",
    "ConvolutionCase",
    "FormulaCase",
    "InputCase",
    "LearningCase",
    "ProductCase",
    "Rule",
    "TrainingCase",
    "UpdateCase",
    "Workload",
]
