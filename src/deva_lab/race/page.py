"""The leaderboard for a terminal, and docs/race.md with all that the results say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..files import write_lines, write_text
from ..render import NONE, aligned, listed, markdown_table, milliseconds, rate
from ..render.figures import GREY, draw, draw_curves, styles
from ..reproduce.measures import gap, noise
from ..results import final_loss, mean_curve
from ..run.progress import Result
from .entries import COURSES, Course, Entry, Place, Rules, rules_text
from .standings import (
    Frozen,
    Paired,
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
HEAD: Final = ("", "entry", "tokens", "time", "final loss", "lr", "ms a step", "of it optimizer")
FAIR: Final = "tokens / fair Muon"
NOT_REACHED: Final = "not reached"
NOT_RUN: Final = "No entry has been run on the final seeds yet"


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
    commands = "\n".join(f"# {row.entry.name}\n{command(row, course.rules)}" for row in rows)
    parts = [markdown_table(*_board(rows, course)), f"{verdict(rows)}{_quicker(rows)}"]
    return "\n\n".join([*parts, f"```bash\n{commands}\n```", f"![The curves]({figure})"])


def _board(
    rows: Sequence[Standing], course: Course
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the cells of the leaderboard."""
    cells: list[tuple[str, ...]] = [
        (
            str(place),
            row.entry.name + " (late)" * row.frozen.late,
            _share(row.score),
            NONE if row.time is None else f"{row.time:.3f}",
            row.final.text(".4f"),
            rate(row.frozen.lr),
            milliseconds(row.step),
            milliseconds(row.optimizer),
        )
        for place, row in enumerate(rows, start=1)
    ]
    if not course.fair:
        return HEAD, cells
    fair = [_share(row.fair) for row in rows]
    return (
        (*HEAD[:3], FAIR, *HEAD[3:]),
        [(*some[:3], share, *some[3:]) for some, share in zip(cells, fair, strict=True)],
    )


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
    known = {row.entry.name: row for row in rows}
    muon = next(row for name, row in known.items() if name in course.rules.muons)
    said = [_reached(own, "score", muon, "the tuned Muon", course.goal)]
    if course.fair in known:
        about = "a Muon that has every lever of DeVA's"
        said.append(_reached(own, "fair", known[course.fair], about, course.fair_goal))
    timed = [(row.time, row.entry.name) for row in own if row.time is not None]
    if timed:
        time, name = min(timed)
        said.append(
            f"{name} is there after {time:.3f} of Muon's time: the goal, no more than it, is "
            f"{_MET[time <= 1]}."
        )
    return " ".join(said)


_MET: Final = {True: "met", False: "missed"}


def _reached(rows: Sequence[Standing], which: str, muon: Standing, about: str, goal: float) -> str:
    """The best of some entries against a Muon, in words."""
    share, name = _least(rows, which), f"{muon.entry.name}, {about}"
    if share is None:
        return f"No entry of DeVA reaches the end of {name}: the goal of {goal:.2f} is missed."
    row = next(row for row in rows if getattr(row, which) == share)
    spread = interval(row.scores) if which == "score" else None
    within = f" (95 % {spread[0]:.3f} to {spread[1]:.3f})" if spread else ""
    return (
        f"{row.entry.name} reaches the end of {name}, with {share:.3f} of its tokens{within}: the "
        f"goal of {goal:.2f} is {_MET[share <= goal]}.{_ends(row, muon)}"
    )


def _ends(row: Standing, muon: Standing) -> str:
    """A sentence: by how much an entry ends below a Muon, each at the end of its own schedule."""
    found = paired(row.final, muon.final)
    if found is None:
        return ""
    steps = f", after {row.entry.length:.0%} of the steps," if row.entry.length < 1 else ""
    return (
        f" At its end{steps} it is {abs(found.gap):.4f} {'lower' if found.gap > 0 else 'higher'} "
        f"than that Muon at its own ({_tested(found)})."
    )


