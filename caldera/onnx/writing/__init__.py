"""From a model of Caldera to a file of ONNX."""

from __future__ import annotations

from caldera.onnx.writing.export import export

__all__ = ["export"]
