"""Experiments as pages: Markdown of one or of all of them, and HTML that stands alone."""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from markupsafe import Markup

from ..files import write_text
from ..render import listed, markdown_table
from ..render import markdown as markup
from ..render.pages import render
from . import Scale
from .experiment import Computed, Experiment, Record, Shown, Trained

TITLE: Final = "The paper, reproduced"
WORDS: Final = ("holds", "holds in part", "does not hold")  # with which a verdict begins
OWN_SETTING: Final = "The authors' own setting: model, data and hyper-parameters are the paper's."
AT: Final = {"cpu": "At a scale for two cores", "paper": "At the paper’s own scale"}
MADE: Final = (
    "`deva reproduce all` carries everything out, `deva reproduce --page FILE.md` makes this page "
    "of it."
)


@dataclass(frozen=True)
class Entry:
    """An experiment that has been run, and what there is to see of it."""

    experiment: Experiment
    record: Record
    shown: Shown

    @property
    def word(self) -> str:
        """The verdict in a word or three."""
        return max(filter(self.shown.verdict.startswith, WORDS), key=len)

    @property
    def reason(self) -> str:
        """Why not all holds, in a sentence that begins with the cause; nothing where all does."""
        if self.word == "holds":
            return ""
        at_full_scale = self.record["scale"] == "paper" and isinstance(self.experiment, Trained)
        return OWN_SETTING if at_full_scale else self.shown.why

    @property
    def verdict(self) -> str:
        """The verdict; where not all holds, why, what does, and how to see the paper's scale."""
        if self.word == "holds":
            return f"**Verdict**: {self.shown.verdict}."
        name, (word, _, rest) = self.experiment.id, self.shown.verdict.partition(": ")
        is_trained = isinstance(self.experiment, Trained)
        how = f"{name} --scale paper` trains" if is_trained else f"{name}` computes"
        parts = [
            f"**Verdict**: {word}.",
            self.reason,
            f"{rest[:1].upper()}{rest[1:]}.",
            f"`deva reproduce {how} it at the paper's own scale.",
        ]
        return " ".join(filter(None, parts))

    def section(self, *, level: int, kind: str, folder: str = "") -> str:
        """All of it as Markdown, below a heading of this level, with figures of this kind."""
        one, record = self.experiment, self.record
        settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
        names = dict.fromkeys(path.stem for path in self.shown.figures)
        spent = " of training, all runs added up," if isinstance(one, Trained) else ""
        parts = [
            f"{'#' * level} {one.id}",
            f"{one.what[0].upper()}{one.what[1:]}. In the paper: {one.place}.",
            markup.demoted(self.shown.text, level - 1),
            *(f"![{one.what}]({folder}{name}.{kind})" for name in names),
            f"*{self.shown.caption}*" if self.shown.caption else "",
            self.verdict,
            f"`{record['command']}` · {settings or 'no settings'} · {record['seconds']:.0f} s"
            f"{spent} on {record['environment']['processor']}",
        ]
        return "\n\n".join(filter(None, parts))


def page(experiment: Experiment, record: Record, folder: Path) -> str:
    """The experiment as a page of Markdown, its figures being in the folder."""
    entry = Entry(experiment, record, experiment.show(record["results"], folder))
    return entry.section(level=1, kind="png") + "\n"


# All on one page ----------------------------------------------------------------------------------


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
    sections = [entry.section(level=2, kind="svg", folder=f"{beside.name}/") for entry in entries]
    body = "\n\n".join([_overview(entries, experiments), *sections])
    write_text(page, f"# {TITLE}\n\n{headline(entries)}\n\n{_facts(entries)}\n\n{body}\n")
    html = render(
        "reproduction.html",
        title=TITLE,
        headline=headline(entries),
        facts=Markup(markup.inline(_facts(entries))),
        body=Markup(markup.html(body, lambda shows, where: _inside(shows, page.parent / where))),
    )
    write_text(folder / "report.html", html)
    return [page, folder / "report.html"]


def headline(entries: Sequence[Entry]) -> str:
    """How many experiments came out how, in a sentence."""
    if not entries:
        return "Nothing has been run yet."
    counts = Counter(entry.word for entry in entries)
    found = [f"{counts[word]} {_many(word, counts[word])}" for word in WORDS if counts[word]]
    where = AT[entries[0].record["scale"]]
    return f"{where}, of {len(entries)} figures, tables and sets of theorems, {listed(found)}."


def _many(word: str, number: int) -> str:
    return word if number == 1 else word.replace("holds", "hold").replace("does", "do")


def _facts(entries: Sequence[Entry]) -> str:
    """How such a page is made, and where the numbers of this one were."""
    if not entries:
        return MADE
    machines = sorted({entry.record["environment"]["processor"] for entry in entries})
    times: dict[str, float] = {}  # that of a run which several experiments share once
    for entry in entries:
        times |= entry.record.get("times", {entry.experiment.id: entry.record["seconds"]})
    return f"{MADE} Added up, it took {duration(sum(times.values()))} on {listed(machines)}."


def duration(seconds: float) -> str:
    """A time in the unit that fits it.

    >>> duration(19.7), duration(1500), duration(8000)
    ('20 s', '25 min', '2.2 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _overview(entries: Sequence[Entry], experiments: Sequence[Experiment]) -> str:
    """A row an experiment, those that have not been run last."""
    rows, there = [], set()
    for entry in entries:
        one, record = entry.experiment, entry.record
        cause = entry.reason.partition(":")[0].lower()
        word = f"**{entry.word}**" + (f": {cause}" if cause else "")
        time, command = duration(record["seconds"]), f"`{record['command']}`"
        rows.append((f"[{one.id}](#{one.id})", one.what, word, time, command))
        there.add(one.id)
    rows += [
        (one.id, one.what, "not run", "–", f"`deva reproduce {one.id}`")
        for one in experiments
        if one.id not in there
    ]
    return markdown_table(("", "what", "verdict", "time", "command"), rows)


def _inside(shows: str, path: Path) -> str:
    """A figure as an element that has its file inside."""
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:image/svg+xml;base64,{data}"
    return f'<figure class="drawn"><img alt="{escape(shows)}" src="{source}"></figure>'
