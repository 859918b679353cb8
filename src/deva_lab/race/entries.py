"""The entries: an optimizer with settings each, where its tuning starts, and what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from ..entrants import Entrant
from ..errors import unknown
from ..render import aligned
from ..settings import RunSettings
from .rules import RACE, Rules

Kind = Literal["baseline", "candidate", "ablation"]


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
    kind: Kind = "candidate"
    of: str = ""
    length: float = 1.0

    def run(self, rules: Rules, lr: float, seed: int) -> RunSettings:
        """The run of this entry at a rate with a seed."""
        steps = round(self.length * rules.base.steps)
        label = Entrant.parse(self.optimizer).label
        return rules.base.changed(optimizer=label, lr=lr, seed=seed, steps=steps)


Entries = Mapping[str, Entry]

RATE: Final = 0.01  # where tuning starts, unless the entry says otherwise


def _baseline(name: str, optimizer: str, about: str, lr: float = RATE) -> Entry:
    return Entry(name, optimizer, lr, about, "baseline")


_DEVA: Final = {
    "betas": "0.8/0.95/0.95",
    "msign": "newton-schulz",
    "nesterov": "true",
    "sides": "short",
}
"""What the entries of DeVA have unless they say otherwise, whatever its defaults become."""


def _settings(**changes: str) -> str:
    settings = {**_DEVA, **changes}
    return "deva:" + ",".join(f"{key}={settings[key]}" for key in sorted(settings))


def _deva(name: str, about: str, length: float = 1.0, **changes: str) -> Entry:
    return Entry(name, _settings(**changes), RATE, about, length=length)


def _soft(name: str, about: str, **changes: str) -> Entry:
    optimizer = _settings(**{"msign": "soft", "variant": "whitened", **changes})
    return Entry(name, optimizer, RATE, about, "ablation", "soft")


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
    _deva(
        "soft",
        "the defaults of DeVA 0.2: soft msign of M / √V in the basis",
        msign="soft",
        variant="whitened",
    ),
    _soft("whitened", "Newton–Schulz in place of the soft msign", msign="newton-schulz"),
    _soft("whitened-polar", "Polar Express in its place", msign="polar-express"),
    _soft("soft-light", "β₁ = 0.9", betas="0.9/0.95/0.95"),
    _soft("soft-plain", "without Nesterov momentum", nesterov="false"),
    _soft("soft-both", "a basis on both sides", sides="both"),
    _deva("whitened-90", "whitened, on 90 % of the steps", 0.9, variant="whitened"),
    Entry(
        "muon-soft",
        "muon:momentum=0.8,msign=soft,nesterov=true",
        RATE,
        "the soft msign",
        "ablation",
        "muon-quick",
    ),
)

ENTRIES: Final[Entries] = MappingProxyType({row.name: row for row in _ROWS})
"""Every entry by name, in the order of the table."""


def chosen(names: Iterable[str], entries: Entries = ENTRIES) -> list[Entry]:
    """The entries of these names; all of them where there are none.

    Raises:
        UsageError: If there is no entry of a name.
    """
    wanted = list(dict.fromkeys(names)) or list(entries)
    for name in wanted:
        if name not in entries:
            raise unknown("entry of the race", name, entries)
    return [entries[name] for name in wanted]


def listing(rules: Rules = RACE, entries: Entries = ENTRIES) -> str:
    """The entries as aligned text: name, kind, settings, what it is."""
    rows = [(e.name, e.kind, e.optimizer, e.about) for e in entries.values()]
    budget = f"{rules.budget} learning rates each, {rules.budget * len(entries)} tuning runs a seed"
    return "\n".join([aligned((), rows, left=range(4)), "", budget])
