"""The frameworks that can be measured, by name; each is made inside its own worker."""

from __future__ import annotations

from caldera.base.registry import Registry
from caldera.bench.frameworks.base import BenchTask as Task
from caldera.bench.frameworks.base import Framework, Trainer
from caldera.bench.frameworks.caldera_tasks import CalderaFramework
from caldera.bench.frameworks.jax_tasks import JaxFramework
from caldera.bench.frameworks.tensorflow_tasks import TensorFlowFramework
from caldera.bench.frameworks.torch_tasks import TorchFramework

FRAMEWORKS: Registry[type[Framework]] = Registry("framework")
"""Frameworks by name."""

FRAMEWORKS.add("caldera", CalderaFramework)
FRAMEWORKS.add("torch", TorchFramework)
FRAMEWORKS.add("jax", JaxFramework)
FRAMEWORKS.add("tensorflow", TensorFlowFramework)

__all__ = ["FRAMEWORKS", "Framework", "Task", "Trainer"]
