"""Preprocessing of a model in C, C++ and Fortran: rows of a table as features, names of classes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from caldera.base.arguments import require
from caldera.data.column import AS_IT_IS, Column
from caldera.data.schema import names_of_classes
from caldera.export.bindings import FORTRAN_TYPES, template
from caldera.export.interface import C_TYPES, KEYWORDS
from caldera.train.model import Model

HINT = "pass preprocessing=False (--no-preprocessing) and encode the inputs in another program"


MOST_LETTERS = 40
"""Length of a column's name, before a number; Fortran's names have at most 63 letters."""


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

    @property
    def width(self) -> int:
        """Number of features of a row."""
        return sum(len(each.features()) for each in self.columns)

    def fields(self) -> list[str]:
        """Return the names of the columns in C."""
        names: list[str] = []
        for each in self.columns:
            name = re.sub(r"\W", "_", each.title, flags=re.ASCII).lower().strip("_") or "column"
            if name[0].isdigit() or re.fullmatch(KEYWORDS, name):
                name = f"column_{name}"
            name = name[:MOST_LETTERS]
            while name in names:
                name += f"_{each.position}"
            names.append(name)
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

    def cpp(self, library: str) -> str:
        """Return the members of the C++ class."""
        parts = []
        if self.columns:
            x = C_TYPES[self.dtype]
            parts.append(
                "// Encode rows of the table as the inputs x of the network.\n"
                f"std::vector<{x}> encode(const std::vector<{library}_row> &table) {{\n"
                f"    std::vector<{x}> x(table.size() * {self.width});\n"
                "    const std::int64_t rows = static_cast<std::int64_t>(table.size());\n"
                f"    check({library}_encode(handle_, rows, table.data(), x.data()));\n"
                "    return x;\n}\n"
            )
        if self.classes:
            parts.append(
                "// Return the name of a class, the position of an output.\n"
                "static std::string class_name(std::int64_t number) {\n"
                f"    const char *name = {library}_class(number);\n"
                f'    if (name == NULL) throw Error({library}_VALUE, "no class " '
                "+ std::to_string(number));\n"
                "    return name;\n}\n"
            )
        return "\n".join(parts)

    def fortran(self, library: str) -> dict[str, str]:
        """Return the parts of the Fortran module by their marks; classes are counted from 1."""
        parts = []
        if self.columns:
            parts.append(template("encode.f90", library, **self._fortran_marks()))
        if self.classes:
            parts.append(template("class.f90", library))
        found = dict.fromkeys(("TYPES", "BOUND", "DECLARED", "BODIES"), "")
        for mark, said in re.findall(r"! --- (\w+)\n(.*?)(?=! ---|\Z)", "".join(parts), re.DOTALL):
            found[mark] += said
        return found

    def _fortran_marks(self) -> dict[str, str]:
        fields, pointers, copies, longest = [], [], [], 1
        for name, each in zip(self.fields(), self.columns, strict=True):
            if each.category is None:
                fields.append(f"    real(c_double) :: {name}")
                pointers.append(fields[-1])
                copies.append(f"      rows(i)%{name} = table(i)%{name}")
                continue
            longest = max([longest, *(len(text.encode()) for text in each.category.categories)])
            fields.append(f"    character(len=@LONGEST@) :: {name}")
            pointers.append(f"    type(c_ptr) :: {name}")
            text = f"texts({sum('character' in field for field in fields)}, i)"
            copies += [
                f"      {text} = trim(table(i)%{name})//c_null_char",
                f"      rows(i)%{name} = c_null_ptr",
                f'      if (table(i)%{name} /= "") rows(i)%{name} = c_loc({text}(1:1))',
            ]
        kind = FORTRAN_TYPES[self.dtype]
        # Fortran shortens a text to this length, which no category has.
        return {
            "FIELDS": "\n".join(fields).replace("@LONGEST@", str(longest + 1)),
            "POINTERS": "\n".join(pointers),
            "COPIES": "\n".join(copies),
            "LENGTH": str(longest + 2),
            "TEXTS": str(sum("character" in field for field in fields)),
            "WIDTH": str(self.width),
            "INPUT": kind,
            "KIND": kind.split("(")[1][:-1],
        }


def _about(column: Column) -> str:
    """Return a comment about a column."""
    return f"{column.title}: {column.describe()}".replace("*/", "* /").replace("\n", " ")


def _text(text: str) -> str:
    """Return a string literal of C; other characters than plain ASCII are escaped bytes."""
    plain = text.isascii() and text.isprintable() and "?" not in text
    if plain:
        return json.dumps(text)
    return '"' + "".join(f"\\{byte:03o}" for byte in text.encode()) + '"'
