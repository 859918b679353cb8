"""docs/race.md: rules, leaderboard, ablations and the rest, from the results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..files import write_lines, write_text
from ..progress import Result
from ..render import listed, markdown_table, rate
from ..reproduce.measures import gap, noise
from ..results.curves import final_loss
from .chart import draw_race
from .confirm import confirmation
from .frozen import FROZEN
from .leaderboard import markdown, tested
from .robustness import robustness
from .rules import rules_text
from .scores import Standing, against
from .state import Race
from .tuning import at_an_end, best_rate, losses

NOTES: Final = "race-notes.md"
DIGITS: Final = 5  # of a loss in the file that is kept


def publish(race: Race, docs: Path) -> list[Path]:
    """The files written to docs: race.md, and of the runs race.jsonl, race.json and a chart."""
    docs.mkdir(parents=True, exist_ok=True)
    results, rows = race.results, race.standings()
    written = [docs / "race.md"]
    if results:
        write_lines(docs / "race.jsonl", map(compact, results))
        written.append(docs / "race.jsonl")
    if race.frozen is not None:
        if race.frozen_path != docs / FROZEN:
            race.frozen.write(docs / FROZEN)
        written.append(docs / FROZEN)
    if rows:
        written += draw_race(rows, race.need_frozen().muon, docs)
    shown = replace(race, published=docs / "race.jsonl") if results else race
    write_text(docs / "race.md", page(shown))  # of what was written, to its last digit
    return written


def compact(result: Result) -> dict[str, Any]:
    """A result without what the race does not look at."""
    curve = result["curve"]
    kept = ("id", "label", "ran_as", "status", "step", "settings", "unit", "units", "parameters")
    return {
        **{key: result[key] for key in kept if key in result},
        "state_bytes": result["state_bytes"],
        "curve": {
            "step": curve["step"],
            "units": curve["units"],
            "seconds": [round(x, 1) for x in curve["seconds"]],
            "loss": [None if x is None else round(x, DIGITS) for x in curve["loss"]],
        },
        "mean_milliseconds": result["mean_milliseconds"],
        "environment": result["environment"],
        "command": result["command"],
    }


def page(race: Race) -> str:
    """The page."""
    rows = race.standings()
    sections = [
        ("The rules", rules_text(race.rules)),
        ("Leaderboard", markdown(rows, race.rules) + FIGURE * bool(rows)),
        ("Ablations", _ablations(rows)),
        ("What did not work", "\n\n".join(filter(None, (_without_effect(rows), _notes(race))))),
        ("Tuning", _tuning(race)),
        ("Tried on the way", _strays(race)),
        ("Confirmation, nothing tuned again", _confirmations(race, rows)),
        ("Room for the learning rate", _robustness(race)),
    ]
    body = "\n\n".join(f"## {title}\n\n{text.strip()}" for title, text in sections if text)
    return f"{INTRODUCTION}\n{body}\n"


INTRODUCTION: Final = """\
# The race

Which optimizer reaches the loss of a tuned Muon with the fewest tokens, on a task small enough for
two cores. `deva race page` writes this page from the runs, which are all kept in race.jsonl beside
it as soon as there are any; `deva race --list --results docs/race.jsonl` prints the board.

```bash
deva race --entries      # what takes part
deva race                # tune, freeze, run the final seeds; goes on where it was stopped
```
"""

FIGURE: Final = "\n\n![The curves of the race](race.svg)"

STRAYS: Final = """\
What no row above counts: settings that are no entry, entries that were not tuned in full, and rates
that tuning did not ask for.

"""

CONFIRMED: Final = """\
At the rates that the race froze, on the final seeds, with runs that are shorter than the race's.
Tokens (or images) are those to Muon's final loss there, as a share of what Muon took."""


