"""Pages of HTML that stand alone: of a comparison, and of our own texts in Markdown.

They are made from the templates beside this module. What a template is given is escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from ..files import write_text
from ..results import (
    QUANTITIES,
    Curve,
    Summary,
    final_loss,
    finite,
    loss_range,
    mean_curve,
    rate_range,
)
from ..run.progress import Result
from . import count, figures, findings, loss, megabytes, milliseconds, rate
from .figures import name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Comparison of optimizers"


class Comparison(Summary):
    """Runs of several optimizers on one task, as a table, a figure and a page.

    Each optimizer is judged at its own best learning rate, and everything is computed once. A run
    that failed is a row of the table with its error, and is in no chart. In a notebook a comparison
    shows itself as its table and its figure.

    Args:
        results: The runs, as lines of results.jsonl have them.
        baseline: The label whose final loss is the target; None for AdamW, or else the first.
        command: What was typed, for the page; None for that of the last run.
        title: The title of the page.

    Raises:
        UsageError: If there is no run with the label of the baseline.
    """

    def __init__(
        self,
        results: Sequence[Result],
        *,
        baseline: str | None = None,
        command: str | None = None,
        title: str | None = None,
    ) -> None:
        super().__init__(results, baseline)
        last = next((str(run.get("command") or "") for run in reversed(results)), "")
        self.command = last if command is None else command
        self.title = title

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The table as aligned text, best first, with notes below."""
        return findings.table(self)

    def markdown(self) -> str:
        """The table as Markdown."""
        return findings.markdown(self)

    def plot(self) -> Figure:
        """The loss along the way, and over the learning rate where it varied."""
        return figures.figure_of(self)

    def report(self, path: str | Path = "report.html") -> Path:
        """The path of the page, which has been written: one file that stands alone."""
        path = Path(path)
        write_text(path, self.page())
        return path

    def page(self) -> str:
        """The page as HTML, with styles, scripts and data inside and nothing to fetch."""
        settings = _common([{**run["settings"], "telemetry": None} for run in self.results])
        return render(
            "report.html",
            comparison=self,
            title=self.title or TITLE,
            headline=findings.headline(self),
            facts=_facts(self, settings),
            settings=settings,
            environment=_common([run.get("environment") or {} for run in self.results]),
            diverged=_diverged(self),
            data=page_data(self),
        )

    def publish(self, folder: Path) -> str:
        """The table and the path of the page, which is in the folder with the curves beside it."""
        figures.save(self.plot(), folder, "curves")
        return f"{self.table()}\n\n{self.report(folder / 'report.html')}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return render("notebook.html", comparison=self)


# --- The report -----------------------------------------------------------------------------------


def page_data(summary: Summary) -> dict[str, Any]:
    """What the script of the page draws from."""
    low, high, logarithmic = loss_range([row.curve for row in summary.rows])
    spec, looks = findings.spec_of(summary), figures.looks(summary)
    ends = [end for row in summary.rows for end, _ in row.sensitivity.values()]
    return {
        "unit": summary.unit,
        "decimals": None if spec.endswith("e") else int(spec[1]),
        "range": {"low": low, "high": high, "log": logarithmic},
        "rateRange": rate_range(ends),
        "series": [
            {
                **asdict(looks[row.label]),
                "final": row.final if finite(row.final) else None,
                "diverged": row.diverged > 0,
                "flops": summary.flops[0].get(row.label, 0.0),
                "mean": _short(row.curve),
                "runs": [_short(mean_curve([run])) for run in row.runs],
                "rates": [
                    (lr, end if finite(end) else None, spread)
                    for lr, (end, spread) in row.sensitivity.items()
                ],
            }
            for row in summary.rows
        ],
    }


def _short(curve: Curve) -> dict[str, list[float]]:
    """A curve with six digits a number: more than a screen has, a third of the bytes."""
    columns = asdict(curve).items()
    return {key: [float(f"{value:.6g}") for value in values] for key, values in columns}


def _common(dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all agree on, in the order of the first; what is not set is left out."""
    first = dicts[0].items() if dicts else ()
    agreed = {key: all(each.get(key) == value for each in dicts) for key, value in first}
    return {key: value for key, value in first if agreed[key] and value is not None}


def _facts(summary: Summary, settings: dict[str, Any]) -> str:
    """One line on what was trained: task, data, size, length."""
    if not summary.results:
        return ""
    first, runs = summary.results[0], len(summary.results)
    parts = [str(settings[key]) for key in ("task", "size", "data") if settings.get(key)]
    parts.append(f"{count(first['parameters'])} parameters")
    if "steps" in settings:
        parts.append(f"{settings['steps']:,} steps of {first['units']:,} {summary.unit}")
    return " · ".join([*parts, f"{runs} run{'s' * (runs > 1)}"])


def _diverged(summary: Summary) -> list[str]:
    texts = []
    for row in summary.rows:
        for lr, runs in row.by_rate.items():
            if lost := [run for run in runs if math.isinf(final_loss(run))]:
                seeds = ", ".join(str(run["settings"].get("seed", "–")) for run in lost)
                last = max((run["curve"]["step"][-1:] or [0])[0] for run in lost)
                where = f"{name(row.label)} at lr {rate(lr)}, seed {seeds}"
                texts.append(f"{where}: gone by step {last:,}")
    return texts


# --- Templates ------------------------------------------------------------------------------------


def unbroken(text: str) -> Markup:
    """The text, escaped, in which no line ends within a number."""
    text = text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
    return escape(re.sub(r"(\de-)(?=\d)", "\\1\u2060", text))


def render(template: str, **values: Any) -> str:
    """The page that a template makes of these values."""
    return _ENVIRONMENT.get_template(template).render(values)


_ENVIRONMENT = Environment(
    loader=PackageLoader("deva_lab.render", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals |= {"findings": findings, "figures": figures, "quantities": QUANTITIES}
for _filter in (loss, megabytes, milliseconds, name, unbroken):
    _ENVIRONMENT.filters[_filter.__name__] = _filter
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}


# --- Markdown -------------------------------------------------------------------------------------


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
