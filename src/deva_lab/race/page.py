"""The leaderboard for a terminal, and docs/race.md with all that the results say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from ..files import write_lines, write_text
from ..models.gpt import SIZES
from ..render import NONE, aligned, listed, markdown_table, milliseconds, rate
from ..render.figures import GREY, draw, draw_curves, styles
from ..reproduce.experiment import written
from ..reproduce.measures import gap, noise
from ..results import final_loss, mean_curve
from ..run.progress import Result
from . import track
from .entries import COURSES, Course, Entry, Place, Rules
from .standings import (
    ELSEWHERE,
    Frozen,
    Race,
    Standing,
    against,
    interval,
    paired,
    results_of,
    runner_up,
    standing,
)
from .tuning import at_an_end, best_rate, losses, robustness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The leaderboard ----------------------------------------------------------------------------------

CHANCE: Final = 0.05  # the p from which on a difference is taken for chance
NOT_REACHED: Final = "not reached"
NOT_RUN: Final = "No entry has been run on the final seeds yet"


def rules_text(rules: Rules) -> str:
    """The rules, as Markdown."""
    from scipy.stats import t  # takes a second to import

    bound = t.ppf(0.975, len(rules.final_seeds) - 1)
    return _as_it_stands(
        "rules", rules=rules, base=rules.base, size=SIZES[rules.base.size], t=bound
    )


def text(rows: Sequence[Standing], course: Course) -> str:
    """The leaderboard for a terminal, with the command that repeats each entry."""
    if not rows:
        return f"{NOT_RUN}: deva race"
    head, cells = _board(rows, course)
    table = aligned(head, cells, left=range(len(head)), ruled=True)
    rules = course.rules
    commands = [f"{row.entry.name}: {row.entry.about}\n  {command(row, rules)}" for row in rows]
    return "\n".join([table, "", claim(rows, course), verdict(rows), "", *commands])


def markdown(rows: Sequence[Standing], course: Course, figure: str) -> str:
    """The leaderboard for a document."""
    if not rows:
        return f"{NOT_RUN}."
    return _as_it_stands(
        "leaderboard",
        table=markdown_table(*_board(rows, course)),
        verdict=f"{verdict(rows)} {_quicker(rows)}".strip(),
        commands=[(row.entry.name, command(row, course.rules)) for row in rows],
        figure=figure,
    )


def _board(rows: Sequence[Standing], course: Course) -> tuple[list[str], list[list[str]]]:
    """The head and the cells of the leaderboard."""
    cells = [
        {
            "": str(place),
            "entry": row.entry.name + " (late)" * row.frozen.late,
            "tokens": _share(row.score),
            **({"tokens / fair Muon": _share(row.fair)} if course.fair else {}),
            "time": NONE if row.time is None else f"{row.time:.3f}",
            "final loss": row.final.text(".4f"),
            "lr": rate(row.frozen.lr),
            "ms a step": milliseconds(row.step),
            "of it optimizer": milliseconds(row.optimizer),
        }
        for place, row in enumerate(rows, start=1)
    ]
    return list(cells[0]), [list(row.values()) for row in cells]


def _share(score: float | None) -> str:
    return NOT_REACHED if score is None else f"{score:.3f}"


def command(row: Standing, rules: Rules) -> str:
    """What repeats an entry on the final seeds."""
    run = row.entry.run(rules, row.frozen.lr, rules.final_seeds[0])
    optimizer = run.optimizer + (":" if ":" not in run.optimizer else ",") + f"lr={run.lr:g}"
    seeds = ",".join(map(str, rules.final_seeds))
    return (
        f"deva compare --optimizers {optimizer} --size {run.size} --data {run.data} "
        f"--vocabulary {run.vocabulary} --steps {run.steps} --batch {run.batch} "
        f"--decay {run.decay:g} --evaluate-every {run.evaluate_every} --seeds {seeds}"
    )


def claim(rows: Sequence[Standing], course: Course) -> str:
    """Whether DeVA is where the course was meant to lead, in words: what a reader asks first."""
    if not rows:
        return f"{NOT_RUN}."
    own = [row for row in rows if row.entry.kind == "candidate"]
    goals = [("score", _target(rows), "the tuned Muon", course.goal)]
    for row in rows:
        if row.entry.name == course.fair:
            goals.append(("fair", row, "a Muon that has every lever of DeVA's", course.fair_goal))
    best = {which: _best(own, which) for which in ("score", "fair", "time")}
    return written("race.md", "claim", goals=goals, best=best, paired=paired, interval=interval)


def _target(rows: Sequence[Standing]) -> Standing:
    """The Muon whose final loss is the target."""
    return next(row for row in rows if row.sets_target)


def _best(rows: Sequence[Standing], which: str) -> Standing | None:
    """The row with the least score, fair score or time; None if no row has any."""
    known = [row for row in rows if getattr(row, which) is not None]
    return min(known, key=attrgetter(which), default=None)


def verdict(rows: Sequence[Standing]) -> str:
    """What the first place rests on, in words: the paired test against the runner-up.

    Final losses are compared where both have the same number of steps, tokens to the target else.
    """
    first, second, test = rows[0], runner_up(rows), None
    if second is not None:
        same = first.entry.length == second.entry.length
        test = against(first, second) if same else paired(first.scores, second.scores)
    return written("race.md", "verdict", first=first, second=second, test=test)


def _quicker(rows: Sequence[Standing]) -> str:
    """The first against Muon, and one that the paired test cannot tell from it but is quicker."""
    first, *others = rows
    tests = [(row, against(first, row)) for row in others]
    level = [row for row, test in tests if test is not None and test.p >= CHANCE]
    quickest = _best([first, *level], "time") or first
    shown: dict[str, Any] = {"first": first, "quickest": quickest, "muon": _target(rows)}
    return written("race.md", "quicker", against=against, **shown)


def confirmation(
    frozen: Frozen,
    pair: tuple[Entry, Entry],
    places: Iterable[Place],
    results: Sequence[Result],
    rules: Rules,
) -> str:
    """A table: the first of a pair against a Muon, the second, at the places that have been run."""
    table = []
    for place in places:
        runs = [results_of(frozen.runs(entry, rules, place), results) for entry in pair]
        if not all(runs):
            continue
        one, muon = (
            standing(entry, frozen, some, runs[1]) for entry, some in zip(pair, runs, strict=True)
        )
        test = against(one, muon)
        table.append(
            (
                place.about,
                str(runs[1][0]["settings"]["steps"]),
                one.final.text(".4f"),
                muon.final.text(".4f"),
                NOT_REACHED if one.score is None else f"{one.score:.3f}",
                NONE if test is None else f"{test.gap:.4f} ({test})",
            )
        )
    head = ("task", "steps", pair[0].name, pair[1].name, "tokens", "lower by")
    return markdown_table(head, table) if table else ""


# The chart ----------------------------------------------------------------------------------------

BASELINES: Final = ("adamw", "soap-light", "deva-paper", "muon-fall")
BEST: Final = 3  # entries that are no baselines


def draw_race(rows: Sequence[Standing], folder: Path, name: str = "race") -> tuple[Path, Path]:
    """The paths of a PNG and an SVG: Muon, a few baselines and the best of the others."""
    muon, target = _target(rows).entry.name, _target(rows).final.mean
    others = [row.entry.name for row in rows if row.entry.kind != "baseline"]
    names = {muon, *BASELINES, *[name for name in others if name != muon][:BEST]}
    shown = [row for row in rows if row.entry.name in names]
    labels = [f"{row.entry.optimizer.partition(':')[0]}:{row.entry.name}" for row in shown]
    looks = styles(labels)
    curves = {
        replace(looks[label], name=row.entry.name): mean_curve(row.runs)
        for label, row in zip(labels, shown, strict=True)
    }

    def fill(figure: Figure) -> None:
        axes = figure.add_subplot()
        title = f"Validation loss, mean over the final seeds; the line is the target, {muon}'s end"
        draw_curves(axes, curves, x="tokens")
        axes.set_title(title, fontsize=9, loc="left", color=GREY)
        axes.axhline(target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        legend = axes.get_legend_handles_labels()
        figure.legend(*legend, loc="outside lower center", ncols=4, frameon=False, handlelength=4.5)

    return draw(folder, name, (7.6, 4.4), fill)


# The track of others ------------------------------------------------------------------------------

TRACK_STEPS: Final = 3250  # of a whole schedule there


def recipe(entry: Entry, race: Race) -> str:
    """The command of an entry on modded-nanogpt's track, which `track` runs.

    Its rate is that of the baseline's Muon there, times the ratio of both rates in our race.
    """
    frozen, ratio = race.frozen, None
    if frozen is not None and entry.name in frozen.entries and frozen.muon in frozen.entries:
        ratio = frozen.check(entry, race.rules).lr / frozen.entries[frozen.muon].lr
    scale = {"rate": track.RATE, "decay": track.DECAY, "steps": TRACK_STEPS}
    return _as_it_stands("recipe", entry=entry, ratio=ratio, **scale) + "\n"


# The page of a course -----------------------------------------------------------------------------

DIGITS: Final = 5  # of a loss in the file that is kept


def publish(race: Race, docs: Path) -> list[Path]:
    """The files written to docs: the page of a course, its runs, what was frozen, and a chart.

    Raises:
        UsageError: If there are no runs: the page of none would take the place of a published one.
    """
    results, rows, frozen, name = race.results, race.standings(), race.frozen, race.course.name
    if not results:
        raise UsageError(
            f"{race.folder} has no runs of the course {name}, so there is no page to write: "
            f"run deva race --course {name}, or say where they are: --out DIR or --results FILE"
        )
    docs.mkdir(parents=True, exist_ok=True)
    runs = docs / f"{name}.jsonl"
    paths = [docs / f"{name}.md", runs]
    write_lines(runs, map(compact, results))
    if frozen is not None:
        if race.frozen_path != runs.with_suffix(".json"):
            frozen.write(runs.with_suffix(".json"))
        paths.append(runs.with_suffix(".json"))
        if rows:
            paths += draw_race(rows, docs, name)
    shown = replace(race, published=runs)  # of what was written, to its last digit
    write_text(docs / f"{name}.md", page(shown))
    return paths


def summary(docs: Path) -> str:
    """The courses that have been published in a table, as docs/race.md has it."""
    rows = []
    for name, course in COURSES.items():
        runs = docs / f"{name}.jsonl"
        race = Race(docs / name, runs if runs.is_file() else None, course)
        own = [row for row in race.standings() if row.entry.kind == "candidate"]
        goals = {"score": course.goal, "fair": course.fair_goal if course.fair else None, "time": 1}
        cells = [
            NONE
            if not own or goal is None
            else f"{_share(getattr(_best(own, which), which, None))} (goal {goal:g})"
            for which, goal in goals.items()
        ]
        where = f"[{name}](race/{name}.md)" if race.published else name
        rows.append((where, course.about, *cells))
    head = ("course", "what it is", "tokens / tuned Muon", "tokens / fair Muon", "time / Muon")
    return markdown_table(head, rows)


def compact(result: Result) -> dict[str, Any]:
    """A result without what the race does not look at, and without the folder it was run in."""
    curve = result["curve"]
    kept = (
        "id", "label", "ran_as", "status", "step", "settings", "unit", "units", "parameters",
        "state_bytes", "curve", "mean_milliseconds", "environment", "command",
    )  # fmt: skip
    shorter = {
        "step": curve["step"],
        "units": curve["units"],
        "seconds": [round(x, 1) for x in curve["seconds"]],
        "loss": [None if x is None else round(x, DIGITS) for x in curve["loss"]],
    }
    command = re.sub(r" --out(=| )\S+", "", result["command"])
    shown = {key: result[key] for key in kept if key in result}
    return shown | {"curve": shorter, "command": command}


def page(race: Race) -> str:
    """The page of a course."""
    rows, course = race.standings(), race.course
    notes = race.frozen_path.with_name(f"{course.name}-notes.md")  # what somebody wrote about it
    failures = [_without_effect(rows), notes.read_text("utf-8") if notes.is_file() else ""]
    entries = race.entries.values()
    sections = {
        "The rules": rules_text(race.rules),
        "Leaderboard": markdown(rows, course, f"{course.name}.svg"),
        "Ablations": _ablations(rows),
        "What did not work": "\n\n".join(filter(None, failures)),
        "Tuning": _tuning(race),
        "Tried on the way": _strays(race),
        "Confirmation, nothing tuned again": _confirmations(race, rows),
        "Room for the learning rate": robustness(entries, race.results, race.rules),
    }
    head = {"name": course.name, "about": course.about, "claim": claim(rows, course)}
    return _as_it_stands("page", **head, sections=sections) + "\n"


def _as_it_stands(block: str, **values: Any) -> str:
    """A block of the template, its lines as they are."""
    return written("race.md", block, joined=False, **values)


def _ablations(rows: Sequence[Standing]) -> str:
    """By how much each ablation ends above what it differs from: above zero it does harm."""
    table, known = [], {row.entry.name: row for row in rows}
    for row in rows:
        whole = known.get(row.entry.of)  # what it differs from in one thing
        if whole is not None:
            test = against(whole, row)
            effect = NONE if test is None else f"{test.gap:+.4f} ({test})"
            table.append((row.entry.name, row.entry.about, whole.entry.name, effect))
    head = ("entry", "what it changes", "of", "ends higher by")
    return markdown_table(head, table) if table else ""


def _without_effect(rows: Sequence[Standing]) -> str:
    """The candidates that do not end below Muon by more than the noise."""
    if not rows:
        return ""
    muon = _target(rows)
    found = [
        row
        for row in rows
        if row.entry.kind == "candidate"
        and row.entry.length == muon.entry.length
        and gap(row.final, muon.final) <= (noise(row.final, muon.final) or 0.0)
    ]
    return _as_it_stands("without_effect", rows=found, muon=muon) if found else ""


def _tuning(race: Race) -> str:
    """The rates that each entry was tuned with, and how many settings have been tried at all."""
    results, table = race.results, []
    for entry in race.entries.values():
        if tried := losses(entry, results, race.rules):
            best = rate(best_rate(tried)) + " (at an end)" * at_an_end(tried)
            text = ", ".join(f"{rate(lr)}: {loss:.4f}" for lr, loss in sorted(tried.items()))
            table.append((entry.name, f"`{entry.optimizer}`", best, text))
    if not table:
        return ""
    tuning = race.rules.tuning_seeds
    seeds = listed(map(str, tuning))
    labels = {run["label"] for run in results if run["settings"]["seed"] in tuning}
    counts = Counter(label.partition(":")[0] for label in labels)
    most_first = sorted(counts, key=lambda name: (-counts[name], name))
    head = ("entry", "settings", "best", f"rates, and the loss on seed {seeds}")
    searched = [f"{counts[name]} of {name}" for name in most_first]
    rows = markdown_table(head, table)
    return written("race.md", "tuning", table=rows, seeds=seeds, searched=searched)


def _strays(race: Race) -> str:
    """The runs on the tuning seeds that no entry was tuned by."""
    results, rules = race.results, race.rules
    counted = {
        entry.run(rules, lr, seed).id
        for entry in race.entries.values()
        for lr in losses(entry, results, rules)
        for seed in rules.tuning_seeds
    }
    rows = []
    for run in sorted(results, key=final_loss):
        lr, seed = run["settings"]["lr"], run["settings"]["seed"]
        if seed in rules.tuning_seeds and run["id"] not in counted:
            loss = f"{final_loss(run):.4f}" if run["status"] == "finished" else run["status"]
            rows.append((f"`{run['label']}`", rate(lr), str(seed), loss))
    table = markdown_table(("settings", "lr", "seed", "loss"), rows)
    return _as_it_stands("strays", table=table) if rows else ""


def _confirmations(race: Race, rows: Sequence[Standing]) -> str:
    """The table of every entry that was run elsewhere."""
    if not rows:
        return ""
    frozen, results = race.need_frozen(), race.results
    tables = [
        confirmation(frozen, (row.entry, muon), race.places.values(), results, race.rules)
        for row in rows
        for muon in race.opponents()
        if row.entry not in race.opponents()
    ]
    shown = [table for table in tables if table]
    seeds = listed(map(str, race.rules.final_seeds[:ELSEWHERE]))
    return _as_it_stands("confirmed", tables=shown, seeds=seeds) if shown else ""
