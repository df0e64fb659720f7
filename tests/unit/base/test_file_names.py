"""Whatever a thing is called, its file is one part of a path."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldera.base.file_access import checked_file_name, file_name
from caldera.base.file_cache import FileCache
from caldera.errors import ConfigError


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_makes_a_name_that_is_one_part_of_a_path(text: str) -> None:
    name = file_name(text)
    assert Path(name).parts == (name,)
    assert name not in (".", "..")
    assert len(name.encode()) < 200
    assert not set('/\\:*?"<>|\0\n') & set(name)
    assert file_name(name) == name


@pytest.mark.parametrize("name", ["iris", "step-3", "a.b_c+d", "données", "花", "my data"])
def test_a_name_that_is_fit_stays(name: str) -> None:
    assert file_name(name) == name == checked_file_name(name, "cache")


@pytest.mark.parametrize("key", ["", "..", "a/b", "../a", "/a", ".a", "a\\b", "con.txt"])
def test_a_cache_takes_no_paths_for_keys(key: str) -> None:
    with pytest.raises(ConfigError, match="can be a file"):
        FileCache("things").path(key)
    with pytest.raises(ConfigError, match="can be a file"):
        FileCache(key)
