"""Building the site: every page of the contents, the reference, search and style."""

from __future__ import annotations

import html
import importlib
import json
import shutil
from pathlib import Path, PurePosixPath

from pygments.formatters import HtmlFormatter

import caldera
from tools.docs.contents import page_names, reference_page, room_names, sections, source_of
from tools.docs.markdown import FindName, Rendered, coloured, rendered
from tools.docs.reference import Entry, entries, short

HERE = Path(__file__).parent


class Site:
    """All pages, and where everything is that has a name."""

    def __init__(self) -> None:
        self.entries = {room: entries(room) for room in room_names()}
        self._addresses = {
            entry.name: f"{reference_page(room)}.html#{anchor(entry)}"
            for room, found in self.entries.items()
            for entry in found
        }
        # What a room is called is the name of its page.
        rooms = [room for room in room_names() if room != "caldera"]
        self._addresses |= {short(room): f"{reference_page(room)}.html" for room in rooms}

    def address(self, name: str, page: str) -> str | None:
        """Where a page finds what is called `name`, such as `op.matmul` or `nn.Dense(10)`."""
        bare = name.partition("(")[0].removeprefix("caldera.")
        target = self._addresses.get(bare)
        return None if target is None else relative(page) + target

    def build(self, out: Path) -> list[Path]:
        """Write everything to a folder; the files that were written."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        pages = {name: self._page(name) for name in page_names()}
        pages |= {reference_page(room): self._reference(room) for room in room_names()}
        titles = {name: page.title for name, page in pages.items()}
        written = []
        for name, page in pages.items():
            path = out / f"{name}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._framed(name, page, titles))
            written.append(path)
        (out / "search.js").write_text(self._search(pages))
        style = (HERE / "style.css").read_text()
        (out / "style.css").write_text(f"{style}\n{_colours()}")
        return written

    def _page(self, name: str) -> Rendered:
        text = source_of(name).read_text() + _others(name)
        return rendered(text, lambda text: self.address(text, name))

    def _reference(self, room: str) -> Rendered:
        """The page of a room: what its module says, a list, and each entry."""
        name = reference_page(room)
        module = importlib.import_module(room)

        def find(text: str) -> str | None:
            # A docstring calls its neighbours by their own names.
            return self.address(text, name) or self.address(f"{short(room)}.{text}", name)

        about = rendered(module.__doc__ or "", find, raw_html=False)
        listed = "".join(
            f'<li><a href="#{anchor(entry)}"><code>{entry.name}</code></a> '
            f"{_summary(entry, find)}</li>"
            for entry in self.entries[room]
        )
        parts = [f"<h1><code>{room}</code></h1>", about.body, f'<ul class="names">{listed}</ul>']
        page = Rendered(room, "")
        for entry in self.entries[room]:
            page.headings.append((2, entry.name, anchor(entry)))
            parts.append(_described(entry, find))
        page.body = "\n".join(parts)
        return page

    def _framed(self, name: str, page: Rendered, titles: dict[str, str]) -> str:
        up = relative(name)
        here = [(level, text, place) for level, text, place in page.headings if level == 2]
        listed = "".join(
            f'<li><a href="#{place}">{html.escape(text)}</a></li>' for _, text, place in here
        )
        aside = f"<aside><p>On this page</p><ul>{listed}</ul></aside>" if len(here) > 1 else ""
        template = (HERE / "page.html").read_text()
        values = {
            "title": html.escape(page.title),
            "up": up,
            "contents": _contents(name, titles),
            "body": page.body,
            "aside": aside,
            "turn": _neighbours(name, titles),
            "version": caldera.__version__,
        }
        for key, value in values.items():
            template = template.replace(f"{{{{{key}}}}}", value)
        return template

    def _search(self, pages: dict[str, Rendered]) -> str:
        found = [
            [text, f"{name}.html" + (f"#{place}" if level > 1 else ""), page.title]
            for name, page in pages.items()
            for level, text, place in page.headings
        ]
        return f"const INDEX = {json.dumps(found)};\n" + (HERE / "search.js").read_text()


def _others(name: str) -> str:
    """For the page that begins a folder: a list of the others there, by their titles."""
    place = PurePosixPath(name)
    others = [PurePosixPath(each) for each in page_names() if each != name]
    beside = [each for each in others if each.parent == place.parent != PurePosixPath()]
    if place.name != "index" or not beside:
        return ""
    titles = {each: source_of(str(each)).read_text().partition("\n")[0] for each in beside}
    lines = [f"- [{title.removeprefix('# ')}]({each.name}.md)" for each, title in titles.items()]
    return "\n## The other pages of this section\n\n" + "\n".join(lines) + "\n"


def anchor(entry: Entry) -> str:
    """Where an entry stands on its page."""
    return entry.name.rpartition(".")[2]


def relative(page: str) -> str:
    """The way from a page to the top of the site."""
    return "../" * (len(PurePosixPath(page).parts) - 1)


def _contents(name: str, titles: dict[str, str]) -> str:
    up = relative(name)
    parts = []
    for section in sections():
        names = [*section.pages, *[reference_page(room) for room in section.rooms]]
        items = "".join(
            f'<li><a href="{up}{each}.html"{_current(each == name)}>'
            f"{html.escape(titles[each])}</a></li>"
            for each in names
        )
        parts.append(f"<p>{html.escape(section.title)}</p><ul>{items}</ul>")
    return "".join(parts)


def _current(is_here: bool) -> str:
    return ' aria-current="page"' if is_here else ""


def _neighbours(name: str, titles: dict[str, str]) -> str:
    """Links to the page before and the page after."""
    names = list(titles)
    place = names.index(name)
    up = relative(name)
    before = names[place - 1] if place else ""
    after = names[place + 1] if place + 1 < len(names) else ""
    parts = []
    if before:
        parts.append(f'<a rel="prev" href="{up}{before}.html">← {html.escape(titles[before])}</a>')
    if after:
        parts.append(f'<a rel="next" href="{up}{after}.html">{html.escape(titles[after])} →</a>')
    return "".join(parts)


def _summary(entry: Entry, find: FindName) -> str:
    first = entry.text.partition("\n\n")[0].replace("\n", " ")
    return rendered(first, find, raw_html=False).body.removeprefix("<p>").partition("</p>")[0]


def _described(entry: Entry, find: FindName) -> str:
    text = rendered(entry.text, find, raw_html=False).body
    members = "".join(
        f'<div class="member" id="{anchor(entry)}.{member.name}">'
        f'<pre class="signature"><code>{coloured(member.signature, "python")}</code></pre>'
        f"{rendered(member.text, find, raw_html=False).body}</div>"
        for member in entry.members
    )
    return (
        f'<section class="entry"><h2 id="{anchor(entry)}">{html.escape(entry.name)} '
        f'<span class="kind">{entry.kind}</span>'
        f'<a class="anchor" href="#{anchor(entry)}" aria-label="Link to this name">#</a></h2>'
        f'<pre class="signature"><code>{coloured(entry.signature, "python")}</code></pre>'
        f"{text}{members}</section>"
    )


def _colours() -> str:
    """The colours of code, for light and for dark screens."""
    light = HtmlFormatter(style="default").get_style_defs("pre")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
