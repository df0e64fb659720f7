"""That data mean to a model what it was trained on: the same columns, the same classes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from caldera.data import Pipeline, Schema
from caldera.errors import DataError

if TYPE_CHECKING:
    from caldera.train.model import Model


def check_schema(model: Model, data: Pipeline) -> None:
    """Refuse data whose columns or classes are others than those that the model knows.

    Only names can be compared: arrays have none, and are taken as they are.
    """
    if model.schema is None:
        return
    given = schema_of_inputs(model, data.schema)
    if given is not None:
        model.schema.check(given, type(model).__name__)
        _check_tokenizers(model, given)


def _check_tokenizers(model: Model, given: Schema) -> None:
    known = model.schema.text if model.schema is not None else None
    if known is not None and given.text is not None and given.text != known:
        raise DataError.build(
            type(model).__name__,
            expected="texts with the numbers it was trained on",
            got="those of another tokenizer",
            hint="read them with "
            "data.texts(..., schema=model.schema); or set model.schema = None to train for others",
        )


def learn_schema(model: Model, data: Pipeline) -> None:
    """Have the model remember what it is trained on."""
    given = schema_of_inputs(model, data.schema)
    if given is None:
        return
    known = model.schema or Schema()
    if model.schema is None and model.steps_done:
        # What it gives has a meaning already, which another scale would change.
        target = None if given.target is None else replace(given.target, number=None)
        given = replace(given, target=target, series=None)
    # More classes may have come since, but none has another number.
    classes = max(known.classes, given.classes, key=len)
    knows = known.columns or known.target or known.series
    model.schema = replace(known if knows else given, classes=classes)


def schema_of_inputs(model: Model, schema: Schema | None) -> Schema | None:
    """The schema of data, without columns that are not what the model takes: a stage of a pipeline
    may have made something else of them."""
    if schema is None or not schema.columns:
        return schema
    (shape, _), *_ = model.signature.inputs
    if shape == (len(schema.features),):
        return schema
    return replace(schema, columns=(), ignored=(), reasons=())
