"""All experiments on one page: Markdown for the repository, and HTML that stands alone."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from markupsafe import Markup

from .. import markup
from ..files import write_text
from ..pages import render
from ..wording import listed
from . import Scale
from .experiment import Experiment, Shown, kept, markdown_table, origin
from .light import light_figures
from .trained import Trained, kept_record

TITLE: Final = "The paper, reproduced"
WORDS: Final = ("holds", "holds in part", "does not hold")  # with which a verdict begins
AT: Final = {"cpu": "At a scale for two cores", "paper": "At the paper’s own scale"}
KINDS: Final = {".svg": "image/svg+xml", ".png": "image/png"}
HEAD: Final = ("", "what", "verdict", "time", "command")


@dataclass(frozen=True)
class Entry:
    """An experiment that has been run, and what there is to see of it."""

    experiment: Experiment | Trained
    record: Mapping[str, Any]
    shown: Shown

    @property
    def word(self) -> str:
        """The verdict in a word or three."""
        verdict = self.shown.verdict
        return max(filter(verdict.startswith, WORDS), key=len, default=verdict)

    @property
    def command(self) -> str:
        """What to type to see it again; a record may know another folder."""
        if isinstance(self.experiment, Trained):
            return str(self.record["command"])
        return f"deva reproduce {self.experiment.id}"


def write_page(
    experiments: Sequence[Experiment | Trained], scale: Scale, folder: Path, page: Path
) -> list[Path]:
    """The paths of the page as Markdown, and of report.html in the folder that has the results.

    Args:
        experiments: What there could be to show.
        scale: At which scale.
        folder: Where the results are.
        page: The file for the Markdown; figures go into a folder beside it, of its name.
    """
    figures = page.with_suffix("")
    with TemporaryDirectory() as drawn:
        entries = _entries(experiments, scale, folder, Path(drawn))
        paths = {each.experiment.id: light_figures(each.shown.figures, figures) for each in entries}
    missing = [each for each in experiments if each.id not in paths]
    sections = [_section(each, paths[each.experiment.id]) for each in entries]
    body = "\n\n".join([_overview(entries, missing), *sections])
    write_text(page, f"# {TITLE}\n\n{headline(entries)}\n\n{_facts(entries)}\n\n{body}\n")
    write_text(folder / "report.html", _html(entries, body, page.parent))
    return [page, folder / "report.html"]


def _entries(
    experiments: Sequence[Experiment | Trained], scale: Scale, folder: Path, drawn: Path
) -> list[Entry]:
    """What the folder has the results of, with figures drawn into another."""
    found = []
    for each in experiments:
        record = (
            kept_record(each, scale, folder)
            if isinstance(each, Trained)
            else kept(each, scale, folder)
        )
        if record is not None:
            found.append(Entry(each, record, each.show(record["results"], drawn)))
    return found


def headline(entries: Sequence[Entry]) -> str:
    """How many experiments came out how, in a sentence."""
    if not entries:
        return "Nothing has been run yet."
    counts = Counter(entry.word for entry in entries)
    found = [f"{counts[word]} {_many(word, counts[word])}" for word in WORDS if counts[word]]
    others = len(entries) - sum(counts[word] for word in WORDS)
    found += [f"{others} came out otherwise"] * bool(others)
    where = AT[entries[0].record["scale"]]
    return f"{where}, of {len(entries)} figures, tables and sets of theorems, {listed(found)}."


def _many(word: str, number: int) -> str:
    return word if number == 1 else word.replace("holds", "hold").replace("does", "do")


def _facts(entries: Sequence[Entry]) -> str:
    """How such a page is made, and where the numbers of this one were."""
    machines = sorted({entry.record["environment"]["processor"] for entry in entries})
    made = (
        "`deva reproduce all` carries everything out, `deva reproduce --page FILE.md` makes this "
        "page of it."
    )
    if not entries:
        return made
    return f"{made} Added up, it took {duration(_seconds(entries))} on {listed(machines)}."


def _seconds(entries: Sequence[Entry]) -> float:
    """The time of all, that of a run which several share once."""
    times: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry.experiment, Trained):
            times |= {run["id"]: run["curve"]["seconds"][-1] for run in entry.record["results"]}
        else:
            times[entry.experiment.id] = entry.record["seconds"]
    return sum(times.values())


def duration(seconds: float) -> str:
    """A time in the unit that fits it.

    >>> duration(19.7), duration(1500), duration(8000)
    ('20 s', '25 min', '2.2 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _overview(entries: Sequence[Entry], missing: Sequence[Experiment | Trained]) -> str:
    rows = [
        (
            f"[{each.experiment.id}](#{each.experiment.id})",
            each.experiment.what,
            f"**{each.word}**",
            duration(each.record["seconds"]),
            f"`{each.command}`",
        )
        for each in entries
    ]
    rows += [
        (each.id, each.what, "not run", "–", f"`deva reproduce {each.id}`") for each in missing
    ]
    return markdown_table(HEAD, rows)


def _section(entry: Entry, figures: Sequence[Path]) -> str:
    experiment, shown = entry.experiment, entry.shown
    parts = [
        f"## {experiment.id}",
        f"{experiment.what[0].upper()}{experiment.what[1:]}. In the paper: {experiment.place}.",
        markup.demoted(shown.text),
        *(f"![{experiment.what}]({path.parent.name}/{path.name})" for path in figures),
        f"*{shown.caption}*" if shown.caption else "",
        f"**Verdict**: {shown.verdict}.",
        origin(entry.record, entry.command),
    ]
    return "\n\n".join(filter(None, parts))


def _html(entries: Sequence[Entry], body: str, folder: Path) -> str:
    """The same as a page that has its figures inside."""

    def figure(shows: str, where: str) -> str:
        path = folder / where
        data = base64.b64encode(path.read_bytes()).decode()
        source = f"data:{KINDS[path.suffix]};base64,{data}"
        return f'<figure class="drawn"><img alt="{escape(shows)}" src="{source}"></figure>'

    return render(
        "reproduction.html",
        title=TITLE,
        headline=headline(entries),
        facts=Markup(markup.inline(_facts(entries))),
        body=Markup(markup.html(body, figure)),
    )
