"""Pictures of programs: a self-contained SVG that any browser opens."""

from __future__ import annotations

from caldera.graph.picture.page import picture
from caldera.graph.picture.save import save

__all__ = ["picture", "save"]
