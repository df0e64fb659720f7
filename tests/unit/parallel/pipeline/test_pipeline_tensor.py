"""Pipelines whose stages are groups of ranks that share layers equal one process."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.comm import Communicator, Mesh
from caldera.parallel import PipelineParallel
from tests.unit.parallel.pipeline.test_pipeline_parallel import Shared, built, normalised, pipeline
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    Trained,
    alone,
    assert_close,
    network,
    samples,
    trained,
)
from tests.unit.parallel.tensor.test_tensor_parallel import LAYERS


def dense() -> list[nn.Layer]:
    """By outputs, then by inputs; seven features on two ranks are four and three."""
    return [
        nn.Input((FEATURES,)),
        nn.Dense(7, activation="tanh"),
        nn.Dropout(0.3),
        nn.Dense(5),
        nn.ReLU(),
        nn.Dense(6, activation="relu"),
        nn.Dense(CLASSES),
    ]


KINDS = {"dense": dense, "attention": LAYERS["attention"], "images": LAYERS["images"]}


def made(kind: str = "dense", dtype: str = "float64", **more: Any) -> cd.NeuralNetwork:
    return network(layers=KINDS[kind](), dtype=dtype, **more)


@cache
def one_process(kind: str, dtype: str, count: int) -> Trained:
    return alone(partial(made, kind, dtype), samples(count, dtype), validation=samples(7, dtype))


# One step in float32; with 27 samples the last batch is smaller than others, and planned apart.
# Several pipelines without statistics are below, with a layer that several stages use.
@pytest.mark.parametrize(
    ("kind", "ranks", "options", "dtype", "count"),
    [
        ("dense", 4, {}, "float32", 10),
        # A cut inside a pair: what crosses it are parts.
        (
            "dense",
            4,
            {"stages": ["3-Dense"], "schedule": "fill-drain", "micro_batches": 2},
            "float64",
            27,
        ),
        ("dense", 6, {"model": 3, "micro_batches": 2}, "float64", 20),
        ("attention", 4, {"micro_batches": 2}, "float64", 20),
        # Statistics are those of the batch if it is not cut.
        ("images", 8, {"data": 2, "micro_batches": 1}, "float64", 20),
    ],
)
def test_it_equals_one_process_on_the_whole_batch(
    kind: str, ranks: int, options: dict[str, Any], dtype: str, count: int
) -> None:
    found = trained(
        ranks,
        partial(made, kind, dtype),
        pipeline(**{"model": 2, "least": 1} | options),
        samples(count, dtype),
        watch=False,
        validation=samples(7, dtype),
    )
    assert found.same_on_all_ranks()
    assert_close(found, one_process(kind, dtype, count))


def test_lengths_are_those_of_whole_parameters_of_all_stages() -> None:
    clipped = partial(optim.LAMB, 0.01, accumulate=2, clip=optim.ClipNorm(0.1))
    make = partial(made, optimizer=clipped)
    strategy = pipeline(model=2, least=1, micro_batches=2)
    found = trained(4, make, strategy, samples(30), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(30)), 1e-12)


def test_a_loss_scale_is_that_of_all_ranks() -> None:
    make = partial(made, dtype="float32", precision="float16")
    strategy = pipeline(model=2, least=1, micro_batches=2)
    found = trained(4, make, strategy, samples(40, "float32"), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(40, "float32")), 2e-2)


def test_batch_normalisation_is_over_a_part_of_all_pipelines() -> None:
    data = samples(20)
    options = {"stages": 2, "data": 2, "micro_batches": 2}
    found = trained(8, normalised, pipeline(model=2, least=1, **options), data, watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, trained(4, normalised, pipeline(**options), data, watch=False), 1e-12)


def test_a_layer_that_several_stages_use_is_in_parts_on_all_of_them() -> None:
    make = partial(built, Shared)
    options = {"stages": ["second"], "data": 2, "model": 2, "least": 1, "micro_batches": 2}
    found = trained(8, make, pipeline(**options), samples(20), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(20)), 1e-12)


def test_samples_count_by_their_weights_on_any_mesh() -> None:
    data, how = samples(20), {"sample_weights": np.random.default_rng(2).uniform(0, 3, 20)}

    def strategy(comm: Communicator) -> PipelineParallel:
        splits = {"1-Dense": "inputs", "5-Dense": "outputs"}
        mesh = Mesh(comm, {"model": 2, "pipeline": 2})
        return PipelineParallel(["4-ReLU"], splits=splits, mesh=mesh, micro_batches=2)

    found = trained(4, made, strategy, data, watch=False, **how)
    assert found.same_on_all_ranks()
    assert_close(found, alone(made, data, **how), 1e-12)
