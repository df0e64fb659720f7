"""The onnx package itself, which is optional: only this module imports it."""

from __future__ import annotations

from typing import Any

from caldera.base.optional import optional_import

PACKAGE = "'caldera[onnx]'"
WHERE = "caldera.onnx"

onnx: Any = optional_import("onnx", PACKAGE, WHERE)
helper: Any = optional_import("onnx.helper", PACKAGE, WHERE)
numpy_helper: Any = optional_import("onnx.numpy_helper", PACKAGE, WHERE)
backend_base: Any = optional_import("onnx.backend.base", PACKAGE, WHERE)
