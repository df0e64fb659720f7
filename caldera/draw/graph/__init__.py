"""Pictures of programs: a self-contained SVG that any browser opens."""

from __future__ import annotations

from caldera.draw.graph.render import graph_svg, save_graph

__all__ = ["graph_svg", "save_graph"]
