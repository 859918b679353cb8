"""The table of experiments, and pages of them: one a page, or all of them on one.

An experiment has a row in paper.json, its text in templates/experiments.md, and a function below
that shows its results. What is computed also has a function that computes them; what they depend on
belongs into the settings in paper.json, since they are kept by these. What is made of training runs
has them in `RUNS` of `paper.py`; runs are kept by their own settings.
"""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

from markupsafe import Markup

from ..errors import unknown
from ..files import write_text
from ..launchers import finished
from ..render import aligned, count, markdown, pages
from ..run.settings import RunSettings
from . import Scale, losses, sweeps, tables, theory, trace
from .experiment import (
    Computed,
    Experiment,
    Record,
    Shown,
    Trained,
    of_each_model,
    parameters,
    runs_of,
    units,
    written,
)
from .measures import WORDS
from .paper import EXHIBITS, RUNS

_SHOW: Final[dict[str, Callable[[Any, Path], Shown]]] = {
    "fig-trace": trace.show,
    "fig-nanogpt": losses.show_nanogpt_figure,
    "table-nanogpt": losses.show_nanogpt_table,
    "fig-lr": sweeps.show_rates_figure,
    "table-lr": sweeps.show_rates_table,
    "table-beta3": sweeps.show_beta3,
    "fig-batch": sweeps.show_batch,
    "fig-freq": sweeps.show_frequency,
    "fig-variants": losses.show_variants_figure,
    "table-variants": losses.show_variants_table,
    "table-snr": losses.show_snr,
    "fig-cifar": sweeps.show_cifar,
    "fig-vit": losses.show_vit,
    "table-cost": tables.show_cost,
    "table-hyper": tables.show_hyper,
    "table-methods": tables.show_methods,
    "theory": theory.show,
}
_COMPUTE: Final = {
    "fig-trace": trace.compute,
    "table-cost": tables.compute_cost,
    "table-hyper": tables.compute_hyper,
    "table-methods": tables.compute_methods,
    "theory": theory.compute,
}


def _experiment(name: str) -> Computed | Trained:
    each = EXHIBITS[name]
    head = (name, each["what"], each["place"], _SHOW[name])
    if name in _COMPUTE:
        return Computed(*head, _COMPUTE[name], each["settings"])
    return Trained(*head, RUNS[name], each["subject"])


EXPERIMENTS: Final = MappingProxyType({name: _experiment(name) for name in EXHIBITS})
"""Every experiment that can be run, by id."""


def experiment(name: str) -> Computed | Trained:
    """The experiment of this id."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def listing() -> str:
    """A line an experiment."""
    rows = sorted((row.id, row.what, row.place) for row in EXPERIMENTS.values())
    return aligned((), rows, left=range(3))


# What would be trained ----------------------------------------------------------------------------


def dry_run(experiments: Sequence[Experiment], scale: Scale, folder: Path, data: str | None) -> str:
    """Every run that `deva reproduce` would carry out, those that are done already marked."""
    trained = [one for one in experiments if isinstance(one, Trained)]
    runs = runs_of(trained, scale, data)
    return written(
        "page.md",
        "dry_run",
        computed=[one for one in experiments if one not in trained],
        trained={one.id: one.runs(scale, data) for one in trained},
        runs=runs,
        done={result["id"] for result in finished(folder, runs)},
        models={run: parameters(run) for run in of_each_model(runs)},
        amount=_amount,
        joined=False,
    )


def _amount(runs: Sequence[RunSettings]) -> str:
    return f"{count(sum(map(units, runs)))} {'tokens' if runs[0].task == 'gpt' else 'images'}"


# Pages --------------------------------------------------------------------------------------------

TITLE: Final = "The paper, reproduced"
VERDICTS: Final = ("holds", "holds in part", "does not hold")  # with which one begins
OWN_SETTING: Final = "The authors' own setting: model, data and hyper-parameters are the paper's."


@dataclass(frozen=True)
class Entry:
    """An experiment that has been run, and what there is to see of it."""

    experiment: Experiment
    record: Record
    shown: Shown

    @property
    def is_trained(self) -> bool:
        """Whether it is made of training runs."""
        return isinstance(self.experiment, Trained)

    @property
    def word(self) -> str:
        """The verdict in a word or three."""
        return max(filter(self.shown.verdict.startswith, VERDICTS), key=len)

    @property
    def reason(self) -> str:
        """Why not all holds, in a sentence that begins with the cause; nothing where all does."""
        if self.word == "holds":
            return ""
        at_full_scale = self.record["scale"] == "paper" and self.is_trained
        return OWN_SETTING if at_full_scale else self.shown.why

    @property
    def verdict(self) -> str:
        """The verdict; where not all holds, why, what does, and how to see the paper's scale."""
        word, _, rest = self.shown.verdict.partition(": ")
        return written("page.md", "verdict", entry=self, word=word, rest=rest)

    def section(self, *, level: int, kind: str, folder: str = "") -> str:
        """All of it as Markdown, below a heading of this level, with figures of this kind."""
        return written(
            "page.md",
            "section",
            entry=self,
            level=level,
            text=markdown.demoted(self.shown.text, level - 1),
            figures=[f"{folder}{path.name}" for path in self.shown.figures if path.suffix == kind],
        )


