"""Models to serve, and a client that speaks to the service without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn, serve

JSON = "application/json"


class Reply(NamedTuple):
    """What the service sent back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


async def ask(
    app: serve.Application,
    path: str = "/predict",
    body: bytes | list[bytes] = b"",
    *,
    method: str = "POST",
    content_type: str = JSON,
    accept: str = "",
    receive: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    **more: str,
) -> Reply:
    """Send one request to the application."""
    parts = [body] if isinstance(body, bytes) else body
    left = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
        for number, part in enumerate(parts)
    ]
    sent: list[dict[str, Any]] = []

    async def next_part() -> dict[str, Any]:
        return left.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", content_type.encode()), (b"accept", accept.encode())]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in more.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await app(scope, receive or next_part, send)
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], names, sent[1]["body"])


def samples(*given: Any) -> bytes:
    """The body of a request with these samples."""
    return json.dumps({"samples": list(given)}).encode()


def reply(app: serve.Application, *words: Any, **options: Any) -> Reply:
    """One request, and nothing else."""
    return asyncio.run(ask(app, *words, **options))


@pytest.fixture(scope="session")
def digits_model() -> cd.Model:
    """A small network that knows digits fairly well."""
    digits = data.digits()
    layers = [nn.Input((1, 8, 8)), nn.Flatten(), nn.Dense(32, activation="relu"), nn.Dense(10)]
    model = cd.NeuralNetwork(layers, learning_rate=0.01)
    model.fit(digits.train, epochs=8, verbose=0)
    return model


@pytest.fixture(scope="session")
def digits_app(digits_model: cd.Model) -> serve.Application:
    return serve.application(digits_model, name="digits", limits=serve.Limits(batch_size=4))


@pytest.fixture(scope="session")
def table_model() -> cd.Model:
    """The first of two columns is the larger one, or the second is."""
    x = np.random.default_rng(0).normal(size=(200, 2)).astype("float32")
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], learning_rate=0.1)
    model.fit(x, (x[:, 0] > x[:, 1]).astype("int64"), epochs=5, verbose=0)
    columns = (data.Column("width", "number", 0), data.Column("height", "number", 1))
    target = data.Column("kind", "class", 2)
    model.schema = data.Schema(columns, target, ("tall", "wide"), width=3)
    return model


@pytest.fixture(scope="session")
def table_app(table_model: cd.Model) -> serve.Application:
    return serve.application(table_model, name="boxes", limits=serve.Limits(batch_size=4))


@pytest.fixture(scope="session")
def homes_model() -> cd.Model:
    """Numbers, categories and a name with an apostrophe, each read by its encoder."""
    random = np.random.default_rng(0)
    area, city = random.uniform(30, 150, 80), random.choice(["Roma", "Oslo"], 80)
    steps = random.integers(0, 9, 80)
    table = {"area": area, "city": city, "it's": steps, "price": 9 * area + 300 * (city == "Oslo")}
    homes = data.table(table, "price")
    model = cd.NeuralNetwork([nn.Input(homes.shape), nn.Dense(1)], loss="mean_squared")
    model.fit(homes.train, epochs=2, verbose=0)
    return model
