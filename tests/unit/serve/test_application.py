"""The service without a network: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

import caldera as cd
from caldera import data, nn, serve
from tests.unit.serve.conftest import ask, reply, samples

DIGITS = data.digits()


def _png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


# --- what comes out


def test_arrays_in_any_form_give_what_the_model_predicts(
    digits_app: serve.Application, digits_model: cd.Model
) -> None:
    x = DIGITS.test.x[:5]
    wanted = digits_model.predict(x).argmax(axis=1).tolist()
    flat = x.reshape(5, -1)
    text = "\n".join(",".join(map(str, row)) for row in flat.tolist()).encode()
    replies = [
        reply(digits_app, "/predict", samples(*x.tolist())),
        reply(digits_app, "/predict", samples(*flat.tolist())),
        reply(digits_app, "/predict", text, content_type="text/csv; charset=utf-8"),
    ]
    for each in replies:
        assert each.status == 200, each.body
        found = each.json["predictions"]
        assert [int(one["class"]) for one in found] == wanted
        for one in found:
            parts = list(one["probabilities"].values())
            assert parts == sorted(parts, reverse=True)
            assert parts[0] == one["probability"]
            assert sum(parts) == pytest.approx(1, abs=1e-4)


def test_an_image_is_brought_to_the_size_of_the_model(
    digits_app: serve.Application, digits_model: cd.Model
) -> None:
    pixels = (DIGITS.test.x[0, 0] * 255).round().astype("uint8")
    wanted = str(digits_model.predict(pixels[None, None]).argmax())
    for body in (_png(pixels), _png(pixels.repeat(9, 0).repeat(9, 1)), _png(pixels, "BMP")):
        found = reply(digits_app, "/predict", body, content_type="image/png")
        assert found.json["predictions"][0]["class"] == wanted


def test_rows_of_a_table_by_name_by_place_and_as_csv(table_app: serve.Application) -> None:
    by_name = samples({"height": 1, "width": 3}, {"width": 0.5, "height": 2})
    csv = b"height,width\n1,3\n2,0.5\n"
    for body, kind in (
        (by_name, "application/json"),
        (samples([3, 1], [0.5, 2]), "application/json"),
        (csv, "text/csv"),
        (b"\xef\xbb\xbf" + csv.replace(b"\n", b"\r\n"), "text/csv"),
    ):
        found = reply(table_app, "/predict", body, content_type=kind)
        assert [each["class"] for each in found.json["predictions"]] == ["wide", "tall"]
    lines = reply(table_app, "/predict", by_name, accept="text/csv")
    assert lines.headers["content-type"] == "text/csv; charset=utf-8"
    assert [line.split(",")[:2] for line in lines.body.decode().splitlines()] == [
        ["sample", "kind"],
        ["0", "wide"],
        ["1", "tall"],
    ]


def test_mixed_rows_in_units_with_gaps_and_unknown_categories() -> None:
    rows = {
        "city": ["Oslo", "Roma"] * 10,
        "area": [50.0, 90.0, None, 70.0] * 5,
        "price": [5e5 + 1e3 * n for n in range(20)],
    }
    found = data.table(rows, "price", classes=False)
    model = cd.NeuralNetwork([nn.Input(found.shape), nn.Dense(1)], loss="mean_squared", epochs=2)
    model.fit(found.train, verbose=0)
    app = serve.application(model, name="homes", limits=serve.Limits(batch_size=4))
    said = reply(app, "/predict", samples({"area": None, "city": "Bern"})).json
    assert 4e5 < said["predictions"][0]["value"] < 6e5
    assert said["target"] == "price"
    assert [note.partition(":")[0] for note in said["notes"]] == ["column 'city'", "column 'area'"]
    csv = reply(
        app, "/predict", b"area,city\n50,Oslo\n,Roma\n", content_type="text/csv", accept="text/csv"
    )
    assert csv.body.startswith(b"sample,price\n0,")
    assert "column 'area': 1 missing" in csv.headers["caldera-notes"]
    whole = reply(app, "/predict", samples({"area": 50, "city": "Oslo"})).json
    assert "notes" not in whole
    assert reply(app, "/model", method="GET").json["columns"][0]["categories"] == ["Oslo", "Roma"]
    page = reply(app, "/", method="GET").body.decode()
    assert '<option value="Oslo">Oslo</option>' in page


def test_values_and_outputs_that_are_no_numbers() -> None:
    model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mean_squared")
    model.parameters()[0].assign(np.array([[3e38]], "float32"))
    app = serve.application(model, limits=serve.Limits(batch_size=1))
    found = reply(app, "/predict", samples([0], [10]))
    assert found.json == {"predictions": [{"value": 0.0}, {"value": None}]}
    assert reply(app, "/predict", samples([0]), accept="text/csv").body == b"sample,value0\n0,0\n"


def test_the_page_the_model_health_and_metrics(table_app: serve.Application) -> None:
    page = reply(table_app, "/", method="GET")
    assert (page.status, b'data-column="1"' in page.body) == (200, True)
    assert "script-src 'sha256-" in page.headers["content-security-policy"]
    known = reply(table_app, "/model", method="GET").json
    assert (known["kind"], known["classes"]) == ("table", ["tall", "wide"])
    assert [column["name"] for column in known["columns"]] == ["width", "height"]
    assert reply(table_app, "/health", method="HEAD").status == 200
    reply(table_app, "/nowhere" + "x" * 500, method="GET")
    text = reply(table_app, "/metrics", method="GET").body.decode()
    assert 'caldera_model_info{model="boxes"} 1' in text
    assert 'caldera_requests_total{path="other",status="404"}' in text
    assert "\ncaldera_predict_seconds_count " in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


# --- what is refused


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"", "application/json", 400, "expected JSON"),
        (b"{", "application/json", 400, "expected JSON"),
        (b"\xff", "application/json", 400, "expected JSON"),
        (b"[" * 100_000, "application/json", 400, "lists in lists"),
        (b'{"samples": [[NaN, 1]]}', "application/json", 400, "NaN, which JSON does not have"),
        (b'{"samples": [[' + b"9" * 5000 + b", 1]]}", "application/json", 400, "expected JSON"),
        (b"[[1, 2]]", "application/json", 422, 'expected {"samples": [...]}, got a list'),
        (b'{"rows": [[1, 2]]}', "application/json", 422, "an object with ['rows']"),
        (b'{"samples": []}', "application/json", 422, "at least one sample"),
        (samples(*[[1, 2]] * 4097), "application/json", 413, "at most 4096 samples, got 4097"),
        (samples(1, 2), "application/json", 422, "objects with the names of columns"),
        (samples([1, 2], [1]), "application/json", 422, "lists of equal length"),
        (samples([1, 2, 3, 4]), "application/json", 422, "expected 2 columns"),
        (samples({"width": 1}), "application/json", 422, "got no 'height'"),
        (samples({"width": 1, "heigth": 2}), "application/json", 422, "is 'heigth' the column"),
        (samples({"width": 1, "height": 2}, {"width": 1}), "application/json", 422, "sample 1"),
        (
            samples({"width": 1, "height": "x"}),
            "application/json",
            422,
            "sample 0: expected a number in column 1 ('height'), got 'x'",
        ),
        (samples({"width": 1, "height": None}), "application/json", 422, "a value in column 1"),
        (samples({"width": True, "height": 1}), "application/json", 422, "a number in column 0"),
        (samples({"width": [1], "height": 1}), "application/json", 422, "numbers, texts, dates"),
        (samples({"width": 1, "height": 1e39}), "application/json", 422, "a finite number"),
        (b'{"samples": [[1e999, 1]]}', "application/json", 422, "a finite number"),
        (samples([10**400, 1]), "application/json", 422, "a finite number"),
        (b"", "text/csv", 400, "an empty body"),
        (b"\xff\xfe", "text/csv", 400, "text in utf-8"),
        (b"width,height\n1,x\n", "text/csv", 422, "line 2: expected a number in column 1"),
        (b"width,width\n1,2\n", "text/csv", 422, "a distinct name"),
        (b"width,height\n", "text/csv", 422, "at least one sample"),
        (b"width\n1\n", "text/csv", 422, "got no 'height'"),
        (b"1,2\n" * 5000, "text/csv", 413, "at most 4096 samples"),
        (b"x", "text/html", 415, "expected application/json or text/csv, got 'text/html'"),
        (b"x", "", 415, "got none"),
        (b"x", "image/png", 415, "expected application/json or text/csv"),
    ],
)
def test_what_a_table_refuses(
    table_app: serve.Application, body: bytes, kind: str, status: int, said: str
) -> None:
    found = reply(table_app, "/predict", body, content_type=kind)
    assert (found.status, said in found.error) == (status, True), found.error


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (samples([1, 2]), "application/json", 422, "shape [1, 8, 8] or lists of 64 numbers"),
        (samples([1, [2]]), "application/json", 422, "lists of different lengths"),
        (samples(["1"] * 64), "application/json", 422, "got texts"),
        (samples([{}, None]), "application/json", 422, "got null, objects"),
        (b'{"samples": ' + b"[" * 500 + b"]" * 500 + b"}", "application/json", 422, "expected"),
        (b"1,2\n", "text/csv", 422, "lists of 64 numbers, got of shape [2]"),
        (b"1,x\n", "text/csv", 422, "got texts"),
        (b'1,"x', "text/csv", 400, "expected a CSV file"),
        (b"1,2\n1\n", "text/csv", 400, "line 2: expected 2 columns"),
        (b"no image", "image/png", 422, "expected an image"),
        (_png(np.zeros((8, 8), "uint8"))[:40], "image/png", 422, "truncated"),
        (_png(np.zeros((4100, 4100), "uint8")), "image/png", 413, "16777216 pixels"),
    ],
)
def test_what_a_model_of_images_refuses(
    digits_app: serve.Application, body: bytes, kind: str, status: int, said: str
) -> None:
    found = reply(digits_app, "/predict", body, content_type=kind)
    assert (found.status, said in found.error) == (status, True), found.error


def test_paths_methods_and_sizes(table_model: cd.Model) -> None:
    app = serve.application(table_model, limits=serve.Limits(batch_size=1, body=100))
    assert "did you mean '/predict'?" in reply(app, "/predictt").error
    for path in ("/../etc/passwd", "/model/../../x", "/%2e%2e", "//", "/page.js"):
        assert reply(app, path, method="GET").status == 404
    wrong = reply(app, "/predict", method="GET")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert reply(app, "/model", method="DELETE").status == 405
    large = reply(app, "/predict", [b"x" * 60, b"x" * 60, b"x"])
    assert (large.status, large.headers["connection"]) == (413, "close")
    assert "at most 100 B" in large.error


def test_a_body_and_an_answer_that_take_too_long(table_model: cd.Model) -> None:
    app = serve.application(table_model, limits=serve.Limits(batch_size=1, seconds=0.05))

    async def never() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}

    assert reply(app, receive=never).status == 408

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    sent = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": []}
    asyncio.run(app(scope, gone, send))
    assert not sent
    app._batcher._next = lambda loop: None  # type: ignore[method-assign]
    slow = reply(app, "/predict", samples([1, 2]))
    assert (slow.status, "an answer within 0.05 s" in slow.error) == (504, True)


def test_an_error_of_the_service_itself_says_nothing_of_the_inside(
    table_model: cd.Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve.application(table_model, limits=serve.Limits(batch_size=1))

    def broken(content_type: str, body: bytes) -> np.ndarray:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(app._samples, "read", broken)
    found = reply(app, "/predict", samples([1, 2]))
    assert found.status == 500
    assert "secret" not in found.error
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"batch_size": 0}, "batch_size to be an integer of at least 1, got 0"),
        ({"body": 1.5}, "body to be an integer"),
        ({"seconds": float("nan")}, "seconds to be a number"),
        ({"samples": True}, "samples to be an integer"),
    ],
)
def test_limits_that_are_none(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(cd.ConfigError, match=said):
        serve.Limits(**limits)


def test_models_that_cannot_be_served() -> None:
    class Two(cd.Model):
        def forward(self, x: cd.Expr, y: cd.Expr) -> cd.Expr:
            return x + y

    model = Two(loss="mean_squared")
    model.build_for(np.zeros((1, 2), "float32"), np.zeros((1, 2), "float32"))
    with pytest.raises(cd.ConfigError, match="a model with one input, got one with 2"):
        serve.application(model)
    with pytest.raises(cd.ConfigError, match=r"cd\.load"):
        serve.application("model.caldera")  # type: ignore[arg-type]


# --- requests that nobody would send


def _mutated(draw: random.Random) -> tuple[bytes, str]:
    """A body that was right before something happened to it, or never was."""
    values: list[Any] = [
        0,
        -1,
        1.5,
        1e308,
        10**30,
        None,
        True,
        "",
        "x",
        "1",
        [],
        {},
        [[]],
        "\ud800",
    ]
    row = {
        draw.choice(["width", "height", "", "w" * 99, "\0"]): draw.choice(values)
        for _ in range(draw.randrange(4))
    }
    listed = [draw.choice(values) for _ in range(draw.choice([0, 1, 2, 2, 64]))]
    content = draw.choice([row, listed, [row, listed], [row, row], [listed] * 3, values])
    body = json.dumps({draw.choice(["samples", "samples", "rows"]): content}).encode()
    if draw.random() < 0.3:
        body = b",".join(str(draw.choice(values)).encode("utf-8", "replace") for _ in range(6))
    if draw.random() < 0.4:
        at = draw.randrange(len(body) + 1)
        cut = at + draw.randrange(5)
        body = body[:at] + draw.randbytes(draw.randrange(4)) + body[cut:]
    kinds = ["application/json", "text/csv", "image/png", "text/csv", "x", "a/b; c=\xe9"]
    return body, draw.choice(kinds)


@pytest.mark.parametrize("seed", range(2))
def test_malformed_requests_are_answered_with_what_is_wrong(
    digits_app: serve.Application, table_app: serve.Application, seed: int
) -> None:
    draw = random.Random(seed)

    async def all_of_them() -> None:
        for _ in range(400):
            body, kind = _mutated(draw)
            app = draw.choice([digits_app, table_app])
            found = await ask(app, "/predict", body, content_type=kind)
            assert found.status in (200, 400, 413, 415, 422), (found, body)
            assert found.status == 200 or len(found.error) < 700

    began = time.monotonic()
    asyncio.run(all_of_them())
    assert time.monotonic() - began < 60


# --- texts


@pytest.fixture(scope="module")
def text_app() -> serve.Application:
    texts = ["a lovely film", "what a waste", "lovely music", "dull and long"] * 3
    found = data.texts(
        {"review": texts, "kind": ["good", "bad"] * 6}, text="review", target="kind", test=0
    )
    assert found.schema is not None
    assert found.schema.text is not None
    size = found.schema.text.size
    layers = nn.models.text_classifier(size, length=found.shape[0], classes=found.classes)
    model = cd.NeuralNetwork(layers, learning_rate=0.05, epochs=20)
    model.fit(found.train, verbose=0)
    return serve.application(model, name="reviews", limits=serve.Limits(batch_size=4))


def test_texts_in_any_form(text_app: serve.Application) -> None:
    for body, kind in (
        (samples("lovely film", "dull waste"), "application/json"),
        (samples({"review": "lovely film"}, {"review": "dull waste"}), "application/json"),
        (b"number,review\n1,lovely film\n2,dull waste\n", "text/csv"),
    ):
        found = reply(text_app, "/predict", body, content_type=kind)
        assert found.status == 200, found.body
        assert [each["class"] for each in found.json["predictions"]] == ["good", "bad"]
    one = reply(text_app, "/predict", b"such lovely music", content_type="text/plain")
    assert one.json["predictions"][0]["class"] == "good"
    about = reply(text_app, "/model", method="GET").json
    assert about["columns"] == [{"name": "review", "kind": "text"}]
    assert b'<textarea id="text"' in reply(text_app, "/", method="GET").body


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (samples(3), "application/json", 422, "expected a text"),
        (samples({"revew": "a"}), "application/json", 422, "expected a text"),
        (b"1,lovely\n", "text/csv", 422, "'review' among them"),
        (b"\xff\xfe", "text/plain", 400, "UTF-8"),
        (b"a", "image/png", 415, "text/plain"),
    ],
)
def test_what_is_no_text_is_refused(
    text_app: serve.Application, body: bytes, kind: str, status: int, words: str
) -> None:
    found = reply(text_app, "/predict", body, content_type=kind)
    assert found.status == status
    assert words in found.error


def test_sliders_of_numbers_that_differ_in_late_digits() -> None:
    seconds = 1.7e9 + np.arange(60.0)
    found = data.table({"seconds": seconds, "y": seconds}, target="y")
    model = cd.NeuralNetwork([nn.Input(found.shape), nn.Dense(1)], loss="mse", epochs=1)
    model.fit(found.train, verbose=0)
    app = serve.application(model, limits=serve.Limits(batch_size=1))
    page = reply(app, "/", method="GET").body.decode()
    low, _, median, _, high = model.schema.columns[0].seen
    assert f'min="{low:.0f}" max="{high:.0f}" step="1"' in page
    assert page.count(f'value="{median:.14g}"') == 2
