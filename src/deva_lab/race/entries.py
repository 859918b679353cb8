"""What takes part in the race, and by which rules: the same task, budget and seeds for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from ..errors import unknown
from ..models.gpt import SIZES
from ..render import aligned, listed
from ..run.entrants import Entrant
from ..run.settings import RunSettings

T = TypeVar("T")

# The rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """The task and the terms.

    Attributes:
        base: The run of every entry but for its optimizer, rate, seed and length.
        tuning_seeds: What learning rates are chosen by.
        final_seeds: What entries are judged by; no choice may depend on them.
        budget: How many learning rates an entry is tuned with, each on all tuning seeds.
        muons: The entries of which the best one, by tuning, sets the target.
    """

    base: RunSettings
    tuning_seeds: tuple[int, ...] = (0,)
    final_seeds: tuple[int, ...] = (101, 102, 103)
    budget: int = 4
    muons: tuple[str, ...] = ("muon-light", "muon-quick")


RACE: Final = Rules(
    RunSettings(
        task="gpt",
        size="small",
        data="fineweb-sample",
        vocabulary=512,
        optimizer="",
        lr=0.0,
        seed=0,
        steps=600,
        batch=8,
        decay=0.4,
        evaluate_every=25,
    )
)


def rules_text(rules: Rules = RACE) -> str:
    """The rules, as Markdown."""
    from scipy.stats import t  # takes a second to import

    size, seeds = SIZES[rules.base.size], len(rules.final_seeds)
    return _RULES.format(
        seeds=seeds,
        t=t.ppf(0.975, seeds - 1),
        base=rules.base,
        size=size,
        tokens=rules.base.batch * size.context,
        budget=rules.budget,
        tuning=listed(map(str, rules.tuning_seeds)),
        final=listed(map(str, rules.final_seeds)),
        muons=_muons_text(rules.muons),
    )


def _muons_text(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return f"of the entry {names[0]}"
    return f"of the entries {listed(names)} the one that tuning finds best"


_RULES: Final = """\
**The task.** The laboratory's GPT with {size.layers} layers of width {size.width} \
on `{base.data}` in a byte-level
BPE of {base.vocabulary}; {base.steps} steps of {base.batch} × {size.context} = {tokens:,} tokens. \
The rate is constant
and then falls to zero over the last {base.decay:.0%} of the steps, unless an entry has a fall of
its own. The validation loss is taken every {base.evaluate_every} steps.

**The score** is the number of tokens at which an entry's validation loss, the mean over the final
seeds, reaches the target, as a share of the tokens that Muon took. The target is the final loss of
Muon: {muons}. Between two
evaluations the curve is a line. An entry may have a shorter schedule of its own, and then counts by
what it took of that. Lower is better. Times are scaled so that the model's part of a step, the same
work in all runs, takes the same in all of them.

**The terms.**

1. Every entry is tuned with {budget} learning rates on seed {tuning}: three a factor of two apart
   about where it starts, then one by one, beyond an end that is best, else into the middle (of
   logarithms) of the wider gap beside the best. No other setting is tuned: another setting is
   another entry.
2. `deva race freeze` writes down the rate of each entry and which Muon sets the target, with date
   and commit. What is frozen is not changed any more.
3. The final seeds, {final}, are run at the frozen rates alone and used for no choice. An entry
   frozen when final seeds of others had been run is marked as late.
4. Seed by seed, all entries start from the same weights and see the same batches.
5. An order is claimed where a paired t-test over the final seeds carries it: of final losses, or
   of tokens to the target where schedules differ in length. With {seeds} seeds that takes
   |t| > {t:.1f} for p < 0.05, and p knows nothing of how many entries were tried.
