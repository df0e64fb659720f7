"""The blocks of code of a page of documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token


@dataclass(frozen=True)
class Block:
    """A block of code: its language, what else stands beside that, and the code."""

    language: str
    remark: str
    code: str
    line: int
    follows: bool
    """Whether nothing stands between the block before and this one."""


def blocks(text: str) -> list[Block]:
    """All blocks of code of a page."""
    found = []
    before: Token | None = None
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "fence":
            language, _, remark = token.info.partition(" ")
            # The generator of the documentation knows only this form, and shows it as a title.
            remark = re.sub(r'^title="(.*)"$', r"\1", remark.strip())
            line = token.map[0] + 1 if token.map else 0
            follows = before is not None and before.type == "fence"
            found.append(Block(language, remark, token.content, line, follows))
        before = token
    return found
