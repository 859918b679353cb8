"""The Markdown that our own pages are written in, as HTML: no more of it than they use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

Figure = Callable[[str, str], str]  # what an image shows and where it is → HTML

FENCE = "```"
_HEADING = re.compile(r"(#{1,6}) (.*)")
_NAME = re.compile(r"[a-z][a-z0-9-]*")  # of a heading that links can point at
_IMAGE = re.compile(r"!\[(.*)\]\((\S+)\)")
_RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+")
_BAR = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"(`[^`]+`)")
_NUMBER = re.compile(r"(\*\*)?[-–+×≈≥≤<>]?\s?\d.{0,30}|–|diverged|")
_MARKS = (
    (re.compile(r"\*\*(.+?)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*([^\s*][^*]*)\*(?![\w*])"), r"<em>\1</em>"),
    (re.compile(r"\[(.+?)\]\((#[\w-]+|https?://[^\s)]+)\)"), r'<a href="\2">\1</a>'),
)


def html(text: str, figure: Figure) -> str:
    """Headings, paragraphs, tables, lists, code and images of a text as HTML, all else escaped.

    >>> html("**Verdict**: 1 < 2, `a*b`.", figure=lambda shows, where: "")
    '<p><strong>Verdict</strong>: 1 &lt; 2, <code>a*b</code>.</p>'
    """
    return "\n".join(_block(lines, figure) for lines in _blocks(text))


def inline(text: str) -> str:
    """Code, strong words and links of a line as HTML, all else escaped."""
    pieces = _CODE.split(text)
    return "".join(
        f"<code>{escape(piece[1:-1])}</code>" if index % 2 else _marked(piece)
        for index, piece in enumerate(pieces)
    )


def demoted(text: str, by: int = 1) -> str:
    """The text with its headings so many levels lower.

    >>> demoted("# a", by=2)
    '### a'
    """
    return "\n".join("#" * by + line if _HEADING.match(line) else line for line in text.split("\n"))


def _marked(text: str) -> str:
    text = escape(text)
    for pattern, replacement in _MARKS:
        text = pattern.sub(replacement, text)
    return text


def _blocks(text: str) -> Iterator[list[str]]:
    """The lines between empty ones; a block of code may have such inside."""
    lines: list[str] = []
    fenced = False
    for line in [*text.split("\n"), ""]:
        fenced ^= line.startswith(FENCE)
        if line.strip() or fenced:
            lines.append(line)
        elif lines:
            yield lines
            lines = []


def _block(lines: list[str], figure: Figure) -> str:
    first = lines[0]
    if heading := _HEADING.fullmatch(first):
        level = len(heading[1])
        rest = _block(lines[1:], figure) if lines[1:] else ""
        name = f' id="{heading[2]}"' if _NAME.fullmatch(heading[2]) else ""
        return f"<h{level}{name}>{inline(heading[2])}</h{level}>{rest}"
    if image := _IMAGE.fullmatch(first):
        return figure(image[1], image[2])
    if first.startswith(FENCE):
        return f"<pre><code>{escape(chr(10).join(lines[1:-1]))}</code></pre>"
    if len(lines) > 1 and _RULE.fullmatch(lines[1].strip()):
        return table(_cells(first), [_cells(line) for line in lines[2:]])
    if first.startswith("- ") and all(line.startswith(("- ", "  ")) for line in lines):
        return _list(lines)
    return f"<p>{inline(' '.join(line.strip() for line in lines))}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns of numbers are set to the right, in a frame that scrolls."""
    columns = list(zip(*rows, strict=False)) if rows else [()] * len(head)
    numbers = [all(map(_NUMBER.fullmatch, column)) for column in columns]
    top = "".join(_cell("th", *pair, " scope=col") for pair in zip(head, numbers, strict=False))
    body = "".join(
        "<tr>" + "".join(_cell("td", *pair) for pair in zip(row, numbers, strict=False)) + "</tr>"
        for row in rows
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        f'<table class="told"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(tag: str, text: str, number: bool, more: str = "") -> str:
    return f"<{tag}{more}{' class=number' * number}>{inline(text)}</{tag}>"


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _BAR.split(line.strip())[1:-1]]


def _list(lines: Sequence[str]) -> str:
    entries: list[str] = []
    for line in lines:
        if line.startswith("- "):
            entries.append(line[2:])
        else:
            entries[-1] += f" {line.strip()}"
    return "<ul>" + "".join(f"<li>{inline(entry)}</li>" for entry in entries) + "</ul>"
