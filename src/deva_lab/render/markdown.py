"""Our own texts in Markdown as HTML, for pages that stand alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token


def html(text: str, figure: Callable[[str, str], str]) -> str:
    """A text as HTML, an image in a paragraph of its own as a figure; HTML in it is escaped.

    Args:
        text: The Markdown.
        figure: What an image shows and where it is → HTML.

    >>> print(html("**Verdict**: 1 < 2, `a*b`.", figure=lambda shows, where: ""), end="")
    <p><strong>Verdict</strong>: 1 &lt; 2, <code>a*b</code>.</p>
    """
    tokens = _MARKDOWN.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and _NAME.fullmatch(tokens[at + 1].content):
            token.attrSet("id", tokens[at + 1].content)
        elif token.type == "paragraph_open":
            alone = [child.type for child in tokens[at + 1].children or ()] == ["image"]
            token.hidden = tokens[at + 2].hidden = alone or token.hidden  # as in a tight list
    _set_numbers_right(tokens)
    return cast(str, _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {"figure": figure}))


def inline(text: str) -> str:
    """Code, strong words and links of a line as HTML, all else escaped."""
    return cast(str, _MARKDOWN.renderInline(text))


def demoted(text: str, by: int = 1) -> str:
    """The text with its headings so many levels lower.

    >>> demoted("# a", by=2)
    '### a'
    """
    return re.sub(r"^(?=#{1,6} )", "#" * by, text, flags=re.MULTILINE)


def _set_numbers_right(tokens: Sequence[Token]) -> None:
    """Mark the columns of tables that have nothing but numbers below their heads."""
    rows: list[list[tuple[Token, str]]] = []
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append((token, tokens[at + 1].content))
        elif token.type == "table_close":
            for head, *cells in zip(*rows, strict=True):
                if all(_NUMBER.fullmatch(text) for _, text in cells):
                    for cell, _ in (head, *cells):
                        cell.attrSet("class", "number")


def _image(self: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    return cast(str, env["figure"](tokens[at].content, tokens[at].attrs["src"]))


_NAME = re.compile(r"[a-z][a-z0-9-]*")  # of a heading that links can point at
_NUMBER = re.compile(r"(\*\*)?[-–+×≈≥≤<>]?\s?\d.{0,30}|–|diverged|")
_FRAME = '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table class="told">\n'
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_MARKDOWN.add_render_rule("image", _image)
_MARKDOWN.add_render_rule("softbreak", lambda *_: " ")
_MARKDOWN.add_render_rule("table_open", lambda *_: _FRAME)
_MARKDOWN.add_render_rule("table_close", lambda *_: "</table></div>\n")