def verdict(rows: Sequence[Standing]) -> str:
    """What the first place rests on, in words: the paired test against the runner-up.

    Final losses are compared where both have the same number of steps, tokens to the target else.
    """
    first, second = rows[0], runner_up(rows)
    name = first.entry.name
    if second is None:
        return f"{name} is first, and alone."
    same = first.entry.length == second.entry.length
    found = against(first, second) if same else paired(first.scores, second.scores)
    if found is None:
        return f"{name} is first; against {second.entry.name} it cannot be tested seed by seed."
    if same:
        what, less, more = f"ends {abs(found.gap):.4f}", "lower", "higher"
    else:
        what, less, more = f"is there {abs(found.gap):.3f} of Muon's tokens", "earlier", "later"
    return (
        f"{name} is first. Seed by seed it {what} {less if found.gap > 0 else more} than "
        f"{second.entry.name}, the runner-up ({_tested(found)})."
    )


def _quicker(rows: Sequence[Standing]) -> str:
    """A sentence, if one that the paired test cannot tell from the first takes less time."""
    first = rows[0]
    text = _below_muon(first, rows)
    level = [(row.time, row) for row in rows[1:] if row.time is not None and _level(first, row)]
    time, quickest = min(level, key=itemgetter(0), default=(first.time, first))
    if time is None or first.time is None or time >= first.time:
        return text
    return (
        f"{text} {quickest.entry.name}, which the paired test cannot tell from {first.entry.name}, "
        f"takes {quickest.score:.3f} of the tokens and {time:.3f} of the time."
        f"{_below_muon(quickest, rows)}"
    )


def _below_muon(row: Standing, rows: Sequence[Standing]) -> str:
    """A sentence, if the two have the same number of steps: by how much one ends below Muon."""
    muon = next((other for other in rows if other.score == 1), row)
    test = against(row, muon)
    if test is None:
        return ""
    return f" Seed by seed it ends {test.gap:.4f} lower than {muon.entry.name} ({_tested(test)})."


def _level(one: Standing, other: Standing) -> bool:
    """Whether two that have the same number of steps end alike as far as the seeds can tell."""
    test = against(one, other)
    return test is not None and test.p >= CHANCE


def _tested(found: Paired) -> str:
    """The result of a test in a few words."""
    chance = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    return f"paired t = {found.t:.1f} over {found.pairs} seeds, {chance}"


def confirmation(
    frozen: Frozen,
    pair: tuple[Entry, Entry],
    places: Iterable[Place],
    results: Sequence[Result],
    rules: Rules,
) -> str:
    """A table: the first of a pair against Muon, the second, at the places that have been run."""
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
                NONE if test is None else f"{test.gap:.4f} ({_tested(test)})",
            )
        )
    head = ("task", "steps", pair[0].name, pair[1].name, "tokens", "lower by")
    return markdown_table(head, table) if table else ""


# The chart ----------------------------------------------------------------------------------------

BASELINES: Final = ("adamw", "soap-light", "deva-paper", "muon-fall")
BEST: Final = 3  # entries that are no baselines


def draw_race(
    rows: Sequence[Standing], muon: str, folder: Path, name: str = "race"
) -> tuple[Path, Path]:
    """The paths of a PNG and an SVG: Muon, a few baselines and the best of the others."""
    target = next(row.final.mean for row in rows if row.entry.name == muon)
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
        figure.legend(*legend, loc="outside lower center", ncols=4, frameon=False)

    return draw(folder, name, (7.6, 4.4), fill)


# The page of a course -----------------------------------------------------------------------------

DIGITS: Final = 5  # of a loss in the file that is kept

INTRODUCTION: Final = """\
# The race: {name}

{claim}

This course is {about}. [The race](../race.md) has the others and what they add up to. `deva race
page --course {name}` writes this page from the runs, which are all kept in {name}.jsonl beside it;
`deva race --list --course {name} --results docs/race/{name}.jsonl` prints the board.

```bash
deva race --course {name} --entries   # what takes part
deva race --course {name}             # tune, freeze, run the final seeds; goes on if it is stopped
```
"""

STRAYS: Final = """\
What no row above counts: settings that are no entry, entries that were not tuned in full, and rates
that tuning did not ask for.

"""

CONFIRMED: Final = """\
At the rates that the race froze, on the final seeds, with runs that are shorter than the race's.
Tokens (or images) are those to Muon's final loss there, as a share of what Muon took."""


