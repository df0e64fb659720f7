"""Pictures of programs: a self-contained SVG that any browser opens."""

from __future__ import annotations

from caldera.draw.graph.render import draw_graph, graph_svg

__all__ = ["draw_graph", "graph_svg"]