def page(experiment: Experiment, record: Record, folder: Path) -> str:
    """The experiment as a page of Markdown, its figures being in the folder."""
    entry = Entry(experiment, record, experiment.show(record["results"], folder))
    return entry.section(level=1, kind=".png") + "\n"


def write_page(
    experiments: Sequence[Computed | Trained], scale: Scale, folder: Path, page: Path
) -> list[Path]:
    """The paths of the page as Markdown, and of report.html in the folder that has the results.

    Args:
        experiments: What there could be to show.
        scale: At which scale.
        folder: Where the results are.
        page: The file for the Markdown; figures go into a folder beside it, of its name.
    """
    beside = page.with_suffix("")
    beside.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as drawn:
        entries = [
            Entry(each, record, each.show(record["results"], Path(drawn)))
            for each in experiments
            if (record := each.kept(scale, folder)) is not None
        ]
        for figure in Path(drawn).glob("*.svg"):
            shutil.copy(figure, beside)
    there = [entry.experiment.id for entry in entries]
    facts: dict[str, Any] = {
        "entries": entries,
        "missing": [each for each in experiments if each.id not in there],
        "counts": _counts(entries),
        "machines": sorted({each.record["environment"]["processor"] for each in entries}),
        "time": duration(_seconds(entries)),
        "duration": duration,
    }
    headline, about, overview = (
        written("page.md", block, **facts) for block in ("headline", "facts", "overview")
    )
    sections = [entry.section(level=2, kind=".svg", folder=f"{beside.name}/") for entry in entries]
    body = "\n\n".join([overview, *sections])
    write_text(page, f"# {TITLE}\n\n{headline}\n\n{about}\n\n{body}\n")
    html = pages.render(
        "reproduction.html",
        title=TITLE,
        headline=headline,
        facts=Markup(markdown.inline(about)),
        body=Markup(markdown.html(body, lambda shows, where: _inside(shows, page.parent / where))),
    )
    write_text(folder / "report.html", html)
    return [page, folder / "report.html"]


def _counts(entries: Sequence[Entry]) -> list[str]:
    """How many experiments came out how."""
    counts = Counter(entry.word for entry in entries)
    return [f"{counts[word]} {WORDS[word][counts[word] > 1]}" for word in VERDICTS if counts[word]]


def _seconds(entries: Sequence[Entry]) -> float:
    """How long all of it took, a run that several experiments share counted once."""
    times: dict[str, float] = {}
    for entry in entries:
        times |= entry.record.get("times", {entry.experiment.id: entry.record["seconds"]})
    return sum(times.values())


def duration(seconds: float) -> str:
    """A time in the unit that fits it.

    >>> duration(19.7), duration(1500), duration(8000)
    ('20 s', '25 min', '2.2 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _inside(shows: str, path: Path) -> str:
    """A figure as an element that has its file inside."""
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:image/svg+xml;base64,{data}"
    return f'<figure class="drawn"><img alt="{escape(shows)}" src="{source}"></figure>'
