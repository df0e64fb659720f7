"""Everything that `caldera bench` can measure, by name."""

from __future__ import annotations

from caldera.bench.work.base import (
    Case,
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    Rule,
    TrainingCase,
    UpdateCase,
    Work,
)
from caldera.bench.work.kernels import kernels
from caldera.bench.work.networks import networks
from caldera.registry import Registry

WORK: Registry[Work] = Registry("work")
"""Work by name."""

for _work in (*networks(), *kernels()):
    WORK.add(_work.name, _work)

__all__ = [
    "WORK",
    "Case",
    "ConvolutionCase",
    "FormulaCase",
    "InputCase",
    "ProductCase",
    "Rule",
    "TrainingCase",
    "UpdateCase",
    "Work",
]
