"""Settings: typed, checked, overridable, and read from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caldera.base.config import Settings
from caldera.errors import ConfigError


@pytest.fixture
def settings() -> Settings:
    return Settings({})


def test_defaults(settings: Settings) -> None:
    assert settings.accelerator == "auto"
    assert settings.threads >= 1
    assert settings.cache_dir.name == "caldera"
    assert settings.tune_budget_s == 5.0
    assert settings.deterministic is False
    assert settings.workspace_limit == 2**30
    assert settings.memory_limit is None


def test_environment_is_read(tmp_path: Path) -> None:
    settings = Settings({"CALDERA_THREADS": "3", "CALDERA_CACHE": str(tmp_path / "new")})
    assert settings.threads == 3
    assert settings.cache_dir == tmp_path / "new"


@pytest.mark.parametrize("text", ["many", "0", "-2", "1.5", ""])
def test_bad_thread_count_names_the_variable(text: str) -> None:
    with pytest.raises(ConfigError, match=r"CALDERA_THREADS.*integer"):
        Settings({"CALDERA_THREADS": text})


def test_cache_that_is_a_file_names_the_variable(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(ConfigError, match=r"CALDERA_CACHE.*folder"):
        Settings({"CALDERA_CACHE": str(occupied)})
    with pytest.raises(ConfigError, match="CALDERA_CACHE"):
        Settings({"CALDERA_CACHE": ""})


def test_unknown_names_are_refused_with_the_nearest(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="'thread'; did you mean 'threads'"):
        settings.update(thread=2)
    with pytest.raises(ConfigError, match="did you mean 'deterministic'"):
        settings.determinstic = True
    with (
        pytest.raises(ConfigError, match="known: accelerator, accuracy, placement"),
        settings.override(zzz=1),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accelerator", "gpu"),
        ("accelerator", 0),
        ("threads", 0),
        ("threads", True),
        ("threads", 2.0),
        ("cache_dir", 7),
        ("tune_budget_s", -1.0),
        ("tune_budget_s", float("nan")),
        ("tune_budget_s", "5"),
        ("deterministic", 1),
        ("workspace_limit", -1),
        ("workspace_limit", None),
        ("workspace_total", -1),
        ("workspace_total", "64 MiB"),
        ("memory_limit", 0),
        ("memory_limit", "1GB"),
    ],
)
def test_wrong_values_are_refused_and_change_nothing(
    settings: Settings, name: str, value: Any
) -> None:
    before = getattr(settings, name)
    with pytest.raises(ConfigError, match=f"settings.{name}: expected"):
        setattr(settings, name, value)
    with pytest.raises(ConfigError):
        settings.update(**{name: value})
    assert getattr(settings, name) == before


def test_update_is_all_or_nothing(settings: Settings) -> None:
    with pytest.raises(ConfigError):
        settings.update(threads=settings.threads + 1, deterministic="yes")
    assert settings.threads == Settings({}).threads


def test_values_are_converted(settings: Settings, tmp_path: Path) -> None:
    settings.update(cache_dir=str(tmp_path), tune_budget_s=2, memory_limit=1000)
    assert settings.cache_dir == tmp_path
    assert isinstance(settings.tune_budget_s, float)
    assert settings.memory_limit == 1000
    settings.memory_limit = None
    assert settings.memory_limit is None


def test_override_is_undone_also_after_an_exception(settings: Settings) -> None:
    before = settings.threads
    with settings.override(threads=before + 1, deterministic=True) as inside:
        assert inside is settings
        assert settings.threads == before + 1
        with settings.override(threads=before + 2):
            assert settings.threads == before + 2
        assert settings.threads == before + 1
    assert (settings.threads, settings.deterministic) == (before, False)

    def fail() -> None:
        with settings.override(workspace_limit=5):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert settings.workspace_limit == 2**30
