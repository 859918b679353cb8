"""What takes part in the race, and by which rules: the same task, budget and seeds for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    size = SIZES[rules.base.size]
    return _RULES.format(
        base=rules.base,
        size=size,
        tokens=rules.base.batch * size.context,
        budget=rules.budget,
        tuning=listed(map(str, rules.tuning_seeds)),
        final=listed(map(str, rules.final_seeds)),
        muons=listed(rules.muons),
    )


_RULES: Final = """\
**The task.** The laboratory's GPT with {size.layers} layers of width {size.width} \
on `{base.data}` in a byte-level
BPE of {base.vocabulary}; {base.steps} steps of {base.batch} × {size.context} = {tokens:,} tokens. \
The rate is constant
and then falls to zero over the last {base.decay:.0%} of the steps. \
The validation loss is taken every
{base.evaluate_every} steps.

**The score** is the number of tokens at which an entry's validation loss, the mean over the final
seeds, reaches the target, as a share of the tokens that Muon took. The target is the final loss of
Muon: of the entries {muons} the one that tuning finds best. Between two
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
   of tokens to the target where schedules differ in length. With three seeds that takes
   |t| > 4.3 for p < 0.05, and p knows nothing of how many entries were tried.
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
    """

    name: str
    optimizer: str
    lr: float
    about: str
    kind: Literal["baseline", "candidate", "ablation"] = "candidate"
    of: str = ""
    length: float = 1.0

    def run(self, rules: Rules, lr: float, seed: int) -> RunSettings:
        """The run of this entry at a rate with a seed."""
        steps = round(self.length * rules.base.steps)
        label = Entrant.parse(self.optimizer).label
        return rules.base.changed(optimizer=label, lr=lr, seed=seed, steps=steps)


Entries = Mapping[str, Entry]


def _baseline(name: str, optimizer: str, about: str, lr: float = RATE) -> Entry:
    return Entry(name, optimizer, lr, about, "baseline")


def _deva(name: str, about: str, of: str = "", length: float = 1.0, /, **changes: str) -> Entry:
    """DeVA with these settings, and unless they say otherwise with those that it had at first."""
    first = {"betas": "0.8/0.95/0.95", "msign": "newton-schulz", "nesterov": "true"}
    settings = {**first, "sides": "short", **changes}
    optimizer = "deva:" + ",".join(f"{key}={settings[key]}" for key in sorted(settings))
    return Entry(name, optimizer, RATE, about, "ablation" if of else "candidate", of, length)


_SOFT: Final = {"msign": "soft", "variant": "whitened"}
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
)
# fmt: on

ENTRIES: Final[Entries] = MappingProxyType({row.name: row for row in _ROWS})
"""Every entry by name, in the order of the table."""


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
        "resnet": Place("ResNet-20 on CIFAR-10", {**_IMAGES, "task": "resnet", "size": "resnet20"}),
        "vit": Place("a small ViT on CIFAR-10", {**_IMAGES, "task": "vit", "size": "mini"}),
    }
)
