"""Exchange with other frameworks through ONNX.

    cd.onnx.export(model, "model.onnx")
    model = cd.onnx.load("model.onnx")

`Backend` is the interface through which ONNX's own tests run; `python -m tools.onnx_score` runs
them. Needs `pip install 'caldera[onnx]'`.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.onnx.model import ImportedModel, load
from caldera.onnx.runtime import Backend
from caldera.onnx.writing import export

__all__ = ["Backend", "ImportedModel", "export", "load"]

_guard(globals(), own_words=False)
