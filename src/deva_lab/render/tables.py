"""Tables as text: aligned for a terminal, Markdown for a document."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    ruled: bool = False,
) -> str:
    r"""Rows with columns of one width.

    Args:
        head: The names of the columns, if they have any; a name may have several lines.
        rows: The cells.
        left: The columns that begin at the left; the others end at the right.
        ruled: Whether there is a line below the head.

    >>> print(aligned(["name", "final\nloss"], [["deva", "3.1"], ["sgd", "12.5"]]))
          final
    name   loss
    deva    3.1
    sgd    12.5
    """
    heads = [text.split("\n") for text in head]
    height = max(map(len, heads), default=0)
    top = zip(*([""] * (height - len(lines)) + lines for lines in heads), strict=True)
    table = [*top, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    if ruled:
        lines.insert(height, "─" * max(map(len, lines)))
    return "\n".join(lines)


def markdown_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = False
) -> str:
    """The rows as Markdown, the columns after the first to the right if asked.

    >>> print(markdown_table(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    first, *cells = (
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
        for row in (head, *rows)
    )
    rule = "|---|" + ("--:|" if right else "---|") * (len(head) - 1)
    return "\n".join([first, rule, *cells])
