"""The style sheet of the page: light or dark, as the reader's system has it or the button says."""

from __future__ import annotations

from caldera.draw.svg import MONO, SANS
from caldera.draw.theme import DARK, LIGHT, variables

_RULES = f"""
* {{ box-sizing: border-box; }}
html {{ scroll-behavior: smooth; scroll-padding-top: 64px; }}
body {{ margin: 0; background: var(--paper); color: var(--text); font: 14px/1.5 {SANS}; }}
header {{ position: sticky; top: 0; z-index: 2; background: var(--card);
  border-bottom: 1px solid var(--line); }}
header > div {{ max-width: 1200px; margin: 0 auto; padding: 10px 20px; display: flex;
  align-items: center; gap: 6px 22px; flex-wrap: wrap; }}
header .brand {{ font-weight: 700; letter-spacing: .01em; }}
nav {{ display: flex; gap: 4px 16px; flex-wrap: wrap; flex: 1; }}
nav a {{ color: var(--quiet); text-decoration: none; }}
nav a:hover, nav a:focus-visible {{ color: var(--text); text-decoration: underline; }}
button {{ font: inherit; color: var(--text); background: var(--card); cursor: pointer;
  border: 1px solid var(--line); border-radius: 6px; padding: 3px 10px; }}
button:hover {{ background: var(--soft); }}
button[aria-pressed=true] {{ background: var(--line0); border-color: var(--line0);
  color: var(--on-strong); }}
main {{ max-width: 1200px; margin: 0 auto; padding: 26px 20px 60px; }}
h1 {{ font-size: 26px; line-height: 1.2; margin: 0 0 4px; }}
h2 {{ font-size: 19px; margin: 44px 0 4px; }}
h3 {{ font-size: 14px; margin: 0 0 2px; }}
p {{ margin: 0 0 12px; }}
.quiet, footer {{ color: var(--quiet); }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0 0; }}
.tile, .card {{ background: var(--card); border: 1px solid var(--line); border-radius: 8px; }}
.tile {{ padding: 12px 14px; }}
.tile b {{ display: block; font-size: 22px; line-height: 1.25; font-weight: 600; }}
.tile span {{ color: var(--quiet); }}
.card {{ padding: 14px 16px; margin: 0 0 14px; }}
.card > p.quiet {{ margin: 0 0 10px; }}
.note {{ border-left: 4px solid var(--line1); }}
.columns {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
  gap: 14px; align-items: start; }}
.columns > * {{ margin: 0; min-width: 0; }}
.columns + .card {{ margin-top: 14px; }}
.masonry {{ columns: 2 440px; column-gap: 14px; }}
.masonry > * {{ break-inside: avoid; }}
.beside {{ display: flex; flex-wrap: wrap; gap: 14px; align-items: flex-start; }}
.beside > * {{ flex: 1 1 300px; margin: 0; min-width: 0; }}
.beside > .confusion {{ flex: 0 1 auto; max-width: 100%; }}
.chart {{ display: block; width: 100%; max-width: 593px; height: auto; }}
figure {{ margin: 0; }}
figcaption {{ color: var(--quiet); padding: 8px 4px 0; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: 5px 10px 5px 0;
  border-top: 1px solid var(--line); }}
.bar + .scroll tr:first-child td {{ border-top: none; }}
thead th {{ border-top: none; color: var(--quiet); font-weight: 600; white-space: nowrap; }}
th.number, td.number {{ text-align: right; white-space: nowrap; padding-left: 10px; }}
.facts th {{ font-weight: 400; color: var(--quiet); width: 42%; }}
.facts td {{ overflow-wrap: anywhere; }}
.facts tr:first-child > * {{ border-top: none; }}
td code {{ font: 12px {MONO}; }}
td small {{ display: block; color: var(--quiet); font-size: 12px; }}
td:nth-child(2) small {{ white-space: nowrap; }}
.bar {{ display: flex; height: 26px; border-radius: 5px; overflow: hidden; background: var(--soft);
  margin: 6px 0 10px; }}
.bar i {{ display: block; min-width: 1px; }}
i.key {{ display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 8px; }}
.share {{ display: block; width: 90px; height: 8px; border-radius: 4px; background: var(--soft);
  margin-top: 6px; overflow: hidden; }}
.share i {{ display: block; height: 100%; background: var(--line0); }}
.confusion table {{ width: auto; border-collapse: separate; border-spacing: 2px; }}
.confusion th, .confusion td {{ border: none; padding: 0 6px; text-align: center; height: 32px;
  min-width: 36px; vertical-align: middle; white-space: nowrap; font-weight: 400; }}
.confusion th {{ color: var(--quiet); }}
.confusion tbody th, .confusion tfoot th {{ text-align: right; }}
.confusion td {{ border-radius: 4px; width: 42px; }}
.confusion td.deep {{ color: #ffffff; }}
.confusion td.zero {{ color: transparent; background: var(--soft); }}
.confusion td.margin {{ color: var(--quiet); }}
details {{ margin: 10px 0 0; }}
summary {{ cursor: pointer; color: var(--quiet); }}
.graph {{ position: relative; height: 620px; border: 1px solid var(--line); border-radius: 8px;
  background: var(--card); overflow: hidden; }}
.graph svg {{ display: block; width: 100%; height: 100%; cursor: grab; touch-action: none; }}
.graph svg.moving {{ cursor: grabbing; }}
.tools {{ display: flex; gap: 6px; flex-wrap: wrap; margin: 8px 0; align-items: center; }}
.tools[hidden] {{ display: none; }}
.tools span {{ margin-left: 8px; }}
.graph text {{ font-family: {SANS}; fill: var(--text); }}
.graph text.detail {{ font-family: {MONO}; fill: var(--quiet); }}
.graph text.bold {{ font-weight: 700; }}
.graph text.quiet {{ fill: var(--quiet); }}
.graph text.light {{ fill: var(--on-strong); }}
.graph .arrow {{ fill: none; stroke-width: 1.3; stroke-opacity: .72; }}
.graph .mark:target .shape {{ stroke: var(--target); stroke-width: 4; }}
.graph a:hover .shape {{ stroke-width: 2.4; }}
footer {{ margin-top: 44px; border-top: 1px solid var(--line); padding-top: 12px; }}
@media print {{ header, .tools {{ display: none; }} .card, .graph {{ break-inside: avoid; }} }}
"""

STYLE = (
    f":root{{color-scheme:light;{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{variables(DARK)}}}"
    f":root[data-theme=light]{{color-scheme:light;{variables(LIGHT)}}}}}"
    f":root[data-theme=dark]{{color-scheme:dark;{variables(DARK)}}}"
    f"{_RULES}"
)
