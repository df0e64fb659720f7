"""Readers of Parquet and Feather files, whose few bytes may expand to very many values.

A run of equal values takes no space in such a file, so its size does not bound the memory of the
table. The values and buffers that the file declares are counted before any is allocated, and
compared with the limit of all files (`base.file_access`). Texts remain in dictionaries: a long text
that occurs in each row is in memory once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from caldera.base.arguments import require
from caldera.base.file_access import Demand
from caldera.base.registry import optional_import
from caldera.errors import CalderaError, DataError

PARQUET = (".parquet", ".pq")
_NUMBERS = ("INT32", "INT64", "FLOAT", "DOUBLE")
_A_NUMBER, _A_TEXT, _A_VALUE = 24, 32, 64
"""Bytes that a value takes: as Arrow has it, as an element of a list, and in the column."""
_UNPACKED, _PACKED = 2, 3
"""Fields of a page's header in Parquet: its bytes in memory and in the file."""
_MAGIC = b"ARROW1"
_TAIL = struct.Struct("<i6s")
_BLOCK, _PAIR = struct.Struct("<qi4xq"), struct.Struct("<qq")
_DICTIONARIES, _BATCHES = 2, 3
"""Fields of the footer."""


def arrow_columns(content: bytes, suffix: str, where: str) -> dict[str, Any]:
    """Return the columns of a file of Parquet, or of Feather (Arrow's own)."""
    read = _parquet if suffix in PARQUET else _feather
    try:
        return table_columns(read(content, where))
    except CalderaError:
        raise
    except Exception as error:  # Arrow raises exceptions of many types
        said = str(error).splitlines() or [type(error).__name__]
        raise DataError.build(where, expected=f"a {suffix} file", got=said[0][:160]) from None


