"""The picture of a model's training step: as it was written, and as it runs."""

from __future__ import annotations

from pathlib import Path

from caldera.errors import ConfigError
from caldera.strategy import SingleProcessStrategy
from caldera.train.model import Model
from caldera.train.step import Steps


def draw_training_step(model: Model, path: Path) -> Path:
    """Write the SVG of one training step (forward, loss, gradients, updates); its path."""
    if path.suffix.lower() != ".svg":
        raise ConfigError.build("graph", expected="a file that ends in .svg", got=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = Steps(model, model.objective, model.optimizer, model.metrics, SingleProcessStrategy())
    return steps.training(model.batch_size).draw(path)
