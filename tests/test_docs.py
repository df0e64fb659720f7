"""The documentation: every block of code runs and prints what it says; no link is broken."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest

from caldera import optim
from caldera.cli import main
from caldera.nn import losses
from tests.browser import Browser
from tests.test_front_door import PUBLIC_ROOMS
from tools.docs.contents import PAGES, ROOT, page_names, room_names, source_of
from tools.docs.links import broken
from tools.docs.markdown import Block, blocks
from tools.docs.reference import short
from tools.docs.site import Site

_CHECK = doctest.OutputChecker()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def _own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers is forgotten after it."""
    for family in (optim.optimizers, losses.losses):
        monkeypatch.setattr(family, "_entries", dict(family._entries))


@pytest.mark.usefixtures("own_layers", "_own_names")
@pytest.mark.parametrize("page", page_names())
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    found = blocks(source_of(page).read_text())
    for block, after in zip(found, [*found[1:], None], strict=True):
        where = f"{page}.md, line {block.line}"
        if block.language == "python" and block.remark:
            _run_peer(block, dict(names), where)
        elif block.language == "python":
            printed = _printed(block, names, where)
            wanted = after.code if after and after.language == "text" and after.follows else ""
            if not _CHECK.check_output(wanted, printed, _FLAGS):
                pytest.fail(f"{where}: expected\n{wanted}\ngot\n{printed}")
        elif block.language == "console":
            _run_commands(block, where)
        else:
            assert block.language in ("text", "toml"), f"{where}: {block.language}"


def _printed(block: Block, names: dict[str, object], where: str) -> str:
    output = io.StringIO()
    # Lines are counted as in the page, for the traceback of one that fails.
    code = compile("\n" * block.line + block.code, where, "exec")
    with contextlib.redirect_stdout(output):
        exec(code, names)
    return output.getvalue()


def _run_peer(block: Block, names: dict[str, object], where: str) -> None:
    """Code of another framework: run where it is installed, and at least parsed elsewhere."""
    if importlib.util.find_spec(block.remark) is None:
        compile(block.code, where, "exec")
    else:
        _printed(block, names, where)


def _run_commands(block: Block, where: str) -> None:
    for line in block.code.splitlines():
        assert line.startswith("$ "), f"{where}: {line}"
        program, *arguments = shlex.split(line.removeprefix("$ "))
        if program == "caldera":
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    status = main(arguments)
                except SystemExit as stopped:
                    status = int(stopped.code or 0)
            assert not status, f"{where}: {line}"


def test_every_room_is_in_the_reference() -> None:
    assert set(PUBLIC_ROOMS) <= set(room_names())


def test_every_page_is_in_the_contents() -> None:
    there = {path.relative_to(PAGES).with_suffix("").as_posix() for path in PAGES.rglob("*.md")}
    assert there == set(page_names())


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


@pytest.fixture(scope="module")
def built(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    return folder


def test_it_is_built_and_its_links_lead_somewhere(built: Path) -> None:
    assert (built / "index.html").is_file()
    assert not broken(built)
    reference = (built / "reference/data.html").read_text()
    assert 'id="Pipeline"' in reference
    assert "&gt;&gt;&gt;" in reference
    # A name in a page is a link to its description.
    assert (
        '<a href="../reference/data.html#Pipeline"><code>data.Pipeline</code></a>'
        in (built / "tutorials/data.html").read_text()
    )


def test_pages_load_nothing_from_elsewhere_and_fit_any_width(built: Path, browser: Browser) -> None:
    for page in sorted(built.rglob("*.html")):
        browser.open(page.as_uri(), width=1280)
        assert all(address.startswith(built.as_uri()) for address in browser.requests()), page
        assert browser.complaints() == [], page
        for width in (1280, 390):
            browser.resize(width, 900)
            assert browser.value("document.documentElement.scrollWidth") <= width, page


def test_names_are_found_from_any_page(built: Path, browser: Browser) -> None:
    browser.open((built / "tutorials/graph.html").as_uri())
    browser.value("field.value = 'pipeline'; field.dispatchEvent(new Event('input'))")
    assert browser.value("found.hidden") is False
    first = browser.value("found.querySelector('a').href")
    assert first == (built / "reference/data.html").as_uri() + "#Pipeline"


def test_the_page_that_begins_a_folder_leads_to_the_others(built: Path) -> None:
    text = (built / "distributed/index.html").read_text().partition("<main")[2]
    others = [page for page in page_names() if page.startswith("distributed/")][1:]
    for page in others:
        assert f'href="{page.rpartition("/")[2]}.html"' in text, page


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="x"></p><p id="x"></p><a href="b.html"></a><a href="#y"></a><a href="#x"></a>'
        '<a href="http://example.org"></a>'
    )
    assert len(broken(tmp_path)) == 4


@pytest.mark.parametrize("page", page_names())
def test_names_in_a_page_are_names_of_the_package(page: str, site: Site) -> None:
    # Code of the other frameworks has names of its own, and stands in tables beside ours.
    text = re.sub(r"```.*?```", "", source_of(page).read_text(), flags=re.DOTALL)
    if page == "coming-from":
        text = "\n".join(line.rpartition("| `")[2] for line in text.splitlines() if "| `" in line)
    for code in re.findall(r"`([^`\n]+)`", text):
        name = re.match(r"(op|nn|optim|data|parallel|compress|cd)\.[\w.]+", code)
        if name is not None:
            assert _exists(name[0]), f"{page}.md: {code}"


def _exists(name: str) -> bool:
    first, *rest = name.split(".")
    value: object = importlib.import_module("caldera" if first == "cd" else f"caldera.{first}")
    for part in rest:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def test_the_readme_links_to_files_that_are_there() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
            assert "://" in link or (ROOT / link).exists(), f"{page}: {link}"


def test_rooms_have_short_names() -> None:
    assert [short(f"caldera.{room}") for room in ("op", "nn.losses")] == ["op", "nn.losses"]
