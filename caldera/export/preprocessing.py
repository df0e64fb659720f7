"""Preprocessing of a model in C: rows of a table as features, and names of classes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from caldera.base.arguments import require
from caldera.data.column import AS_IT_IS, Column
from caldera.data.schema import names_of_classes
from caldera.export.bindings import template
from caldera.export.interface import C_TYPES, KEYWORDS
from caldera.train.model import Model

HINT = "pass preprocessing=False (--no-preprocessing) and encode the inputs in another program"


@dataclass(frozen=True)
class Preprocessing:
    """The columns of the rows that a model takes, the dtype of features, and names of classes."""

    columns: tuple[Column, ...]
    dtype: str
    classes: tuple[str, ...]

    @classmethod
    def of(cls, model: Model) -> Preprocessing:
        """Return the preprocessing of a model; a part without code in C is refused by name."""
        schema = model.schema
        if schema is None:
            return cls((), "", ())
        require(
            schema.text is None,
            "export of the tokenizer",
            "a network that takes numbers",
            "one that takes texts",
            HINT,
        )
        for each in schema.columns:
            require(
                each.kind in ("number", "category"),
                f"export of column {each.title!r}",
                "numbers and categories",
                f"the kind {each.kind}",
                HINT,
            )
        signature = model.signature
        output = next(name for name in model.objective.losses if name in signature.outputs)
        count = math.prod(signature.outputs[output])
        classes = names_of_classes(schema.classes, count, "export") if schema.classes else ()
        return cls(schema.columns, signature.inputs[0][1], classes)

    def fields(self) -> list[str]:
        """Return the names of the columns in C."""
        names: list[str] = []
        for each in self.columns:
            name = re.sub(r"\W", "_", each.title, flags=re.ASCII).lower().strip("_") or "column"
            if name[0].isdigit() or re.fullmatch(KEYWORDS, name):
                name = f"column_{name}"
            names.append(name if name not in names else f"{name}_{each.position}")
        return names

    def declarations(self, library: str) -> list[tuple[str, str]]:
        """Return the declarations of the C header, each with a comment."""
        found = []
        if self.columns:
            rows = "\n".join(
                f"    {'const char *' if each.category else 'double '}{name}; /* {_about(each)} */"
                for name, each in zip(self.fields(), self.columns, strict=True)
            )
            struct = f"typedef struct {{\n{rows}\n}} {library}_row"
            found.append(("A row of the table: a missing number is NaN, any other NULL.", struct))
            about = "Encode rows as the inputs x of the network."
            function = f"int {library}_encode({library}_model *model, int64_t rows, "
            function += f"const {library}_row *table, {C_TYPES[self.dtype]} *x)"
            found.append((about, function))
        if self.classes:
            about = "Return the name of a class, the position of an output; NULL for other numbers."
            found.append((about, f"const char *{library}_class(int64_t number)"))
        return found

    def source(self, library: str) -> str:
        """Return the C source of the declared functions."""
        parts = []
        if self.columns:
            tables, rows = [], []
            for number, (name, each) in enumerate(zip(self.fields(), self.columns, strict=True)):
                known = each.number or AS_IT_IS
                numbers = f"{known.mean!r}, {known.scale!r}, {known.median!r}"
                marks = int(getattr(each.encoder, "marks_missing", False))
                categories, count = "NULL", -1
                if each.category is not None:
                    categories, count = f"categories_{number}", len(each.category.categories)
                    texts = ", ".join(map(_text, each.category.categories)) or "NULL"
                    tables.append(f"static const char *const {categories}[] = {{{texts}}};")
                rows.append(
                    f"    {{{_text(each.title)}, {categories}, offsetof({library}_row, {name}), "
                    f"{count}, {int(each.encoder is not None)}, {marks}, {numbers}}},"
                )
            tables.append("static const column_t columns[] = {\n" + "\n".join(rows) + "\n};")
            text = template("encode.c", library, COLUMNS="\n".join(tables))
            parts.append(text.replace(f"{library}_input_t", C_TYPES[self.dtype]))
        if self.classes:
            names, count = ", ".join(map(_text, self.classes)), len(self.classes)
            parts.append(
                f"const char *{library}_class(int64_t number) {{\n"
                f"    static const char *const names[] = {{{names}}};\n"
                f"    return number < 0 || number >= {count} ? NULL : names[number];\n}}\n"
            )
        return "\n".join(parts)


def _about(column: Column) -> str:
    """Return a comment about a column."""
    return f"{column.title}: {column.describe()}".replace("*/", "* /").replace("\n", " ")


def _text(text: str) -> str:
    """Return a string literal of C; other characters than plain ASCII are escaped bytes."""
    plain = text.isascii() and text.isprintable() and "?" not in text
    if plain:
        return json.dumps(text)
    return '"' + "".join(f"\\{byte:03o}" for byte in text.encode()) + '"'
