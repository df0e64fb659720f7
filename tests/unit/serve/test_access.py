"""Who is answered, what numbers and names come through exactly, and CSV without formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn, op, serve
from caldera.cli import main
from caldera.errors import CalderaError
from caldera.io.csv_files import without_formulas
from caldera.serve.http import Access
from tests.unit.serve.conftest import Reply, reply, samples


class _Halves(cd.Model):
    """Whole numbers as their upper and lower digits, which float32 holds."""

    def forward(self, *inputs: Any) -> Any:
        (x,) = inputs
        return op.cast(op.concat([x // 10**6 % 10**6, x % 10**6], axis=-1), "float32")


@pytest.fixture(scope="module")
def whole_app() -> serve.Application:
    model = _Halves(loss="mean_squared")
    model.predict(np.zeros((1, 2), np.int64))
    return serve.application(model, limits=serve.Limits(batch_size=2))


def _values(answer: Reply) -> list[float]:
    assert answer.status == 200, answer.body
    return list(answer.json["predictions"][0]["values"])


def test_whole_numbers_come_through_exactly(whole_app: serve.Application) -> None:
    for given in ([2**53 + 1, 2**53 + 3], [2**63 - 1, 12_345_678_901_234_567]):
        wanted = [float(x // 10**6 % 10**6) for x in given] + [float(x % 10**6) for x in given]
        assert _values(reply(whole_app, "/predict", samples(given))) == wanted
        text = ",".join(map(str, given)).encode()
        assert _values(reply(whole_app, "/predict", text, content_type="text/csv")) == wanted
    assert _values(reply(whole_app, "/predict", samples([3.0, 5])))[2:] == [3.0, 5.0]


def test_whole_numbers_that_would_be_others_are_refused(whole_app: serve.Application) -> None:
    for body in (
        b'{"samples": [[9007199254740993.0, 1]]}',
        b'{"samples": [[9223372036854775808, 1]]}',
        b'{"samples": [[9.3e18, 1]]}',
        b'{"samples": [[1.5, 1]]}',
        b'{"samples": [[' + b"9" * 400 + b", 1]]}",
    ):
        answer = reply(whole_app, "/predict", body)
        assert answer.status == 422, (body, answer.body)
    answer = reply(whole_app, "/predict", b"9223372036854775808,1", content_type="text/csv")
    assert answer.status == 422


def test_a_name_that_stands_twice_in_an_object_is_refused(table_app: serve.Application) -> None:
    for body in (
        b'{"samples": [{"width": 3, "height": 1, "width": 0}]}',
        b'{"samples": [[3, 1]], "samples": [[0, 1]]}',
    ):
        answer = reply(table_app, "/predict", body)
        assert (answer.status, "twice" in answer.error) == (400, True)


def _three(classes: tuple[str, ...]) -> cd.Model:
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
    model.schema = data.Schema(classes=classes)
    return model


def test_each_class_has_a_name_of_its_own() -> None:
    for classes, more in (
        (("tall", "wide"), ("tall", "wide")),
        (("1", "2"), ()),
        ((), ("a", "b", "c")),
        (("tall", "2"), ()),
    ):
        app = serve.application(
            _three(classes), class_names=more, limits=serve.Limits(batch_size=1)
        )
        names = reply(app, "/model", method="GET").json["classes"]
        (found,) = reply(app, "/predict", samples([3, 1])).json["predictions"]
        assert len(set(names)) == len(found["probabilities"]) == 3, names
        assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        assert tuple(names[: len(classes or more)]) == (classes or more)
        decoded = data.Schema(classes=classes).decode(np.eye(3)) if classes else None
        assert decoded is None or decoded["class"].tolist() == names
    with pytest.raises(CalderaError, match="'a' twice"):
        serve.application(_three(("a", "b", "a")), limits=serve.Limits(batch_size=1))


@pytest.mark.parametrize(
    ("host", "own", "others"),
    [
        (
            "127.0.0.1",
            ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", ""],
            ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example"],
        ),
        (
            "0.0.0.0",
            ["10.1.2.3:80", "[fe80::1]:80", "localhost"],
            ["evil.example:8000", "1.2.3.4.a"],
        ),
        ("::", ["10.1.2.3", "[2001:db8::1]"], ["evil.example"]),
        ("10.0.0.1", ["10.0.0.1:8000"], ["10.0.0.2", "localhost", "evil.example"]),
    ],
)
def test_requests_to_other_hosts_are_refused(
    table_model: cd.Model, host: str, own: list[str], others: list[str]
) -> None:
    app = serve.application(table_model, limits=serve.Limits(batch_size=1))
    app.access = Access.of(host, ["api.example"])
    for name in [*own, "api.example:443", "API.example."]:
        assert reply(app, "/predict", samples([3, 1]), host=name).status == 200, name
    for name in others:
        for path, method in (("/predict", "POST"), ("/", "GET"), ("/metrics", "GET")):
            answer = reply(app, path, samples([3, 1]), method=method, host=name)
            assert (answer.status, "--allow-host" in answer.error) == (421, True), name


def test_a_token_is_asked_for_everywhere_but_for_health(table_model: cd.Model) -> None:
    app = serve.application(
        table_model, limits=serve.Limits(batch_size=1), token="0123456789abcdef"
    )
    for given in ("", "Bearer", "Bearer 0123456789abcdeF", "Basic 0123456789abcdef", "Bearer é"):
        for path, method in (("/predict", "POST"), ("/model", "GET"), ("/", "GET"), ("/x", "GET")):
            answer = reply(app, path, samples([3, 1]), method=method, authorization=given)
            assert answer.status == 401, (given, path)
            assert answer.headers["www-authenticate"] == "Bearer"
    right = {"authorization": "bearer 0123456789abcdef"}
    assert reply(app, "/predict", samples([3, 1]), **right).status == 200
    assert reply(app, "/health", method="GET").status == 200
    with pytest.raises(CalderaError, match="token"):
        serve.application(table_model, token="two words")


def test_the_command_reads_its_token_from_a_file(
    table_model: cd.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, secret = table_model.save(tmp_path / "m.caldera"), tmp_path / "token"
    for content, said in (("short\n", "at least 16"), ("x" * 5000, "at most 4096")):
        secret.write_text(content)
        command = ["serve", str(model), "--token-file", str(secret), "--port", "0"]
        assert main(command) != 0
        assert said in capsys.readouterr().err


def test_texts_in_csv_are_no_formulas(table_model: cd.Model) -> None:
    model = _three(("=HYPERLINK(1)", "-2", "\tcmd"))
    model.schema = data.Schema(
        target=data.Column("@sum", "class", 0), classes=model.schema.classes, width=1
    )
    limits = serve.Limits(batch_size=1)
    x = np.eye(2, dtype="float32").tolist()
    for keeps, marks in ((False, "'"), (True, "")):
        app = serve.application(model, limits=limits, keep_formulas=keeps)
        text = reply(app, "/predict", samples(*x), accept="text/csv").body.decode()
        assert text.startswith(f"sample,{marks}@sum,probability\n")
        for line in text.splitlines()[1:]:
            assert ("'=HYPERLINK" in line or "'\tcmd" in line or ",-2," in line) != keeps or keeps
    fields = ["=1", " =1", "+a", "@a", "\t=1", "a;=1", "a\n=1", "\uff1d1", "-cmd"]
    assert all("'" in without_formulas(each) for each in fields)
    plain = ["", "a", "a=b", "1-2", "-1.5", "+3", "1e-5", "a-b", 3, -2.5, None]
    assert [without_formulas(each) for each in plain] == plain


def test_errors_are_json_that_says_what_to_do(table_model: cd.Model) -> None:
    app = serve.application(
        table_model, limits=serve.Limits(batch_size=1), allow_hosts=["a.example"]
    )
    answer = reply(app, "/predict", samples([3, 1]), host="b.example")
    assert json.loads(answer.body)["error"].startswith("host: expected a name of this service")