def table_columns(table: Any) -> dict[str, Any]:
    """Return the columns of a table of Arrow as arrays or lists."""
    return {
        name: _values(column)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def _values(column: Any) -> Any:
    kind = str(column.type)
    if kind.startswith("extension"):
        column, kind = column.cast(column.type.storage_type), str(column.type.storage_type)
    if column.null_count == 0 and kind in ("double", "float", "int64", "int32"):
        return column.to_numpy()
    if kind.startswith(("list", "large_list", "fixed_size_list", "struct", "map")):
        # Tables do not support nested values; they are rejected later, so they must not take memory
        # here.
        return [[]] * len(column)
    return [value for chunk in column.chunks for value in _listed(chunk)]


def _listed(chunk: Any) -> list[Any]:
    if not str(chunk.type).startswith("dictionary"):
        return list(chunk.to_pylist())
    known = chunk.dictionary.to_pylist()
    return [None if place is None else known[place] for place in chunk.indices.to_pylist()]


def _parquet(content: bytes, where: str) -> Any:
    parquet = optional_import("pyarrow.parquet", "pyarrow", where)
    about = parquet.ParquetFile(BytesIO(content))
    leaves = [about.schema.column(i) for i in range(len(about.schema))]
    nested = next((leaf.path for leaf in leaves if leaf.path != leaf.name), None)
    if nested is not None:
        # Tables do not support lists, and a list in a single row may have any number of values.
        raise DataError.build(
            f"{where}, column {nested.partition('.')[0]!r}",
            expected="numbers, texts, dates and booleans",
            got="lists or records",
            hint="split it into several columns first",
        )
    demand, rows = Demand(where, len(content)), about.metadata.num_rows
    for leaf in leaves:
        demand.add(rows * _bytes_a_value(leaf))
    for number in range(about.metadata.num_row_groups):
        group = about.metadata.row_group(number)
        for place in range(group.num_columns):
            for wanted in _pages(content, group.column(place)):
                demand.add(wanted)
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    return parquet.ParquetFile(BytesIO(content), read_dictionary=texts).read()


def _pages(content: bytes, chunk: Any) -> Iterator[int]:
    """The bytes that the pages of a column take, by their own headers: the footer may say less."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        page, at = _thrift_fields(content, at)
        yield page[_UNPACKED]
        at += max(page[_PACKED], 0)


def _thrift_fields(raw: bytes, at: int) -> tuple[dict[int, int], int]:
    """Return the integers of a Thrift compact structure by field, and the end offset."""
    fields: dict[int, int] = {}
    number = 0
    while head := raw[at]:
        at += 1
        number, kind = number + (head >> 4), head & 15
        if head < 16:
            number, at = _thrift_integer(raw, at)
        if kind in (1, 2):  # a truth value
            continue
        if kind in (4, 5, 6):
            fields[number], at = _thrift_integer(raw, at)
        elif kind == 8:  # bytes
            length, at = _thrift_integer(raw, at, signed=False)
            at += length
        elif kind == 12:
            _, at = _thrift_fields(raw, at)
        else:
            raise ValueError(f"a field of kind {kind} in the header of a page")
    return fields, at + 1


def _thrift_integer(raw: bytes, at: int, *, signed: bool = True) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if raw[at - 1] < 128:
            return (value >> 1 ^ -(value & 1) if signed else value), at
        if shift > 63:
            raise ValueError("a number of more than 64 bits in the header of a page")


def _bytes_a_value(leaf: Any) -> int:
    if leaf.physical_type == "BYTE_ARRAY":
        return _A_TEXT
    plain = leaf.physical_type in _NUMBERS and leaf.logical_type.type in ("NONE", "INT")
    return _A_NUMBER if plain else _A_VALUE + max(leaf.length, 0)


def _feather(content: bytes, where: str) -> Any:
    reader = optional_import("pyarrow.feather", "pyarrow", where)
    require(
        content.startswith(_MAGIC),
        where,
        "Arrow's file format (Feather 2)",
        "another one",
        error=DataError,
    )
    demand = Demand(where, len(content))
    for wanted in _buffers(content):
        demand.add(wanted)
    found = reader.read_table(BytesIO(content))
    # Offsets and indices are read as they stand: a wrong one would lead out of the file.
    found.validate(full=True)
    return found


def _buffers(content: bytes) -> Iterator[int]:
    """Yield the bytes that the batches of a file take, by their headers.

    The footer names the batches. It may name one several times, which is then read as often.
    """
    end = len(content) - _TAIL.size
    size, _ = _TAIL.unpack_from(content, end)
    foot = content[end - size : end]
    root = _target(foot, 0)
    for field in (_DICTIONARIES, _BATCHES):
        for start, length, _ in _structs(foot, root, field, _BLOCK):
            # Behind the length of the header; files before version 0.15 have no mark before it.
            marked = content.startswith(b"\xff\xff\xff\xff", start)
            head = content[start + (8 if marked else 4) : start + length]
            batch = _target(head, _field(head, _target(head, 0), 2))
            if field == _DICTIONARIES:
                batch = _target(head, _field(head, batch, 1))
            for elements, _ in _structs(head, batch, 1, _PAIR):
                yield elements * _A_TEXT
            is_packed = _field(head, batch, 3) > 0
            for at, held in _structs(head, batch, 2, _PAIR):
                # In front of each buffer is its size once it is unpacked; -1 if it is as it is.
                packed = is_packed and held >= 8
                own = struct.unpack_from("<q", content, start + length + at)[0] if packed else -1
                yield max(own, held)


def _field(head: bytes, table: int, number: int) -> int:
    """Return the offset of a field of a FlatBuffers table; 0 if the table does not have it."""
    names = table - struct.unpack_from("<i", head, table)[0]
    size, at = struct.unpack_from("<H", head, names)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", head, names + at)[0] if at < size else 0
    return table + offset if offset else 0


def _target(head: bytes, at: int) -> int:
    """Return the target of the relative offset stored at `at`."""
    return int(at + struct.unpack_from("<I", head, at)[0])


def _structs(
    head: bytes, table: int, number: int, form: struct.Struct
) -> Iterator[tuple[int, ...]]:
    """Yield a field that is a list of structures of numbers."""
    if place := _field(head, table, number):
        first = _target(head, place)
        count = struct.unpack_from("<I", head, first)[0]
        for i in range(count):
            yield form.unpack_from(head, first + 4 + form.size * i)
