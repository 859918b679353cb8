"""Numbers, lists and tables as text; what is drawn and made of them is in the modules.

`figures` draws curves, `pages` says what a comparison has found and makes HTML of it, `markdown`
makes HTML of texts, and `display` shows how runs go on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

NONE = "–"


def loss_format(losses: Iterable[float], spreads: Iterable[float | None] = ()) -> str:
    """The format specification with which losses beside each other are told apart.

    >>> loss_format([3.03, 3.17]), loss_format([0.41]), loss_format([3.03], [0.0004])
    ('.3f', '.4f', '.4f')
    """
    sizes = [abs(loss) for loss in losses if math.isfinite(loss)]
    if any(0 < size < 0.01 for size in sizes):
        return ".2e"
    if any(size >= 100 for size in sizes):
        return ".1f"
    fine = any(spread is not None and spread < 0.001 for spread in spreads)
    return ".4f" if fine or any(size < 1 for size in sizes) else ".3f"


def loss(value: float, spec: str, spread: float | None = None) -> str:
    """A loss, or that there is none, with its spread over seeds if that is given."""
    text = format(value, spec) if math.isfinite(value) else "diverged"
    return text if spread is None else f"{text} ± {spread:{spec}}"


def percent(fraction: float | None, digits: int = 0, *, signed: bool = False) -> str:
    """A fraction in per cent: 62 %, or with digits and a sign: +0.5 %."""
    sign = "+" if signed else ""
    return NONE if fraction is None else f"{100 * fraction:{sign}.{digits}f} %"


def rate(lr: float) -> str:
    """A learning rate, as short as it can be."""
    return f"{lr:.6g}"


def milliseconds(time: float | None) -> str:
    """A time in milliseconds, with three digits."""
    if time is None:
        return NONE
    return f"{time:.0f}" if time >= 100 else f"{time:.1f}" if time >= 1 else f"{time:.2f}"


def megabytes(size: float) -> str:
    """A size in millions of bytes, with three digits."""
    value = size / 1e6
    return f"{value:,.0f} MB" if value >= 100 else f"{value:.3g} MB"


def count(number: float) -> str:
    """A number with three digits and k, M, G, T, P or E.

    >>> count(1_312_000), count(2048), count(0.5), count(999_999)
    ('1.31M', '2.05k', '0.5', '1M')
    """
    for power, letter in zip(range(18, 0, -3), "EPTGMk", strict=True):
        if abs(number) >= 0.9995 * 10**power:  # which three digits round up
            return f"{number / 10**power:.3g}{letter}"
    return f"{number:.3g}"


def listed(words: Iterable[str]) -> str:
    """Words in a sentence.

    >>> listed(["a"]), listed("abc")
    ('a', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


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
