"""Names for things of one kind."""

from __future__ import annotations

from pathlib import Path

import pytest

import caldera as cd
from caldera.base.registry import Registry, provide


def test_a_name_is_given_once() -> None:
    registry: Registry[object] = Registry("thing")
    registry.add("one", 1)
    assert registry["one"] == 1
    assert (list(registry), len(registry), "one" in registry, 1 in registry) == (
        ["one"],
        1,
        True,
        False,
    )
    with pytest.raises(cd.ConfigError, match="thing one: expected an unused name"):
        registry.add("one", 2)
    with pytest.raises(cd.ConfigError, match="got 'onee'; did you mean 'one'"):
        _ = registry["onee"]
    with pytest.raises(cd.ConfigError, match="got 'zzz'; known: one"):
        _ = registry["zzz"]


def test_a_class_that_is_defined_again_takes_its_own_place() -> None:
    registry: Registry[type] = Registry("thing")

    def define() -> type:
        class Thing:
            pass

        registry.add("thing", Thing)
        return Thing

    first, second = define(), define()
    assert registry["thing"] is second is not first

    class Other:
        pass

    with pytest.raises(cd.ConfigError, match="unused name"):
        registry.add("thing", Other)


def test_what_is_provided_is_found_before_it_is_registered() -> None:
    shapes: Registry[type] = Registry("shape of a test")
    provide("shape of a test round", "pathlib", "Path")
    assert "round" in shapes
    assert shapes["round"] is Path
    assert list(shapes) == []
    assert "square" not in shapes
