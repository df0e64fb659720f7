"""Markdown to HTML: headings with anchors, coloured code, and names of the API as links."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

FindName = Callable[[str], str | None]
"""The address of what a name such as `op.matmul` stands for; None if it is none of ours."""


@dataclass
class Rendered:
    """A page in HTML, with its title and its headings: level, text, anchor."""

    title: str
    body: str
    headings: list[tuple[int, str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    """A block of code: its language, what else stands beside that, and the code."""

    language: str
    remark: str
    code: str
    line: int
    follows: bool
    """Whether nothing stands between the block before and this one."""


def parser(*, raw_html: bool = True) -> MarkdownIt:
    """The dialect in which everything is written."""
    return MarkdownIt("commonmark", {"html": raw_html, "highlight": coloured}).enable("table")


def coloured(code: str, language: str, _: str = "") -> str:
    """Code as HTML with classes for its colours."""
    known = {"console": "console", "pycon": "pycon", "python": "python", "toml": "toml"}
    lexer = get_lexer_by_name(known.get(language, "text"), stripnl=False)
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


def slug(text: str) -> str:
    """The anchor of a heading.

    >>> slug("Streams, and `data.Shards`!")
    'streams-and-datashards'
    """
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip())


def rendered(text: str, find: FindName, *, raw_html: bool = True) -> Rendered:
    """A page from its Markdown."""
    markdown = parser(raw_html=raw_html)
    tokens = markdown.parse(text)
    page = Rendered("", "")
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            inline = tokens[position + 1]
            title = "".join(each.content for each in inline.children or ())
            anchor = slug(title)
            token.attrSet("id", anchor)
            level = int(token.tag[1])
            page.headings.append((level, title, anchor))
            if level == 1:
                page.title = title
            else:
                inline.children = [*(inline.children or ()), *_permalink(anchor)]
        if token.type == "inline":
            token.children = [_linked(each, find) for each in _outside_links(token.children or ())]
    page.body = markdown.renderer.render(tokens, markdown.options, {})
    return page


def blocks(text: str) -> list[Block]:
    """All blocks of code of a page."""
    found = []
    before: Token | None = None
    for token in parser().parse(text):
        if token.type == "fence":
            language, _, remark = token.info.partition(" ")
            line = token.map[0] + 1 if token.map else 0
            follows = before is not None and before.type == "fence"
            found.append(Block(language, remark.strip(), token.content, line, follows))
        before = token
    return found


def _permalink(anchor: str) -> list[Token]:
    token = Token("html_inline", "", 0)
    token.content = f' <a class="anchor" href="#{anchor}" aria-label="Link to this part">#</a>'
    return [token]


def _outside_links(children: Sequence[Token]) -> list[Token]:
    """The tokens of a line; what is a link already is marked, so that it stays one link."""
    depth = 0
    for token in children:
        depth += token.nesting if token.type in ("link_open", "link_close") else 0
        token.meta["in_link"] = depth > 0
        href = token.attrGet("href") if token.type == "link_open" else None
        if isinstance(href, str) and "://" not in href:
            token.attrSet("href", re.sub(r"\.md(?=#|$)", ".html", href))
    return list(children)


def _linked(token: Token, find: FindName) -> Token:
    """Code that names something of the API, as a link to its description."""
    if token.type != "code_inline" or token.meta.get("in_link"):
        return token
    address = find(token.content)
    if address is None:
        return token
    link: Any = Token("html_inline", "", 0)
    link.content = f'<a href="{address}"><code>{html.escape(token.content)}</code></a>'
    return link
