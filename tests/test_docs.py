"""The documentation: every block of code runs and prints what it says; no link is broken."""

from __future__ import annotations

import contextlib
import doctest
import fcntl
import gc
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import tomllib
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from caldera import optim, search
from caldera.cli import main
from caldera.compiler.lazy import forget_plans
from caldera.nn import losses
from tests.browser import Browser
from tests.built_site import unpack_site
from tests.markdown_blocks import Block, blocks
from tests.site_links import broken
from tests.test_front_door import PUBLIC_ROOMS
from tools import api_links, doc_pictures, docs, griffe_extension

PAGES = docs.ROOT / "docs"
_CHECK = doctest.OutputChecker()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _listed() -> list[str]:
    """The pages in the order of the list of contents, by their paths without the ending."""
    sections = tomllib.loads(docs.CONFIG.read_text())["project"]["nav"]
    pages = [page for section in sections for listed in section.values() for page in listed]
    return [page.removesuffix(".md") for page in pages]


def _room(page: Path) -> str:
    """What a page of the reference is about: its title."""
    return page.read_text().partition("\n")[0].strip("# `")


WRITTEN = [page for page in _listed() if not page.startswith("reference/")]
ROOMS = {page: _room(PAGES / f"{page}.md") for page in _listed() if page.startswith("reference/")}


