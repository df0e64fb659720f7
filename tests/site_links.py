"""Whether every link inside the site leads somewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.repeated: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("id")
        if name:
            if name in self.anchors:
                self.repeated.append(name)
            self.anchors.add(name)
        for key in ("href", "src"):
            value = given.get(key)
            if value:
                self.links.append(value)


def broken(site: Path) -> list[str]:
    """What is wrong: links to what is not there, and anchors that are there twice.

    (Not those of the page for what is not found: it stands for any address.)
    """
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site)
        wrong += [f"{name}: the anchor {each} is there twice" for each in page.repeated]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                if parts.scheme not in ("https", "mailto"):
                    wrong.append(f"{name}: {link} is not https")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                wrong.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{name}: {link} has no such place")
    return wrong
