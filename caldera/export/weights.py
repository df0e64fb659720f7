"""Variables of a library: their initial values, and weights by name."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

from caldera.export.image import VariableLayout
from caldera.io import save_safetensors
from caldera.train.model import Model
from caldera.train.saving.snapshot import model_variables


@dataclass(frozen=True)
class WeightTable:
    """The memory of all variables, and the header of a safetensors file with the weights.

    `entries` has, in the order of the file, the beginning of a weight's entry in the header, its
    offset in the memory, and its size in bytes.
    """

    content: bytes
    header: bytes
    entries: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, model: Model, layout: VariableLayout) -> WeightTable:
        """Return the weights of a model in this layout, including weights that no plan reads."""
        variables = model_variables(model)
        for each in variables.values():
            layout.add(each.symbol)
        content = bytearray(layout.nbytes)
        for symbol, offset in layout.offsets.items():
            value = symbol.value.numpy().tobytes()
            content[offset : offset + len(value)] = value
        file = io.BytesIO()
        save_safetensors(file, {name: each.numpy() for name, each in variables.items()})
        size = 8 + int.from_bytes(file.getvalue()[:8], "little")
        header = file.getvalue()[:size]
        entries = []
        for name, entry in json.loads(header[8:]).items():
            begin, end = entry.pop("data_offsets")
            text = json.dumps({name: entry}, ensure_ascii=False, separators=(",", ":"))
            started = f'{text[1:-2]},"data_offsets":['
            assert f"{started}{begin},{end}]" in header[8:].decode()
            entries.append((started, layout.offsets[variables[name].symbol], end - begin))
        return cls(bytes(content), header, tuple(entries))

    def table(self) -> str:
        """Return the entries as rows of a table in C."""
        # An escaped line break or quote of JSON is escaped again, as C reads escapes too.
        rows = [
            f"{{{json.dumps(text, ensure_ascii=False)}, {a}, {n}}}" for text, a, n in self.entries
        ]
        return ",\n    ".join(rows) or '{"", 0, 0}'