def publish(race: Race, docs: Path) -> list[Path]:
    """The files written to docs: the page of a course, its runs, what was frozen, and a chart."""
    docs.mkdir(parents=True, exist_ok=True)
    results, rows, frozen, name = race.results, race.standings(), race.frozen, race.course.name
    written, runs = [docs / f"{name}.md"], docs / f"{name}.jsonl"
    if results:
        write_lines(runs, map(compact, results))
        written.append(runs)
    if frozen is not None:
        if race.frozen_path != runs.with_suffix(".json"):
            frozen.write(runs.with_suffix(".json"))
        written.append(runs.with_suffix(".json"))
        if rows:
            written += draw_race(rows, frozen.muon, docs, name)
    shown = replace(race, published=runs) if results else race
    write_text(docs / f"{name}.md", page(shown))  # of what was written, to its last digit
    return written


def summary(docs: Path) -> str:
    """The courses that have been published in a table, as docs/race.md has it."""
    rows = []
    for name, course in COURSES.items():
        runs = docs / f"{name}.jsonl"
        race = Race(docs / name, runs if runs.is_file() else None, course)
        own = [row for row in race.standings() if row.entry.kind == "candidate"]
        shares = {which: _least(own, which) for which in ("score", "fair", "time")}
        goals = {"score": course.goal, "fair": course.fair_goal if course.fair else None, "time": 1}
        cells = [
            NONE if not own or goal is None else f"{_share(shares[which])} (goal {goal:g})"
            for which, goal in goals.items()
        ]
        where = f"[{name}](race/{name}.md)" if race.published else name
        rows.append((where, course.about, *cells))
    head = ("course", "what it is", "tokens / tuned Muon", "tokens / fair Muon", "time / Muon")
    return markdown_table(head, rows)


def _least(rows: Sequence[Standing], which: str) -> float | None:
    return min((x for row in rows if (x := getattr(row, which)) is not None), default=None)


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
    entries = [entry for entry in race.entries.values() if entry.length == 1.0]
    head = INTRODUCTION.format(name=course.name, about=course.about, claim=claim(rows, course))
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
    shown = [f"## {title}\n\n{text.strip()}" for title, text in sections.items() if text]
    return "\n".join([head, "\n\n".join(shown), ""])


def _ablations(rows: Sequence[Standing]) -> str:
    """By how much each ablation ends above what it differs from: above zero it does harm."""
    table, known = [], {row.entry.name: row for row in rows}
    for row in rows:
        whole = known.get(row.entry.of)  # what it differs from in one thing
        if whole is not None:
            test = against(whole, row)
            effect = NONE if test is None else f"{test.gap:+.4f} ({_tested(test)})"
            table.append((row.entry.name, row.entry.about, whole.entry.name, effect))
    head = ("entry", "what it changes", "of", "ends higher by")
    return markdown_table(head, table) if table else ""


def _without_effect(rows: Sequence[Standing]) -> str:
    """The candidates that do not end below Muon by more than the noise."""
    muon = next((row for row in rows if row.score == 1.0), None)
    if muon is None:
        return ""
    found = [
        f"- **{row.entry.name}** ({row.entry.about}): {row.final.text('.4f')} against "
        f"{muon.final.text('.4f')} of {muon.entry.name}"
        for row in rows
        if row.entry.kind == "candidate"
        and row.entry.length == muon.entry.length
        and gap(row.final, muon.final) <= (noise(row.final, muon.final) or 0.0)
    ]
    head = "Not below Muon by more than the spread over the seeds:\n\n"
    return head + "\n".join(found) if found else ""


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
    searched = listed(f"{counts[name]} of {name}" for name in most_first)
    head = ("entry", "settings", "best", f"rates, and the loss on seed {seeds}")
    return (
        f"{markdown_table(head, table)}\n\n"
        f"Settings that have been run on seed {seeds} at one rate or more: {searched}. An "
        "optimizer of which more were tried had more chances to do well on that seed."
    )


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
    return STRAYS + markdown_table(("settings", "lr", "seed", "loss"), rows) if rows else ""


def _confirmations(race: Race, rows: Sequence[Standing]) -> str:
    """The table of every entry that was run elsewhere."""
    if not rows:
        return ""
    frozen, results, muon = race.need_frozen(), race.results, race.muon()
    tables = [
        confirmation(frozen, (row.entry, muon), race.places.values(), results, race.rules)
        for row in rows
        if row.entry != muon
    ]
    shown = [table for table in tables if table]
    return "\n\n".join([CONFIRMED, *shown]) if shown else ""
