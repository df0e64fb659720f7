"""The table of operators that are compared with PyTorch's, without PyTorch."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from caldera import op
from tools import opinfo_forms
from tools.opinfo_names import (
    CONVENTIONS,
    FIRST_OUTPUTS,
    FORMS,
    SAME,
    SYMMETRIC,
    UP_TO_SIGN,
    form,
)

FILES = sorted(Path(opinfo_forms.__file__).parent.glob("opinfo*.py"))


def names_used(path: Path) -> set[str]:
    """What a file reads from `op`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "op"
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_operations_that_the_forms_use_exist(path: Path) -> None:
    assert names_used(path) <= set(op.__all__)


def test_operations_of_the_same_arguments_exist() -> None:
    assert set(SAME.values()) <= set(op.__all__)
    assert not set(SAME) & set(FORMS), "an operator is in both tables"


def test_every_operator_has_a_form_that_can_be_called() -> None:
    for name in (*SAME, *FORMS):
        function = form(name)
        assert function is not None
        assert inspect.signature(function).parameters, name
    assert form("no such operator") is None


def test_notes_are_about_operators_of_the_table() -> None:
    assert {*CONVENTIONS, *FIRST_OUTPUTS, *SYMMETRIC, *UP_TO_SIGN} <= {*SAME, *FORMS}
