"""Four levels of measurement, as in Deep500: operators, networks, training, distributed training.

A part of a level that a user writes once (`Operator`, `Optimizer`, `Sampler`, `Compression`,
`Scheme`) is run and validated in every framework; `reference` and `schemes` contain lean parts to
compare with. Metrics are separate objects, shared by all levels.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.bench.levels import reference, schemes
from caldera.bench.levels.learner import Learner, frameworks, learner
from caldera.bench.levels.schemes import validate_scheme
from caldera.bench.levels.validation import (
    Difference,
    Finding,
    ValidationError,
    validate_operator,
    validation_page,
)
from caldera.bench.levels.validation import (
    PartValidation as Validation,
)
from caldera.bench.levels.validators import (
    validate_batches,
    validate_compression,
    validate_network,
    validate_optimizer,
    validate_sampler,
)
from caldera.bench.parts import CompressionPart as Compression
from caldera.bench.parts import OperatorPart as Operator
from caldera.bench.parts import OptimizerPart as Optimizer
from caldera.bench.parts import Sampler, Scheme

__all__ = [
    "Compression",
    "Difference",
    "Finding",
    "Learner",
    "Operator",
    "Optimizer",
    "Sampler",
    "Scheme",
    "Validation",
    "ValidationError",
    "frameworks",
    "learner",
    "reference",
    "schemes",
    "validate_batches",
    "validate_compression",
    "validate_network",
    "validate_operator",
    "validate_optimizer",
    "validate_sampler",
    "validate_scheme",
    "validation_page",
]

_guard(globals())
