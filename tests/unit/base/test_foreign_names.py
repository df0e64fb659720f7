"""Names of other frameworks: each is an error that names ours."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import traceback
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.base.foreign_names import ARGUMENTS, NAMES, ours
from tests.markdown_blocks import blocks

PAGE = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text()
ROOMS = (cd, nn, nn.losses, nn.metrics, op, optim, cd.data, cd.parallel, cd.comm)
MODEL = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
OBJECTS = (MODEL, nn.Dense(3), nn.LSTM(3), optim.Adam(), cd.tensor([1.0]), cd.tensor([1.0]) * 2.0)


def foreign_names() -> Iterator[str]:
    """The names in the programs of the other frameworks, and in their columns of the tables."""
    for block in blocks(PAGE):
        if block.remark in ("torch", "keras"):
            tree = ast.parse(block.code)
            bound = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
            for each in ast.walk(tree):
                if isinstance(each, ast.Attribute):
                    yield each.attr
                if isinstance(each, ast.ImportFrom):
                    yield from (alias.name for alias in each.names if alias.name in bound)
    words = PAGE.partition("## Words")[2].partition("\n## ")[0]
    for row in re.findall(r"^\|(.*)\|$", words, re.MULTILINE):
        *others, _ = row.split("|")
        for code in re.findall(r"`([^`]+)`", " ".join(others)):
            written = code.partition("(")[0].partition(" =")[0].partition("[")[0]
            yield re.findall(r"\w+", written)[-1]


NOT_NAMES = {"layers", "utils", "losses", "optim", "data", "tf", "group", "Dataset", "eval"}
"""Modules, and names that all have."""


@pytest.mark.parametrize("name", sorted(set(foreign_names()) - NOT_NAMES))
def test_every_foreign_name_of_the_page_is_ours_or_names_ours(name: str) -> None:
    if name.removesuffix("=") in ARGUMENTS:
        return
    if not any(name in {*dir(each), *vars(type(each))} for each in (*ROOMS, *OBJECTS, np.ndarray)):
        with pytest.raises(AttributeError, match=r"; (write|leave it out)"):
            getattr(nn, name)


@pytest.mark.parametrize("table", [NAMES, ARGUMENTS])
def test_what_the_table_names_is_there(table: dict[str, str]) -> None:
    for text in table.values():
        for found in re.findall(r"\b(?:cd|nn|op|optim|data|parallel|comm)\.[\w.]*\w", text):
            first, *rest = found.split(".")
            value = import_module("caldera" if first == "cd" else f"caldera.{first}")
            for part in rest:
                if part == "sklearn" and find_spec("sklearn") is None:
                    break
                value = getattr(value, part)
        for kind, name in re.findall(r'(loss=|metrics=\[|metric is )"(\w+)"', text):
            assert name in (nn.losses.losses if kind == "loss=" else nn.metrics.metrics)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: nn.Linear, r"write nn\.Dense\(units\)"),
        (lambda: nn.MaxPooling2D, r"write nn\.MaxPool2D\(size, stride, padding, \.\.\.\)"),
        (lambda: nn.BatchNorm2d, r"write nn\.BatchNorm\(momentum, eps\)"),
        (lambda: nn.Adam, r"write optim\.Adam\(learning_rate\)"),
        (lambda: cd.ModelCheckpoint, r"cd\.Checkpointer\(folder\)"),
        (lambda: cd.parallel.DistributedDataParallel, r"parallel\.DataParallel\(\)"),
        (lambda: MODEL.state_dict(), r"model\.parameters\(\)"),
        (lambda: MODEL.optimizer.zero_grad(), "leave it out"),
        (lambda: (cd.tensor([1.0]) * 2.0).backward(), r"op\.grad\(loss, variables\)"),
        (lambda: cd.tensor([1.0]).softmax(), r"write op\.softmax\(x\)"),
        (lambda: optim.Adam().lr, "did you mean 'learning_rate'"),
        (lambda: optim.Adam(lr=1.0), "got lr=; did you mean 'learning_rate'"),
        (lambda: optim.Adam(betas=(0.9, 0.99)), "write beta1= and beta2="),
        (lambda: nn.Conv2D(3, kernel_size=3), "did you mean 'kernel'"),
        (lambda: nn.Dense(3, in_features=2), "leave it out"),
        (lambda: optim.get("adam", lr=1.0), "did you mean 'learning_rate'"),
        (lambda: MODEL.fit(1, 2, validation_data=3), "did you mean 'validation'"),
        (
            lambda: cd.NeuralNetwork([], loss="categorical_crossentropy"),
            'write loss="cross_entropy"',
        ),
        (lambda: cd.NeuralNetwork([], loss="CrossEntropy"), "did you mean 'cross_entropy'"),
        (lambda: cd.NeuralNetwork([], metrics=["acc"]), r'write metrics=\["accuracy"\]'),
        (lambda: cd.NeuralNetwork([], optimizer="RMSprop"), "did you mean 'rmsprop'"),
        (lambda: nn.Dense(3, activation="swish"), "silu"),
    ],
)
def test_foreign_names_are_errors_that_name_ours(wrong, message) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError), match=message) as caught:
        wrong()
    assert "Did you mean" not in "".join(traceback.format_exception(caught.value))


def test_a_hint_needs_what_the_function_takes() -> None:
    with pytest.raises(TypeError) as caught:
        nn.Dropout(kernel_size=3)
    assert "kernel=" not in str(caught.value)
    assert ours("relu", ["mse"]) == ""


def test_rooms_and_objects_are_looked_into_as_before() -> None:
    for each in (*ROOMS, *OBJECTS):
        assert not hasattr(each, "no_such_thing_at_all")
        with pytest.raises(AttributeError) as caught:
            _ = each._linear
        assert ";" not in str(caught.value)
    for room in ROOMS:
        inspect.getmembers(room)
        assert inspect.unwrap(room) is room
    again = pickle.loads(pickle.dumps(MODEL))
    np.testing.assert_array_equal(again.parameters()[0].numpy(), MODEL.parameters()[0].numpy())
    copy.deepcopy(optim.Adam()), copy.copy(nn.Dense(3)), copy.deepcopy(cd.tensor([1.0]))


def test_a_property_with_an_error_of_its_own_keeps_it() -> None:
    class Broken(nn.Layer):
        @property
        def score(self):
            return self.nothing_of_this_kind

        def forward(self, x):
            return x

    with pytest.raises(AttributeError, match="nothing_of_this_kind"):
        _ = Broken().score


def test_activations_come_by_name_in_every_layer() -> None:
    for kind in map(nn.layers.__getitem__, nn.layers):
        for field in fields(kind):
            assert field.kw_only or not field.name.endswith("activation"), kind
    with pytest.raises(cd.ConfigError, match="write activation='relu'"):
        nn.Dense(10, "relu")
    with pytest.raises(cd.ConfigError, match="write activation='relu'"):
        nn.Conv2D(10, 3, "relu")
