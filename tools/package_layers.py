"""Draw the layers of packages for `docs/architecture.md`: `python -m tools.package_layers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs/assets/package-layers.svg"
ABOUT = {
    1: "exceptions",
    2: "arguments, settings, files",
    3: "memory, tensors, the graph",
    4: "ranks, files, pictures",
    5: "operations on devices",
    6: "from expressions to plans",
    7: "what a user writes",
    8: "networks, optimizers, data",
    9: "training and matrices",
    10: "ranks, exchange, services",
    11: "search and measurement",
    12: "estimators and commands",
}
_WIDTH, _ROW, _LEFT, _LETTER = 860, 46, 250, 7.6


Levels = Sequence[Sequence[str]]


def picture(layers: Mapping[int, Sequence[str]], inner: Mapping[str, Levels]) -> str:
    """Return an SVG of the layers from the highest to the lowest, with the packages on each.

    `inner` has the levels inside a package, from the lowest to the highest.
    """
    rows = {layer: _lines(packages) for layer, packages in layers.items()}
    height = sum(_ROW * len(lines) for lines in rows.values()) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="ui-monospace, Menlo, monospace" font-size="12.5">',
        "<title>Layers of packages: a lower layer never imports a higher one</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#f6f7fb"/>',
    ]
    top = 8
    for layer in sorted(rows, reverse=True):
        parts += _layer(layer, rows[layer], top, inner)
        top += _ROW * len(rows[layer])
    return "\n".join([*parts, "</svg>", ""])


def _lines(packages: Sequence[str]) -> list[list[str]]:
    """The packages in as many lines as they need."""
    lines: list[list[str]] = [[]]
    used = 0.0
    for package in packages:
        wide = _wide(package)
        if used + wide > _WIDTH - _LEFT - 16 and lines[-1]:
            lines.append([])
            used = 0.0
        lines[-1].append(package)
        used += wide
    return lines


def _wide(package: str) -> float:
    return len(package) * _LETTER + 28


def _layer(
    layer: int, lines: Sequence[Sequence[str]], top: int, inner: Mapping[str, Levels]
) -> list[str]:
    shade = "#e3e8f7" if layer % 2 else "#eef1fa"
    parts = [
        f'<g id="layer-{layer}">',
        f'<rect x="8" y="{top + 2}" width="{_WIDTH - 16}" height="{_ROW * len(lines) - 4}" rx="6" '
        f'fill="{shade}"/>',
        f'<text x="22" y="{top + 28}" font-weight="bold" fill="#3f51b5">{layer}</text>',
        f'<text x="50" y="{top + 28}" font-family="sans-serif" fill="#3a4054">'
        f"{escape(ABOUT[layer])}</text>",
    ]
    for number, line in enumerate(lines):
        left = float(_LEFT)
        y = top + _ROW * number
        for package in line:
            width = _wide(package) - 10
            parts += [
                f'<rect x="{left:g}" y="{y + 9}" width="{width:.1f}" height="28" rx="5" '
                'fill="#ffffff" stroke="#8e9bd0"/>',
                f'<text class="package" x="{left + 9:g}" y="{y + 28}" fill="#1b1f2e">'
                f"{package}</text>",
            ]
            left = round(left + _wide(package), 1)
        for package in line:
            if package in inner:
                levels = " \u2192 ".join(", ".join(level) for level in inner[package])
                parts.append(
                    f'<text x="{left + 4:g}" y="{y + 28}" fill="#3a4054" '
                    f'font-family="sans-serif">{package}: {levels}</text>'
                )
    return [*parts, "</g>"]


def main() -> None:
    """Write the picture of the layers that the test checks."""
    from tests.test_package_layers import INNER, LAYERS

    PICTURE.write_text(picture(LAYERS, INNER))


if __name__ == "__main__":
    main()
