"""Pictures of programs: a self-contained SVG that any browser opens."""

from __future__ import annotations

from caldera.draw.graph.render import picture
from caldera.draw.graph.save import save

__all__ = ["picture", "save"]
