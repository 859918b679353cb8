"""All experiments on one page: Markdown for the repository, and HTML that stands alone."""

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

from .. import markup
from ..files import replacing, write_text
from ..pages import render
from ..wording import listed
from . import Scale
from .experiment import Experiment, Record, Shown, Trained, markdown_table, origin, reason, verdict

TITLE: Final = "The paper, reproduced"
WORDS: Final = ("holds", "holds in part", "does not hold")  # with which a verdict begins
AT: Final = {"cpu": "At a scale for two cores", "paper": "At the paper’s own scale"}
MADE: Final = (
    "`deva reproduce all` carries everything out, `deva reproduce --page FILE.md` makes this page "
    "of it."
)
KINDS: Final = {".svg": "image/svg+xml", ".png": "image/png"}
LARGEST: Final = 150_000  # bytes of a figure
COLOURS: Final = (256, 128, 64, 32)  # that a figure of lines gets by with


@dataclass(frozen=True)
class Entry:
    """An experiment that has been run, and what there is to see of it."""

    experiment: Experiment | Trained
    record: Record
    shown: Shown

    @property
    def word(self) -> str:
        """The verdict in a word or three."""
        verdict = self.shown.verdict
        return max(filter(verdict.startswith, WORDS), key=len, default=verdict)

    @property
    def cause(self) -> str:
        """Why not all holds, in a word or three behind a colon."""
        cause = reason(self.record, self.shown).partition(":")[0].lower()
        return f": {cause}" if cause else ""

    @property
    def command(self) -> str:
        """What to type to see it again."""
        return self.experiment.command(self.record)


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
    with TemporaryDirectory() as drawn:
        entries = [
            Entry(each, record, each.show(record["results"], Path(drawn)))
            for each in experiments
            if (record := each.kept(scale, folder)) is not None
        ]
        figures = [light_figures(each.shown.figures, page.with_suffix("")) for each in entries]
    shown = {each.experiment.id for each in entries}
    missing = [each for each in experiments if each.id not in shown]
    sections = [_section(*each) for each in zip(entries, figures, strict=True)]
    body = "\n\n".join([_overview(entries, missing), *sections])
    write_text(page, f"# {TITLE}\n\n{headline(entries)}\n\n{_facts(entries)}\n\n{body}\n")
    write_text(folder / "report.html", _html(entries, body, page.parent))
    return [page, folder / "report.html"]


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
    if not entries:
        return MADE
    machines = sorted({entry.record["environment"]["processor"] for entry in entries})
    times: dict[str, float] = {}  # that of a run which several experiments share once
    for entry in entries:
        times |= entry.experiment.seconds(entry.record)
    return f"{MADE} Added up, it took {duration(sum(times.values()))} on {listed(machines)}."


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
            f"**{each.word}**{each.cause}",
            duration(each.record["seconds"]),
            f"`{each.command}`",
        )
        for each in entries
    ]
    rows += [
        (each.id, each.what, "not run", "–", f"`deva reproduce {each.id}`") for each in missing
    ]
    return markdown_table(("", "what", "verdict", "time", "command"), rows)


def _section(entry: Entry, figures: Sequence[Path]) -> str:
    experiment, shown = entry.experiment, entry.shown
    parts = [
        f"## {experiment.id}",
        f"{experiment.what[0].upper()}{experiment.what[1:]}. In the paper: {experiment.place}.",
        markup.demoted(shown.text),
        *(f"![{experiment.what}]({path.parent.name}/{path.name})" for path in figures),
        f"*{shown.caption}*" if shown.caption else "",
        verdict(experiment, entry.record, shown),
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


# Figures that are light enough for a repository and for a page that has them inside --------------


def light_figures(paths: Sequence[Path], folder: Path) -> list[Path]:
    """The figures in a folder, a file each: as SVG where that is small, else as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    stems = dict.fromkeys(path.with_suffix("") for path in paths)
    return [_light(stem.with_suffix(".svg"), stem.with_suffix(".png"), folder) for stem in stems]


def _light(svg: Path, png: Path, folder: Path) -> Path:
    """The lighter file of a figure; a large picture has as many colours as it may have."""
    from PIL import Image

    for path in (svg, png):
        if path.stat().st_size <= LARGEST:
            return Path(shutil.copyfile(path, folder / path.name))
    target = folder / png.name
    with Image.open(png) as image:
        whole = image.convert("RGB")
    for colours in COLOURS:
        with replacing(target) as partial:
            # without dithering, which would scatter dots over the white and help no line
            whole.quantize(colours, dither=Image.Dither.NONE).save(partial, optimize=True)
        if target.stat().st_size <= LARGEST:
            break
    return target
