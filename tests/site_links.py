"""Whether every link inside the site leads somewhere."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Of a hundred thousand tags a few have what is looked for: a parser of HTML takes twenty times as
# long to tell what they are.
_NO_TAGS = re.compile(r"<!--.*?-->|(?<=<script)\b.*?</script>|(?<=<style)\b.*?</style>", re.DOTALL)
_TAG = re.compile(r"""<[a-zA-Z](?:[^>"']|"[^"]*"|'[^']*')*""")
_ATTRIBUTE = re.compile(r"""\s(id|href|src)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


class _Page:
    """The anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.repeated: list[str] = []
        text = path.read_text()
        scripts = re.findall(r"<script\b[^>]*>", text)
        for tag in [*_TAG.findall(_NO_TAGS.sub("", text)), *scripts]:
            for key, *values in _ATTRIBUTE.findall(tag):
                self._add(key, html.unescape("".join(values)))

    def _add(self, key: str, value: str) -> None:
        if key != "id":
            if value:
                self.links.append(value)
        elif value in self.anchors:
            self.repeated.append(value)
        else:
            self.anchors.add(value)


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
            target = os.path.normpath(path.parent / unquote(parts.path)) if parts.path else path
            if not os.path.isfile(target):
                wrong.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and unquote(parts.fragment) not in pages[Path(target)].anchors:
                wrong.append(f"{name}: {link} has no such place")
    return wrong