6. All runs, lost ones too, stay in the file of results.
"""

# The entries --------------------------------------------------------------------------------------

RATE: Final = 0.01  # where tuning starts, unless the entry says otherwise


@dataclass(frozen=True)
class Entry:
    """An entry of the race.

    Attributes:
        name: What `deva race` calls it.
        optimizer: The optimizer with its settings, as `deva compare` has it, without a rate.
        lr: The rate that its tuning starts from.
        about: What it is, in a line.
        kind: A baseline, a candidate, or an ablation, which shows what one ingredient does.
        of: For an ablation the entry that it differs from in one thing.
        length: The steps of its schedule as a share of the race's.
        decay: The share of its steps in which the rate falls to zero; None is the race's.
    """

    name: str
    optimizer: str
    lr: float
    about: str
    kind: Literal["baseline", "candidate", "ablation"] = "candidate"
    of: str = ""
    length: float = 1.0
    decay: float | None = None

    def run(self, rules: Rules, lr: float, seed: int) -> RunSettings:
        """The run of this entry at a rate with a seed."""
        steps = round(self.length * rules.base.steps)
        label = Entrant.parse(self.optimizer).label
        decay = rules.base.decay if self.decay is None else self.decay
        return rules.base.changed(optimizer=label, lr=lr, seed=seed, steps=steps, decay=decay)


Entries = Mapping[str, Entry]


def _baseline(name: str, optimizer: str, about: str, lr: float = RATE) -> Entry:
    return Entry(name, optimizer, lr, about, "baseline")


def _deva(name: str, about: str, of: str = "", length: float = 1.0, /, **changes: str) -> Entry:
    """DeVA with these settings, and unless they say otherwise with those that it had at first."""
    first = {"betas": "0.8/0.95/0.95", "msign": "newton-schulz", "nesterov": "true"}
    settings = {**first, "sides": "short", **changes}
    optimizer = "deva:" + ",".join(f"{key}={settings[key]}" for key in sorted(settings))
    return Entry(name, optimizer, RATE, about, "ablation" if of else "candidate", of, length)


def _falling(entry: Entry) -> Entry:
    """The entry with a rate that falls for longer than in the first round."""
    return replace(entry, decay=0.7)


_SOFT: Final = {"msign": "soft", "variant": "whitened"}
_LEAN: Final = {"msign": "soft", "variant": "lean"}
_POLAR: Final = {"msign": "polar-express", "variant": "whitened"}

# fmt: off
_ROWS: Final = (
    _baseline("adamw", "adamw", "AdamW", 0.005),
    _baseline("lion", "lion", "Lion", 0.002),
    _baseline("muon", "muon", "Muon"),
    _baseline("muon-nesterov", "muon:nesterov=true", "Muon with Nesterov momentum"),
    _baseline("muon-light", "muon:momentum=0.9,nesterov=true", "the same with β₁ = 0.9"),
    _baseline("muon-quick", "muon:momentum=0.8,nesterov=true", "the same with β₁ = 0.8, as DeVA"),
    _baseline("adamuon", "adamuon", "AdaMuon"),
    _baseline("soap-light", "soap:betas=0.9/0.95/0.95", "SOAP with β₁ = 0.9"),
    _baseline("deva-paper", "deva-sinf:rest=adamw", "DeVA-S∞ with the paper's settings"),
    _baseline("deva-authors", "deva-sinf-authors:rest=adamw", "the same, its authors' κ"),
    _deva("deva", "Γ ⊙ msign(M), as in the paper; β₁ = 0.8, Nesterov", variant="default"),
    _deva("soft", "the defaults of DeVA 0.2: soft msign of M / √V in the basis", **_SOFT),
    _deva("whitened", "Newton–Schulz in place of the soft msign", "soft", variant="whitened"),
    _deva("whitened-polar", "Polar Express in its place", "soft", **_POLAR),
    _deva("soft-light", "β₁ = 0.9", "soft", **_SOFT, betas="0.9/0.95/0.95"),
    _deva("soft-plain", "without Nesterov momentum", "soft", **_SOFT, nesterov="false"),
    _deva("soft-both", "a basis on both sides", "soft", **_SOFT, sides="both"),
    _deva("whitened-90", "whitened, on 90 % of the steps", "", 0.9, variant="whitened"),
    Entry("muon-soft", "muon:momentum=0.8,msign=soft,nesterov=true", RATE, "the soft msign",
          "ablation", "muon-quick"),
    # The second round: lean DeVA, and a lever that it was given, which Muon has as well.
    _deva("lean", "the defaults of DeVA, the schedule of the first round", **_LEAN),
    _falling(_deva("lean-fall", "the rate falls over the last 70 % of the steps", **_LEAN)),
    _falling(_deva("lean-fall-90", "the same on 90 % of the steps", "", 0.9, **_LEAN)),
    _falling(_deva("lean-fall-85", "the same on 85 % of the steps", "", 0.85, **_LEAN)),
    _falling(_baseline("muon-fall", "muon:momentum=0.8,nesterov=true",
                       "muon-quick, its rate falling over the last 70 % of the steps")),
)
# fmt: on

ENTRIES: Final[Entries] = MappingProxyType({row.name: row for row in _ROWS})
"""Every entry of both rounds by name, in the order of the table."""


def chosen(what: str, names: Iterable[str], known: Mapping[str, T]) -> list[T]:
    """Entries or places by their names, each once; all of them where there are no names.

    Raises:
        UsageError: If there is none of a name; `what` is what it would be.
    """
    wanted = list(dict.fromkeys(names)) or list(known)
    for name in wanted:
        if name not in known:
            raise unknown(what, name, known)
    return [known[name] for name in wanted]


def listing(rules: Rules = RACE, entries: Entries = ENTRIES) -> str:
    """The entries as aligned text: name, kind, settings, what it is."""
    rows = [(e.name, e.kind, e.optimizer, e.about) for e in entries.values()]
    budget = f"{rules.budget} learning rates each, {rules.budget * len(entries)} tuning runs a seed"
    return "\n".join([aligned((), rows, left=range(4)), "", budget])


# The courses --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """A task with its rules, and who runs there against whom.

    Attributes:
        name: What `--course` calls it.
        about: What it is, in a line.
        rules: The task and the terms; `rules.muons` set the target.
        entries: What takes part.
        goal: The share of Muon's tokens that was aimed at.
        fair: The entry that is Muon with every lever that DeVA is given; "" if there is none.
        fair_goal: The share of its tokens that was aimed at.
    """

    name: str
    about: str
    rules: Rules
    entries: Entries
    goal: float
    fair: str = ""
    fair_goal: float = 1.0


_FIRST_ROUND: Final = tuple(e.name for e in _ROWS[: [e.name for e in _ROWS].index("lean")])
_SECOND_ROUND: Final = (
    *("adamw", "lion", "muon-quick", "muon-fall", "adamuon", "soap-light"),
    *("deva-paper", "deva-authors"),
    *("lean", "lean-fall", "lean-fall-90", "lean-fall-85"),
)


def _course(
    name: str,
    about: str,
    *,
    seeds: int = 4,
    budget: int = 4,
    start: float = 1.0,
    goal: float = 0.93,
    fair_goal: float = 0.93,
    **changes: Any,
) -> Course:
    """A course of the second round, whose final seeds nothing has seen before.

    Tuning starts from `start` times the rate that an entry starts from on the sprint.
    """
    rules = Rules(
        RACE.base.changed(**changes),
        final_seeds=tuple(range(201, 201 + seeds)),
        budget=budget,
        muons=("muon-quick",),
    )
    rows = (ENTRIES[entry] for entry in _SECOND_ROUND)
    entries = MappingProxyType({row.name: replace(row, lr=start * row.lr) for row in rows})
    return Course(name, about, rules, entries, goal, "muon-fall", fair_goal)


_FIRST: Final = MappingProxyType({name: ENTRIES[name] for name in _FIRST_ROUND})
_COURSES: Final = (
    _course("sprint", "600 steps of 2,048 tokens", seeds=8, budget=5, goal=0.85, fair_goal=0.92),
    _course("distance", "five times the steps of the sprint", steps=3000, evaluate_every=100),
    _course("broad", "four times the batch of the sprint", start=2.0, batch=32),
    Course("first", "the first round, in which DeVA was whitened", RACE, _FIRST, goal=0.9),
)
COURSES: Final[Mapping[str, Course]] = MappingProxyType({one.name: one for one in _COURSES})


# Where an entry is confirmed: other text, sizes, batches and models, nothing tuned again ----------


class Place(NamedTuple):
    """What a place is, and how a run there differs from the race's."""

    about: str
    changes: Mapping[str, Any]

    def changed(self, run: RunSettings, length: float) -> RunSettings:
        """A run there; of the steps that the place has, an entry takes its own share."""
        changes = dict(self.changes)
        if "steps" in changes:
            changes["steps"] = round(length * changes["steps"])
        return run.changed(**changes)


_TEXT: Final = {"steps": 300}
_HEAVY: Final = {"steps": 200}  # where a step is twice the work or more
_IMAGES: Final = {"data": "cifar10-small", "vocabulary": 0, "steps": 200, "batch": 64}

PLACES: Final[Mapping[str, Place]] = MappingProxyType(
    {
        "books": Place("classic books", {**_TEXT, "data": "books"}),
        "wide": Place("twice the width", {**_HEAVY, "size": "small-wide"}),
        "deep": Place("twice the depth", {**_HEAVY, "size": "small-deep"}),
        "half-batch": Place("half the batch", {**_TEXT, "batch": 4}),
        "double-batch": Place("double the batch", {**_HEAVY, "batch": 16}),
        "python": Place("python source", {**_TEXT, "data": "python"}),
        "resnet": Place("ResNet-20 on CIFAR-10", {**_IMAGES, "task": "resnet", "size": "resnet20"}),
        "vit": Place("a small ViT on CIFAR-10", {**_IMAGES, "task": "vit", "size": "mini"}),
    }
)