def _notes(race: Race) -> str:
    """What somebody wrote about this race, in race-notes.md beside its results."""
    path = race.frozen_path.with_name(NOTES)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _ablations(rows: Sequence[Standing]) -> str:
    """By how much each ablation ends above what it differs from: above zero it does harm."""
    table, known = [], {row.entry.name: row for row in rows}
    for row in rows:
        whole = known.get(row.entry.of)  # what it differs from in one thing
        if row.entry.kind != "ablation" or whole is None:
            continue
        test = against(whole, row)
        effect = "–" if test is None else f"{test.gap:+.4f} ({tested(test)})"
        table.append((row.entry.name, row.entry.about, whole.entry.name, effect))
    head = ("entry", "what it changes", "of", "ends higher by")
    return markdown_table(head, table) if table else ""


def _without_effect(rows: Sequence[Standing]) -> str:
    """The candidates that do not end below Muon by more than the noise."""
    found = []
    muon = next((row for row in rows if row.score == 1.0), None)
    for row in rows:
        if row.entry.kind != "candidate" or muon is None or muon.entry.length != row.entry.length:
            continue
        if gap(row.final, muon.final) <= (noise(row.final, muon.final) or 0.0):
            found.append(
                f"- **{row.entry.name}** ({row.entry.about}): {row.final.text('.4f')} against "
                f"{muon.final.text('.4f')} of {muon.entry.name}"
            )
    head = "Not below Muon by more than the spread over the seeds:\n\n"
    return head + "\n".join(found) if found else ""


def _tuning(race: Race) -> str:
    """The rates that each entry was tuned with."""
    results, table = race.results, []
    for entry in race.entries.values():
        if tried := losses(entry, results, race.rules):
            best = rate(best_rate(tried)) + " (at an end)" * at_an_end(tried)
            text = ", ".join(f"{rate(lr)}: {loss:.4f}" for lr, loss in sorted(tried.items()))
            table.append((entry.name, f"`{entry.optimizer}`", best, text))
    if not table:
        return ""
    seeds = listed(map(str, race.rules.tuning_seeds))
    head = ("entry", "settings", "best", f"rates, and the loss on seed {seeds}")
    return f"{markdown_table(head, table)}\n\n{_searched(race)}"


def _searched(race: Race) -> str:
    """How many settings of each optimizer have been tried, entries or not: a search is a choice."""
    seeds = race.rules.tuning_seeds
    labels = {run["label"] for run in race.results if run["settings"]["seed"] in seeds}
    counts = Counter(label.partition(":")[0] for label in labels)
    most_first = sorted(counts, key=lambda name: (-counts[name], name))
    tried = listed(f"{counts[name]} of {name}" for name in most_first)
    return (
        f"Settings that have been run on seed {listed(map(str, seeds))} at one rate or more: "
        f"{tried}. An optimizer of which more were tried had more chances to do well on that seed."
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
    rows = [
        (f"`{run['label']}`", rate(run["settings"]["lr"]), str(run["settings"]["seed"]), loss)
        for run in sorted(results, key=final_loss)
        if run["settings"]["seed"] in rules.tuning_seeds and run["id"] not in counted
        for loss in [f"{final_loss(run):.4f}" if run["status"] == "finished" else run["status"]]
    ]
    return STRAYS + markdown_table(("settings", "lr", "seed", "loss"), rows) if rows else ""


def _confirmations(race: Race, rows: Sequence[Standing]) -> str:
    """The table of every entry that was run elsewhere."""
    frozen = race.frozen
    if frozen is None:
        return ""
    results, muon = race.results, race.muon()
    tables = [
        confirmation(frozen, (row.entry, muon), race.places, results, race.rules)
        for row in rows
        if row.entry != muon
    ]
    shown = [table for table in tables if table]
    return "\n\n".join([CONFIRMED, *shown]) if shown else ""


def _robustness(race: Race) -> str:
    entries = [entry for entry in race.entries.values() if entry.length == 1.0]
    return robustness(entries, race.results, race.rules)