@pytest.fixture
def _own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers is forgotten after it."""
    for family in (optim.optimizers, losses.losses, search.methods):
        monkeypatch.setattr(family, "_entries", dict(family._entries))


@pytest.mark.usefixtures("own_layers", "_own_names", "no_session")
@pytest.mark.parametrize("page", WRITTEN)
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    text = (PAGES / f"{page}.md").read_text()
    if "gfortran" in text and shutil.which("gfortran") is None:
        pytest.skip("needs gfortran")
    if "memory_limit" in text:
        # What earlier tests left counts as well.
        forget_plans()
        gc.collect()
    found = blocks(text)
    for block, after in pairwise([*found, None]):
        assert block is not None
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
    # The picture of a page is drawn of what its code leaves.
    if page in doc_pictures.PICTURES:
        assert doc_pictures.PICTURES[page](names).startswith("<svg")
        picture = doc_pictures.file_of(page)
        assert picture.is_file()
        assert f"assets/{picture.name})" in (PAGES / f"{page}.md").read_text()


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
    assert set(PUBLIC_ROOMS) <= set(ROOMS.values())


def test_every_page_is_in_the_contents() -> None:
    there = [path.relative_to(PAGES).with_suffix("").as_posix() for path in PAGES.rglob("*.md")]
    assert sorted(there) == sorted(_listed())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; workers that run tests side by side unpack it once."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site").exists():
            unpack_site(shared / "site")
    return shared / "site"


def test_it_has_every_page_and_its_links_lead_somewhere(built: Path) -> None:
    for page in _listed():
        assert "```" not in (built / f"{page}.html").read_text(), f"{page}: a block of code as text"
    assert not broken(built)


def test_every_public_name_is_in_the_reference(built: Path) -> None:
    for page, room in ROOMS.items():
        text = (built / f"{page}.html").read_text()
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            if not isinstance(getattr(module, name), ModuleType):
                assert f'id="{room}.{name}"' in text, name


def test_the_reference_has_signatures_and_examples(built: Path) -> None:
    text = (built / "reference/nn.html").read_text().partition('id="caldera.nn.Dense"')[2]
    described = re.sub(r"<[^>]+>", "", text.partition('id="caldera.nn.DepthwiseConv2D"')[0])
    assert "units: int" in described
    assert "&gt;&gt;&gt; " in described


def test_a_name_in_a_page_is_a_link_to_its_description(built: Path) -> None:
    text = (built / "tutorials/data.html").read_text()
    link = r'<a [^>]*href="../reference/data.html#caldera.data.Pipeline"[^>]*><code>data.Pipeline<'
    assert re.search(link, text)
    assert api_links.target_of("np.sum(x)") is None


def test_pages_load_nothing_from_elsewhere_and_fit_any_width(built: Path, browser: Browser) -> None:
    # The pages of the reference are alike, and long.
    for page in [*WRITTEN, "reference/nn"]:
        browser.open((built / f"{page}.html").as_uri(), width=1280)
        foreign = [
            address
            for address in browser.requests()
            if not address.startswith((built.as_uri(), "data:", "about:"))
        ]
        assert not foreign, page
        assert browser.complaints() == [], page
        for width in (1280, 390):
            browser.resize(width, 900)
            assert browser.value("document.documentElement.scrollWidth") <= width, page


def test_a_page_is_light_or_dark_as_the_reader_asks(built: Path, browser: Browser) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        browser.open("about:blank")
        browser.colours(scheme)
        browser.open((built / "index.html").as_uri())
        browser.value("localStorage.clear()")
        colour = browser.value("getComputedStyle(document.body).backgroundColor")
        seen[scheme] = [int(part) for part in re.findall(r"\d+", colour)[:3]]
    browser.colours("")
    assert min(seen["light"]) > 240
    assert max(seen["dark"]) < 60


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("fit", "caldera.Model.fit"),
        ("predict", "caldera.Model.predict"),
        ("Pipeline", "caldera.data.Pipeline"),
        ("freeze", "caldera.nn.Layer.freeze"),
        ("missing values", "#what-becomes-of-a-column"),
    ],
)
def test_words_are_found_from_any_page(
    word: str, place: str, built: Path, browser: Browser
) -> None:
    browser.open((built / "tutorials/graph.html").as_uri())
    browser.value("document.querySelector('.md-search__button').click()")
    links = (
        "[...document.querySelectorAll('*')].filter(each => each.shadowRoot)"
        ".flatMap(each => [...each.shadowRoot.querySelectorAll('a')]).map(each => each.href)"
    )
    focused = "[...document.querySelectorAll('*')].some(e => e.shadowRoot?.activeElement)"
    browser.wait_until(focused)
    browser.call("Input.insertText", text=word)
    browser.wait_until(f"{links}.length > 0")
    assert any(link.endswith(place) for link in browser.value(links))


def test_the_index_of_the_search_has_names_and_sentences(built: Path) -> None:
    items = json.loads((built / "search.json").read_text())["items"]
    peers = "DataLoader state_dict autocast GradientTape ModelCheckpoint to_categorical vmap jit"
    scikit = "train_test_split GridSearchCV predict_proba confusion_matrix fine-tuning"
    for word in ("fit", "predict", "checkpoint", *peers.split(), *scikit.split()):
        assert any(word in each["text"] for each in items), word


def test_the_reference_lists_arguments_and_results(built: Path) -> None:
    for room, least in (("op", 0.9), ("nn", 0.6), ("optim", 0.6), ("data", 0.6)):
        text = (built / f"reference/{room}.html").read_text()
        names = importlib.import_module(f"caldera.{room}").__all__
        assert text.count(">Parameters:<") > least * len(names), room
    row = re.sub(r"<[^>]+>|\s+", " ", text.partition('id="caldera.data.split"')[2][:20_000])
    assert re.search(r"test +\( +float +, default: +0\.2 +\)", row)


def test_the_page_that_begins_a_folder_leads_to_the_others(built: Path) -> None:
    text = (built / "distributed/index.html").read_text()
    others = [page for page in WRITTEN if page.startswith("distributed/")][1:]
    for page in others:
        assert f'href="./{page.rpartition("/")[2]}.html"' in text, page


def test_versions_lie_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(folder: Path, *, has_versions: bool) -> None:
        assert has_versions
        folder.mkdir(parents=True)
        (folder / "index.html").touch()

    monkeypatch.setattr(docs, "build", written)
    for version in ("0.9.0", "0.10.0", "0.8.1"):
        docs.build_version(tmp_path, version)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [each["version"] for each in listed] == ["0.10.0", "0.9.0", "0.8.1"]
    assert [each["aliases"] for each in listed] == [["latest"], [], []]
    assert (tmp_path / "latest").resolve() == tmp_path / "0.10.0"
    assert "latest/index.html" in (tmp_path / "index.html").read_text()


def test_examples_become_blocks_of_code() -> None:
    text = griffe_extension.fenced("Adds.\n\n>>> 1 + 1\n2\n\nSo it does.\n\n>>> 2\n2")
    example = "```pycon\n>>> 1 + 1\n2\n```"
    assert text == f"Adds.\n\n{example}\n\nSo it does.\n\n```pycon\n>>> 2\n2\n```"


@pytest.mark.parametrize("module", [api_links, griffe_extension])
def test_examples_of_the_generator_hold(module: ModuleType) -> None:
    found = doctest.testmod(module, optionflags=_FLAGS)
    assert found.attempted
    assert not found.failed


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="x"></p><p id="x"></p><a href="b.html"></a><a href="#y"></a><a href="#x"></a>'
        '<a href="http://example.org"></a>'
    )
    assert len(broken(tmp_path)) == 4


@pytest.mark.parametrize("page", WRITTEN)
def test_names_in_a_page_are_names_of_the_package(page: str) -> None:
    # Code of the other frameworks has names of its own, and stands in tables beside ours.
    text = re.sub(r"```.*?```", "", (PAGES / f"{page}.md").read_text(), flags=re.DOTALL)
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
        for link in re.findall(r"\]\(([^)#]+)", (docs.ROOT / page).read_text()):
            assert "://" in link or (docs.ROOT / link).exists(), f"{page}: {link}"
