"""OpenAPI 3.1 description of a service, which generators of clients and API explorers read."""

from __future__ import annotations

from typing import Any

import caldera
from caldera.data import Column
from caldera.serve.signature import Contract

Plain = dict[str, Any]
_STATUS = {
    400: "The body is not JSON or CSV.",
    413: "More bytes, samples or pixels than the limits allow.",
    415: "Another content type.",
    422: "Wrong columns, shapes or values.",
    503: "Too many samples wait already.",
    504: "The prediction took longer than the limit.",
}


def description(contract: Contract, *, needs_token: bool = False) -> Plain:
    """Return the description of a service as JSON-serialisable values."""
    body: Plain = {
        kind: {"schema": {"type": "string"}}
        for kind in contract.content_types
        if kind != "application/json"
    }
    body["application/json"] = {
        "schema": _object(
            {"samples": {"type": "array", "items": _sample(contract), "minItems": 1}}
        ),
        "example": {"samples": [contract.example()]},
    }
    answer = _answer(_predictions(contract), "The predictions, one for each sample.")
    answer["content"]["text/csv"] = {"schema": {"type": "string"}}
    predict = {
        "summary": "Predict samples",
        "operationId": "predict",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": answer,
            **{
                str(status): _answer(_object({"error": {"type": "string"}}), words)
                for status, words in _STATUS.items()
            },
        },
    }
    found: Plain = {
        "openapi": "3.1.0",
        "info": {"title": contract.name, "version": caldera.__version__},
        "paths": {
            "/predict": {"post": predict},
            "/model": _get("Inputs and outputs of the model", {"type": "object"}),
            "/health": _get("State of the service", _object({"status": {"type": "string"}})),
        },
    }
    if needs_token:
        found["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        found["security"] = [{"token": []}]
    return found


def _object(properties: Plain, required: bool = True) -> Plain:
    found: Plain = {"type": "object", "properties": properties}
    return found | ({"required": list(properties)} if required else {})


def _answer(schema: Plain, words: str) -> Plain:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _get(summary: str, schema: Plain) -> Plain:
    return {"get": {"summary": summary, "responses": {"200": _answer(schema, summary)}}}


def _sample(contract: Contract) -> Plain:
    """Return the schema of a single sample."""
    if contract.kind == "text":
        return {"type": "string"}
    if contract.kind == "table" and contract.schema is not None:
        columns = contract.schema.columns
        if not contract.schema.names:
            return {"type": "array", "minItems": len(columns), "maxItems": len(columns)}
        found = _object({column.name: _value(column) for column in columns})
        return found | {"additionalProperties": False}
    found = {"type": "number"}
    for size in reversed(contract.shape):
        found = {"type": "array", "items": found, "minItems": size, "maxItems": size}
    return found


def _value(column: Column) -> Plain:
    """Return the schema of a value; null is a missing one, where a column has an encoder."""
    if column.encoder is None:
        return {"type": "number"}
    found: Plain = {"examples": [column.encoder.example()]}
    if column.number is not None:
        found["type"] = ["number", "string", "null"]
        if column.seen:
            found["description"] = f"Training range: {column.seen[0]:.6g} to {column.seen[-1]:.6g}"
        return found
    found["type"] = ["string", "number", "boolean", "null"]
    if column.category is not None:
        found["description"] = f"One of {', '.join(column.category.categories)}"
    return found


def _predictions(contract: Contract) -> Plain:
    """Return the schema of an answer."""
    number = {"type": ["number", "null"]}
    one = _object({"value": number})
    if contract.classes:
        names = _object(dict.fromkeys(contract.classes, number), required=False)
        kind = {"type": "string", "enum": list(contract.classes)}
        one = _object({"class": kind, "probability": number, "probabilities": names})
    elif contract.interval is not None:
        one = _object({"value": number, "low": number, "high": number})
    elif contract.outputs != (1,):
        one = _object({"values": {"type": "array"}})
    found = _object({"predictions": {"type": "array", "items": one}})
    notes = {"type": "array", "items": {"type": "string"}}
    found["properties"] |= {"target": {"type": "string"}, "notes": notes}
    return found
