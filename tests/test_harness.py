"""What the tests themselves stand on: files made once, accepted sources, and the table of skips."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from caldera.errors import DeviceError
from caldera.kernels.cuda.runtime import driver
from caldera.kernels.cuda.runtime.driver import headers
from tests import object_cache
from tests.card import accepted
from tests.object_cache import cached_file
from tests.reporting import skip_table
from tools import install


def test_a_file_is_made_once_by_many_at_a_time(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(file: Path) -> None:
        made.append(file)
        time.sleep(0.05)
        file.write_text("whole")

    def ask() -> None:
        assert cached_file(tmp_path / "object", make).read_text() == "whole"

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["object"]


def test_a_file_that_could_not_be_made_is_made_again(tmp_path: Path) -> None:
    def fail(file: Path) -> None:
        file.write_text("half")
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        cached_file(tmp_path / "object", fail)
    assert cached_file(tmp_path / "object", lambda f: f.write_text("whole")).read_text() == "whole"


def test_what_was_not_used_for_long_is_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_cache, "CACHE", tmp_path)
    (tmp_path / "object").write_text("code")
    object_cache.evict()
    assert (tmp_path / "object").exists()
    monkeypatch.setattr(object_cache, "DAYS", -1)
    object_cache.evict()
    assert not (tmp_path / "object").exists()


# --- sources that NVIDIA's compiler has accepted

CARDS = (accepted.ARCHITECTURE, *accepted.OTHERS)
SOURCE = '#include "types.cuh"\nextern "C" __global__ void twice(float* x) { x[0] *= 2.0f; }\n'


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The sources that NVRTC is asked for, from an empty list on."""
    if driver.library() is None:
        pytest.skip("NVRTC is not installed")
    asked: list[str] = []
    compile_source = driver.compile_source

    def watched(source: str, *rest: object) -> bytes:
        asked.append(source)
        return compile_source(source, *rest)

    monkeypatch.setattr(driver, "compile_source", watched)
    monkeypatch.setattr(accepted, "CACHE", tmp_path)
    monkeypatch.setattr(accepted, "LIST", tmp_path / "accepted.txt")
    monkeypatch.setattr(accepted, "needed", set())
    accepted.listed.cache_clear()
    monkeypatch.setattr(accepted, "strict", False)
    monkeypatch.setattr(accepted, "anew", False)
    yield asked
    accepted.listed.cache_clear()


def test_a_new_source_is_compiled_once_and_a_listed_one_is_not(compiled: list[str]) -> None:
    accepted.check_for_a_card(SOURCE)
    accepted.needed.clear()
    accepted.check_for_a_card(SOURCE)
    assert compiled == [SOURCE] * len(CARDS)
    accepted.write_list({accepted.digest_of(SOURCE), accepted.kind_of(SOURCE)})
    accepted.listed.cache_clear()
    accepted.check_for_a_card("// Other words.\n" + SOURCE)
    # One card is enough for another number, all are asked about another function.
    accepted.check_for_a_card(SOURCE.replace("2.0f", "3.0f"))
    assert len(compiled) == len(CARDS) + 1
    accepted.check_for_a_card(SOURCE.replace("2.0f", "wide(x[1])"))
    assert len(compiled) == 2 * len(CARDS) + 1


def test_a_source_that_nvidia_refuses_is_refused_each_time(compiled: list[str]) -> None:
    wrong = SOURCE.replace("x[0]", "y[0]")
    for _ in range(2):
        with pytest.raises(DeviceError, match="y"):
            accepted.check_for_a_card(wrong)
    assert accepted.digest_of(wrong) not in accepted.needed


def test_another_compiler_is_asked_again_when_the_list_is_written(compiled: list[str]) -> None:
    known = f"{accepted.digest_of(SOURCE)}\n{accepted.kind_of(SOURCE)}\n"
    accepted.LIST.write_text(f"NVRTC-1.0-sm_10\n{known}")
    accepted.check_for_a_card(SOURCE)
    assert compiled == []
    accepted.strict = True
    accepted.listed.cache_clear()
    accepted.needed.clear()
    accepted.check_for_a_card(SOURCE)
    assert compiled == [SOURCE] * len(CARDS)
    accepted.anew = True
    accepted.listed.cache_clear()
    accepted.needed.clear()
    accepted.check_for_a_card(SOURCE)
    assert compiled == [SOURCE] * (2 * len(CARDS))


def test_a_digest_depends_on_headers_but_not_on_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    before = accepted.digest_of(SOURCE)
    assert accepted.digest_of("  // A comment.\n" + SOURCE) == before
    assert accepted.digest_of(SOURCE.replace("types.cuh", "math.cuh")) != before


def test_a_digest_depends_on_what_a_source_uses_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, kind = accepted.digest_of(SOURCE), accepted.kind_of(SOURCE)
    machine = headers()["machine.cuh"]

    def digest(text: str) -> str:
        accepted.included.cache_clear()
        accepted.digest_of.cache_clear()
        monkeypatch.setattr(accepted, "headers", lambda: {**headers(), "machine.cuh": text})
        return accepted.digest_of(SOURCE)

    try:
        # `types.cuh` rounds to halves, and nothing of it is a product.
        assert digest(machine.replace("cvt.rn.f16.f32", "cvt.rz.f16.f32")) != before
        assert digest(machine.replace("mma.sync", "mma.async")) == before
        assert digest(machine + "__device__ __forceinline__ void none() {}\n") == before
        assert digest(machine + "#define none 0\n") != before
    finally:
        monkeypatch.undo()
        accepted.included.cache_clear()
        accepted.digest_of.cache_clear()
    other = SOURCE.replace("2.0f", "3.0f")
    assert accepted.digest_of(other) != before
    assert accepted.kind_of(other) == kind


# --- the table of skips


def test_skips_are_counted_by_reason() -> None:
    places = [("a.py", 1, "Skipped: no card"), ("b.py", 2, "no card"), ("c.py", 3, "too slow")]
    assert skip_table(places) == "     2  no card\n     1  too slow"


@pytest.mark.parametrize(
    ("settings", "variables"),
    [
        ({}, {}),
        ({"quiet": "1", "no-input": "1"}, {}),
        (
            {"find-links": "/a\n/b", "extra-index-url": "file:///c\nfile:///d", "cert": "e.crt"},
            {"UV_FIND_LINKS": "/a,/b", "UV_INDEX": "file:///c file:///d", "SSL_CERT_FILE": "e.crt"},
        ),
        (
            {"index-url": "file:///c", "timeout": "60"},
            {"UV_DEFAULT_INDEX": "file:///c", "UV_HTTP_TIMEOUT": "60"},
        ),
    ],
)
def test_settings_of_pip_are_those_of_uv(
    settings: dict[str, str], variables: dict[str, str]
) -> None:
    always = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    assert install.uv_variables(settings) == {**always, **variables}


def test_what_uv_has_no_word_for_is_left_to_pip() -> None:
    assert install.uv_variables({"index-url": "file:///c", "constraint": "versions.txt"}) is None


def test_settings_of_pip_are_read_and_variables_are_stronger(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\ntimeout = 5\nfind-links =\n    /a\n    /b\n[install]\nretries = 7\n"
        "[list]\nformat = json\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_TIMEOUT", "9")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    found = install.pip_settings()
    assert (found["timeout"], found["retries"], found["find-links"].split()) == (
        "9",
        "7",
        ["/a", "/b"],
    )
    assert "format" not in found
