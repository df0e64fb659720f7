"""`python -m tools.floors`: the picture in `docs/architecture.md`, from the floors of the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs/assets/floors.svg"
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


def picture(floors: Mapping[int, Sequence[str]], inner: Mapping[str, Levels]) -> str:
    """Return an SVG of the floors from the highest to the lowest, with the packages on each.

    `inner` has the levels inside a package, from the lowest to the highest.
    """
    rows = {floor: _lines(rooms) for floor, rooms in floors.items()}
    height = sum(_ROW * len(lines) for lines in rows.values()) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="ui-monospace, Menlo, monospace" font-size="12.5">',
        "<title>The floors of the house: a lower one never imports a higher one</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#f6f7fb"/>',
    ]
    top = 8
    for floor in sorted(rows, reverse=True):
        parts += _floor(floor, rows[floor], top, inner)
        top += _ROW * len(rows[floor])
    return "\n".join([*parts, "</svg>", ""])


def _lines(rooms: Sequence[str]) -> list[list[str]]:
    """The rooms in as many lines as they need."""
    lines: list[list[str]] = [[]]
    used = 0.0
    for room in rooms:
        wide = _wide(room)
        if used + wide > _WIDTH - _LEFT - 16 and lines[-1]:
            lines.append([])
            used = 0.0
        lines[-1].append(room)
        used += wide
    return lines


def _wide(room: str) -> float:
    return len(room) * _LETTER + 28


def _floor(
    floor: int, lines: Sequence[Sequence[str]], top: int, inner: Mapping[str, Levels]
) -> list[str]:
    shade = "#e3e8f7" if floor % 2 else "#eef1fa"
    parts = [
        f'<g id="floor-{floor}">',
        f'<rect x="8" y="{top + 2}" width="{_WIDTH - 16}" height="{_ROW * len(lines) - 4}" rx="6" '
        f'fill="{shade}"/>',
        f'<text x="22" y="{top + 28}" font-weight="bold" fill="#3f51b5">{floor}</text>',
        f'<text x="50" y="{top + 28}" font-family="sans-serif" fill="#3a4054">'
        f"{escape(ABOUT[floor])}</text>",
    ]
    for number, line in enumerate(lines):
        left = float(_LEFT)
        for room in line:
            y = top + _ROW * number
            parts += [
                f'<rect x="{left:g}" y="{y + 9}" width="{_wide(room) - 10:.1f}" height="28" rx="5" '
                'fill="#ffffff" stroke="#8e9bd0"/>',
                f'<text class="room" x="{left + 9:g}" y="{y + 28}" fill="#1b1f2e">{room}</text>',
            ]
            left = round(left + _wide(room), 1)
        for room in line:
            if room in inner:
                levels = " \u2192 ".join(", ".join(level) for level in inner[room])
                parts.append(
                    f'<text x="{left + 4:g}" y="{top + _ROW * number + 28}" fill="#3a4054" '
                    f'font-family="sans-serif">{room}: {levels}</text>'
                )
    return [*parts, "</g>"]


def main() -> None:
    """Write it."""
    from tests.test_floors import FLOORS, INNER

    PICTURE.write_text(picture(FLOORS, INNER))


if __name__ == "__main__":
    main()
