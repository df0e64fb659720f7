"""Intervals around predicted values: conformalised quantile regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caldera.data.decisions import interval_rank
from caldera.data.schema import Schema
from caldera.nn import Branches, Input, Interval, IntervalLoss, Rescale, Sequential, to_config
from caldera.nn.layer import Layer
from caldera.nn.losses import Loss, Quantile
from caldera.train.neural_network import NeuralNetwork
from caldera.train.quantise import take_weights
from caldera.train.saving.model_file import layers_from_config, settings_from_config, settings_of
from caldera.train.tables.folds import FOLDS, Array, Rows, fold_numbers
from caldera.train.tables.members import BRANCHES, Members, fit_members


@dataclass(frozen=True)
class QuantileRows(Rows):
    """Rows whose members learn two quantiles of the targets."""

    levels: tuple[float, float] = (0.05, 0.95)

    @property
    def member_loss(self) -> Loss:
        return Quantile(list(self.levels))

    def loss(self, rows: Array, meaning: Array) -> float:
        above, levels = self.targets[rows, None] - meaning, np.asarray(self.levels)
        return float(np.maximum(levels * above, (levels - 1) * above).mean())


def with_interval(
    model: NeuralNetwork,
    x: Array,
    errors: Array,
    coverage: float,
    *,
    seed: int = 0,
    seconds: float | None = None,
    verbose: int | None = 0,
) -> NeuralNetwork:
    """Return a model that predicts the ends of intervals too, which contain `coverage` of values.

    `errors` are targets minus predictions, for rows `x` that the model was not trained on. Networks
    of five folds learn two quantiles of the errors. They start from the quantiles of all errors,
    and keep these if the columns do not improve the loss out of fold. Each end is then moved by a
    number, for which its share of the rows out of fold is right: conformalised quantile regression
    (Romano, Patterson and Candès, 2019), with a rank for each end.
    """
    schema = model.schema or Schema()
    scale, tail = float(errors.std()) or 1.0, (1 - coverage) / 2
    rows = QuantileRows(
        x,
        errors / scale,
        fold_numbers(errors, FOLDS, seed),
        FOLDS,
        2,
        classes=False,
        levels=(tail, 1 - tail),
    )
    network = Members.of(schema, rows).network(name="ends")
    _set_constant(network, rows)
    _, keeper = fit_members(rows, [network], seed, seconds, model.device, verbose, from_start=True)
    low, high = (rows.targets[:, None] - keeper.predictions[network.name]).T
    rank = interval_rank(len(low), coverage)
    widened = np.sort(low)[rank - 1], np.sort(high)[-rank]
    if schema.target_scale is not None and model.target_scale is not None:
        scale /= float(np.ravel(model.target_scale.scale)[0])
    first, *others = model.layers
    return _like(
        model,
        [
            first,
            Interval(
                Sequential(others),
                Sequential([network, Rescale(scale, 0.0)]),
                [scale * each for each in widened],
            ),
        ],
        replace(schema, interval=coverage),
    )


def _set_constant(network: Sequential, rows: QuantileRows) -> None:
    """Let the members of each fold predict the quantiles of the rows that they learn from."""
    NeuralNetwork([Input(rows.x.shape[1:]), Branches([network], name=BRANCHES)])
    last: Any = network.layers[-1]
    last.weight.assign(np.zeros(last.weight.shape))
    folds = range(rows.count)
    last.offset.assign(
        [np.quantile(rows.targets[rows.folds != fold], rows.levels) for fold in folds]
    )


def _like(model: NeuralNetwork, layers: list[Layer], schema: Schema) -> NeuralNetwork:
    """Return a network of these layers, with the settings of a model."""
    settings = settings_from_config(settings_of(model), "interval")
    loss = IntervalLoss(next(iter(model.objective.losses.values())))
    settings |= {"loss": loss, "loss_weights": {}}
    # Variables are named by the network that they were made in, so new ones are made.
    config = to_config(Sequential(layers))["layers"]
    made = NeuralNetwork(layers_from_config(config, "interval"), **settings)
    take_weights(made, NeuralNetwork(layers, **settings))
    made.schema = schema
    return made.to(model.device)
