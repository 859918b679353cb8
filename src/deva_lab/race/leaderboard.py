"""The leaderboard: as aligned text for a terminal, and as Markdown for a document."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from ..render import NONE, aligned, markdown_table, milliseconds, rate
from .paired import Paired
from .rules import Rules
from .scores import Standing, against, runner_up, tokens_against

GOAL = 0.9  # of Muon's tokens
CHANCE = 0.05  # the p from which on a difference is taken for chance
HEAD = ("", "entry", "tokens", "time", "final loss", "lr", "ms a step", "of it optimizer")
NOT_REACHED = "not reached"


def cells(rows: Sequence[Standing]) -> list[tuple[str, ...]]:
    """The rows of the leaderboard."""
    return [
        (
            str(place),
            row.entry.name + " (late)" * row.frozen.late,
            NOT_REACHED if row.score is None else f"{row.score:.3f}",
            NONE if row.time is None else f"{row.time:.3f}",
            row.final.text(".4f"),
            rate(row.frozen.lr),
            milliseconds(row.step),
            milliseconds(row.optimizer),
        )
        for place, row in enumerate(rows, start=1)
    ]


def text(rows: Sequence[Standing], rules: Rules) -> str:
    """The leaderboard for a terminal, with the command that repeats each entry."""
    if not rows:
        return "No entry has been run on the final seeds yet: deva race"
    table = aligned(HEAD, cells(rows), left=range(len(HEAD)), ruled=True)
    commands = [f"{row.entry.name}: {row.entry.about}\n  {command(row, rules)}" for row in rows]
    return "\n".join([table, "", verdict(rows), goal(rows), "", *commands])


def markdown(rows: Sequence[Standing], rules: Rules) -> str:
    """The leaderboard for a document."""
    if not rows:
        return "No entry has been run on the final seeds yet."
    commands = "\n".join(f"# {row.entry.name}\n{command(row, rules)}" for row in rows)
    words = f"{verdict(rows)} {goal(rows)}"
    return f"{markdown_table(HEAD, cells(rows))}\n\n{words}\n\n```bash\n{commands}\n```"


def verdict(rows: Sequence[Standing]) -> str:
    """What the first place rests on, in words: the paired test against the runner-up.

    Final losses are compared where both have the same number of steps, tokens to the target else.
    """
    first, second = rows[0], runner_up(rows)
    name = first.entry.name
    if second is None:
        return f"{name} is first, and alone."
    same = first.entry.length == second.entry.length
    found = against(first, second) if same else tokens_against(first, second)
    if found is None:
        return f"{name} is first; against {second.entry.name} it cannot be tested seed by seed."
    less, more = ("lower", "higher") if same else ("earlier", "later")
    what = (
        f"ends {abs(found.gap):.4f}" if same else f"is there {abs(found.gap):.3f} of Muon's tokens"
    )
    return (
        f"{name} is first. Seed by seed it {what} {less if found.gap > 0 else more} than "
        f"{second.entry.name}, the runner-up ({tested(found)})."
    )


def goal(rows: Sequence[Standing]) -> str:
    """Whether the first one is where the race was meant to lead, in words."""
    text = f"The goal was {GOAL:.2f} of Muon's tokens and no more than its time: "
    first = rows[0]
    if first.score is None or first.time is None:
        return text + "no entry reached its loss."
    text += f"{first.score:.3f} {_met(first.score <= GOAL)}, "
    text += f"and {first.time:.3f} of the time {_met(first.time <= 1)}.{_below_muon(first, rows)}"
    level = [(row.time, row) for row in rows[1:] if row.time is not None and _level(first, row)]
    time, quickest = min(level, key=itemgetter(0), default=(first.time, first))
    if time >= first.time:
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
    return f" Seed by seed it ends {test.gap:.4f} lower than {muon.entry.name} ({tested(test)})."


def _level(one: Standing, other: Standing) -> bool:
    """Whether two that have the same number of steps end alike as far as the seeds can tell."""
    test = against(one, other)
    return test is not None and test.p >= CHANCE


def _met(holds: bool) -> str:
    return "meets it" if holds else "misses it"


def tested(found: Paired) -> str:
    """The result of a test in a few words."""
    chance = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    return f"paired t = {found.t:.1f} over {found.pairs} seeds, {chance}"


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
