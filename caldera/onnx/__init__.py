"""Exchange with other frameworks through ONNX."""

from __future__ import annotations

from caldera.onnx.backend import Backend

__all__ = ["Backend"]
