"""Parquet and Feather files, whose few bytes may stand for a great many values.

A run of equal values takes no room in such a file, so its size says nothing about the memory that
a table takes. The values and buffers that the file declares are counted before any is made, and
compared with the limit of all files (`base.file_access`). Texts stay in dictionaries: a long one
that occurs in each row is in memory once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from caldera.base.file_access import Demand
from caldera.base.registry import optional_import
from caldera.errors import CalderaError, DataError

PARQUET = (".parquet", ".pq")
_NUMBERS = ("INT32", "INT64", "FLOAT", "DOUBLE")
_A_NUMBER, _A_TEXT, _A_VALUE = 24, 32, 64
"""Bytes that a value takes: as Arrow has it, as an element of a list, and in the column."""
_MAGIC = b"ARROW1\0\0"
_BATCH, _DICTIONARY = 3, 2


def arrow_columns(content: bytes, suffix: str, where: str) -> dict[str, Any]:
    """The columns of a file of Parquet, or of Feather (Arrow's own)."""
    read = _parquet if suffix in PARQUET else _feather
    try:
        return table_columns(read(content, where))
    except CalderaError:
        raise
    except Exception as error:  # those of Arrow are of many kinds
        said = str(error).splitlines() or [type(error).__name__]
        raise DataError.build(where, expected=f"a {suffix} file", got=said[0][:160]) from None


def table_columns(table: Any) -> dict[str, Any]:
    """The columns of a table of Arrow as arrays or lists."""
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
        # No column of a table can hold them; what is refused must not take any memory first.
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
        # No column of a table can hold lists, and a row of them may have any number of values.
        raise DataError.build(
            f"{where}, column {nested.partition('.')[0]!r}",
            expected="numbers, texts, dates and truth values",
            got="lists or records",
            hint="make several columns of it first",
        )
    demand, rows = Demand(where, len(content)), about.metadata.num_rows
    for leaf in leaves:
        demand.add(rows * _bytes_a_value(leaf))
    for number in range(about.metadata.num_row_groups):
        demand.add(about.metadata.row_group(number).total_byte_size)
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    return parquet.ParquetFile(BytesIO(content), read_dictionary=texts).read()


def _bytes_a_value(leaf: Any) -> int:
    if leaf.physical_type == "BYTE_ARRAY":
        return _A_TEXT
    plain = leaf.physical_type in _NUMBERS and leaf.logical_type.type in ("NONE", "INT")
    return _A_NUMBER if plain else _A_VALUE + max(leaf.length, 0)


def _feather(content: bytes, where: str) -> Any:
    reader = optional_import("pyarrow.feather", "pyarrow", where)
    if content.startswith(_MAGIC):
        demand = Demand(where, len(content))
        for wanted in _buffers(content, where):
            demand.add(wanted)
    return reader.read_table(BytesIO(content))


def _buffers(content: bytes, where: str) -> Iterator[int]:
    """The bytes that the batches of a file take, by their headers."""
    arrow = optional_import("pyarrow", "pyarrow", where)
    messages = arrow.ipc.MessageReader.open_stream(arrow.py_buffer(content)[len(_MAGIC) :])
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        head, body = message.metadata.to_pybytes(), memoryview(message.body or b"")
        root = _target(head, 0)
        kind = head[_field(head, root, 1)]
        if kind not in (_BATCH, _DICTIONARY):
            continue
        batch = _target(head, _field(head, root, 2))
        if kind == _DICTIONARY:
            batch = _target(head, _field(head, batch, 1))
        for length, _ in _pairs(head, batch, 1):
            yield length * _A_TEXT
        is_packed = _field(head, batch, 3) > 0
        for start, length in _pairs(head, batch, 2):
            # In front of each buffer is its size once it is unpacked; -1 if it is as it is.
            own = struct.unpack_from("<q", body, start)[0] if is_packed and length >= 8 else -1
            yield max(own, length)


def _field(head: bytes, table: int, number: int) -> int:
    """Where a field of a table of FlatBuffers is; 0 if the table does not have it."""
    names = table - struct.unpack_from("<i", head, table)[0]
    size, at = struct.unpack_from("<H", head, names)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", head, names + at)[0] if at < size else 0
    return table + offset if offset else 0


def _target(head: bytes, at: int) -> int:
    """Where the offset that is stored there leads."""
    return int(at + struct.unpack_from("<I", head, at)[0])


def _pairs(head: bytes, table: int, number: int) -> Iterator[tuple[int, int]]:
    """A field that is a list of pairs of 64-bit numbers."""
    if place := _field(head, table, number):
        first = _target(head, place)
        count = struct.unpack_from("<I", head, first)[0]
        for i in range(count):
            yield struct.unpack_from("<qq", head, first + 4 + 16 * i)
