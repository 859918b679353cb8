"""A comparison as a table, in sentences, as figures and as a page of HTML that stands alone.

Sentences and pages are made from the templates beside this module. What a page is given is escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from ..errors import UsageError
from ..files import write_text
from ..results import (
    QUANTITIES,
    Curve,
    Failure,
    Row,
    Summary,
    final_loss,
    finite,
    loss_range,
    mean_curve,
    rate_range,
)
from ..run.entrants import Entrant, label_of
from ..run.progress import Result
from ..run.settings import TUNED
from . import (
    NONE,
    aligned,
    count,
    figures,
    listed,
    loss,
    loss_format,
    markdown_table,
    megabytes,
    milliseconds,
    percent,
    rate,
)
from .figures import name

TITLE = "Comparison of optimizers"
LEAST = 0.01  # what two seeds of a language model of a few million weights usually differ by
WIDE = 60  # letters of an error in a table


class Table(NamedTuple):
    """Heads, in one or two lines each, and rows that begin with the label of an optimizer."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


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
        if baseline is not None and baseline not in {run["label"] for run in results}:
            baseline = label_of(baseline)
        super().__init__(results, baseline)
        last = next((str(run.get("command") or "") for run in reversed(results)), "")
        self.command = last if command is None else command
        self.title = title or TITLE

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The table as aligned text, best first, with notes below."""
        heads, rows = self.cells()
        words = [index for index, head in enumerate(heads) if head in ("optimizer", "error")]
        text = aligned(heads, rows, left=words, ruled=True)
        return "\n".join([text, "", *self.notes()]).rstrip()

    def markdown(self) -> str:
        """The table as Markdown, with notes below."""
        text = markdown_table(*self.cells(), right=True)
        remarks = "\n".join(f"- {note}".replace("- *", r"- \*") for note in self.notes())
        return f"{text}\n\n{remarks}".rstrip() + "\n"

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
        environment = _common([run.get("environment") or {} for run in self.results])
        values = {"settings": settings, "environment": environment, "data": self._data()}
        return render("report.html", comparison=self, **values)

    def publish(self, folder: Path) -> str:
        """The table and the path of the page, which is in the folder with the curves beside it."""
        figures.save(self.plot(), folder, "curves")
        return f"{self.table()}\n\n{self.report(folder / 'report.html')}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return render("notebook.html", comparison=self)

    # --- Cells and sentences ----------------------------------------------------------------------

    @cached_property
    def spec(self) -> str:
        """The format of the losses."""
        return loss_format([row.final for row in self.rows], [row.spread for row in self.rows])

    def cells(self) -> Table:
        """The table, what failed below the rest; a column that would be empty is left out."""
        rows = [*map(self._cells_of_row, self.rows), *map(_cells_of_failure, self.failures)]
        known = dict.fromkeys(["optimizer", *chain.from_iterable(rows)])
        heads = [head for head in known if any(row.get(head, NONE) != NONE for row in rows)]
        cells = [[row.get(head, NONE) for head in heads] for row in rows]
        return Table(heads or ["optimizer"], cells)

    def _cells_of_row(self, row: Row) -> dict[str, str]:
        several = len(self.rows) > 1  # alone, there is nothing to compare with
        units, time = (
            percent(self.to_target(row, along) if several else None)
            for along in ("units", "seconds")
        )
        # Numbers line up at the right if all have room for the star of some.
        star = "*" if row.lr_at_edge else " " * any(each.lr_at_edge for each in self.rows)
        parts = ("model", "optimizer", "data")
        return {
            "optimizer": row.label,
            "final\nloss": loss(row.final, self.spec, row.spread),
            f"{self.unit}\nto target": units,
            "time\nto target": time,
            "best\nloss": loss(row.best, self.spec),
            "accuracy": percent(row.accuracy, 1),
            "lr": rate(row.lr) + star,
            "seeds": str(len(row.runs)),
            **{f"{part}\nms": milliseconds(row.milliseconds.get(part)) for part in parts},
            "state": megabytes(row.state_bytes),
        }

    def tuned(self) -> Table:
        """A table of each optimizer at its usual rate and at its best one, where both were run."""
        rows = []
        for row in self.rows:
            usual = usual_rate(row.label)
            if len(row.by_rate) > 1 and usual in row.by_rate and math.isfinite(row.final):
                final, spread = row.sensitivity[usual]
                gain = loss(final - row.final, self.spec) if math.isfinite(final) else NONE
                there, best = loss(final, self.spec, spread), loss(row.final, self.spec, row.spread)
                rows.append((row.label, rate(usual), there, rate(row.lr), best, gain))
        heads = ("optimizer", "usual\nlr", "loss\nat it", "best\nlr", "loss\nat it")
        return Table((*heads, "gained by\ntuning"), rows)

    @property
    def as_the_race_found(self) -> bool:
        """Whether all optimizers have the settings and the rate that the race found best."""
        found = (list(row.by_rate) == [TUNED.get(row.label)] for row in self.rows)
        return len(self.rows) > 1 and all(found)

    def headline(self) -> str:
        """One sentence: what the best optimizer did, compared with the baseline."""
        return self._said("headline")

    def details(self) -> list[str]:
        """The sentences below the headline: final losses, time, the second, rates at an edge."""
        if not self._ended or len(self.rows) == 1:
            return []
        return list(filter(None, map(self._said, ("ends", "time", "second", "wider"))))

    def notes(self) -> list[str]:
        """What a reader must know: target, whence the settings, noise, rates, what did not end."""
        texts = [
            *map(self._said, ("aim", "settings", "noise", "edge")),
            *(said("diverged", row) for row in self.rows),
            *(f"{said('failed', each)} {each.error.strip()}" for each in self.failures),
            self._said("stopped"),
        ]
        return list(filter(None, texts))

    def diverged(self) -> list[str]:
        """Where a run diverged: optimizer, rate, seeds and how far it came."""
        texts = []
        for row in self.rows:
            for lr, runs in row.by_rate.items():
                if lost := [run for run in runs if math.isinf(final_loss(run))]:
                    seeds = ", ".join(str(run["settings"].get("seed", "–")) for run in lost)
                    last = max((run["curve"]["step"][-1:] or [0])[0] for run in lost)
                    where = f"{name(row.label)} at lr {rate(lr)}, seed {seeds}"
                    texts.append(f"{where}: gone by step {last:,}")
        return texts

    @property
    def _ended(self) -> list[Row]:
        return [row for row in self.rows if math.isfinite(row.final)]

    def _said(self, sentence: str) -> str:
        return said(sentence, self, self._ended)

    def _data(self) -> dict[str, Any]:
        """What the script of the page draws from."""
        low, high, logarithmic = loss_range([row.curve for row in self.rows])
        looks = figures.looks(self)
        ends = [end for row in self.rows for end, _ in row.sensitivity.values()]
        return {
            "unit": self.unit,
            "decimals": None if self.spec.endswith("e") else int(self.spec[1]),
            "range": {"low": low, "high": high, "log": logarithmic},
            "rateRange": rate_range(ends),
            "series": [
                {
                    **asdict(looks[row.label]),
                    "final": row.final if finite(row.final) else None,
                    "diverged": row.diverged > 0,
                    "flops": self.flops.get(row.label, 0.0),
                    "mean": _short(row.curve),
                    "runs": [_short(mean_curve([run])) for run in row.runs],
                    "rates": [
                        (lr, end if finite(end) else None, spread)
                        for lr, (end, spread) in row.sensitivity.items()
                    ],
                }
                for row in self.rows
            ],
        }


def _cells_of_failure(failure: Failure) -> dict[str, str]:
    line = next(iter(failure.error.strip().splitlines()), "")
    return {
        "optimizer": failure.label,
        "final\nloss": "failed",
        "lr": "/".join(map(rate, failure.rates)),
        "seeds": str(len(failure.seeds)),
        "error": line if len(line) <= WIDE else f"{line[: WIDE - 1]}…",
    }


def usual_rate(label: str) -> float | None:
    """The learning rate that an optimizer of the laboratory has unless one is given."""
    try:
        return Entrant.parse(label).default_lr
    except UsageError:
        return None


def _short(curve: Curve) -> dict[str, list[float]]:
    """A curve with six digits a number: more than a screen has, a third of the bytes."""
    columns = asdict(curve).items()
    return {key: [float(f"{value:.6g}") for value in values] for key, values in columns}


def _common(dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all agree on, in the order of the first; what is not set is left out."""
    first = dicts[0].items() if dicts else ()
    agreed = {key: all(each.get(key) == value for each in dicts) for key, value in first}
    return {key: value for key, value in first if agreed[key] and value is not None}


# --- Templates ------------------------------------------------------------------------------------


def unbroken(text: str) -> Markup:
    """The text, escaped, in which no line ends within a number."""
    text = text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
    return escape(re.sub(r"(\de-)(?=\d)", "\\1\u2060", text))


def at_rate(row: Row) -> str:
    """An optimizer with its best learning rate."""
    return f"{name(row.label)} ({rate(row.lr)})"


def said(sentence: str, *values: Any) -> str:
    """A sentence of findings.txt, without line breaks; empty where there is nothing to say."""
    macro = getattr(_ENVIRONMENT.get_template("findings.txt").module, sentence)
    return re.sub(r"\s*\n\s*", " ", macro(*values)).strip()


def render(template: str, **values: Any) -> str:
    """The page that a template makes of these values."""
    return _ENVIRONMENT.get_template(template).render(values)


_ENVIRONMENT = Environment(
    loader=PackageLoader("deva_lab.render", "templates"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals |= {"figures": figures, "quantities": QUANTITIES, "least": LEAST}
for _filter in (at_rate, listed, loss, megabytes, milliseconds, name, percent, rate, unbroken):
    _ENVIRONMENT.filters[_filter.__name__] = _filter
_ENVIRONMENT.filters["short"] = count
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
