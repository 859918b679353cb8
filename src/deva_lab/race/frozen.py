"""What is fixed before the final seeds are run: the rate of each entry, and whose loss to reach."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import read_record, write_record
from ..run.environment import environment
from ..run.progress import Result
from .entries import Entries, Entry
from .rules import Rules
from .tuning import best_rate, losses

FROZEN = "race.json"


@dataclass(frozen=True)
class FrozenEntry:
    """An entry as it was when it was frozen."""

    optimizer: str
    length: float
    lr: float
    tuning_losses: dict[str, float]  # by learning rate
    date: str
    commit: str
    late: bool  # whether a final run of any entry was there already


@dataclass
class Frozen:
    """What race.json holds."""

    muon: str  # the entry whose final loss is the target
    rules: dict[str, Any]
    entries: dict[str, FrozenEntry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Frozen | None:
        """What a file holds, or None if there is no such file.

        Raises:
            UsageError: If it is damaged.
        """
        if not path.is_file():
            return None
        saved = read_record(path, begins=("muon",))
        if saved is None:
            raise UsageError(
                f"{path} is damaged: take a copy of it from where the race was published, or "
                "remove it and freeze again, which marks as late what is frozen after final runs"
            )
        entries = {name: FrozenEntry(**entry) for name, entry in saved["entries"].items()}
        return cls(saved["muon"], saved["rules"], entries)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_record(path, asdict(self))

    def check(self, entry: Entry, rules: Rules) -> FrozenEntry:
        """The entry as it was frozen.

        Raises:
            UsageError: If it was not, or if it or the rules have changed since.
        """
        if self.rules != terms(rules):
            raise UsageError(
                "the rules of the race have changed since it was frozen: start another one in "
                "another folder (--out)"
            )
        if entry.name not in self.entries:
            raise UsageError(
                f"{entry.name} is not frozen, and the final seeds are for frozen entries alone: "
                f"deva race tune {entry.name}, then deva race freeze {entry.name}"
            )
        kept = self.entries[entry.name]
        if (kept.optimizer, kept.length) != (entry.optimizer, entry.length):
            raise UsageError(
                f"{entry.name} was frozen as {kept.optimizer} on {kept.length:g} of the steps and "
                f"is now {entry.optimizer} on {entry.length:g}: give it another name"
            )
        return kept


def terms(rules: Rules) -> dict[str, Any]:
    """The rules as JSON has them."""
    terms = {**asdict(rules), "base": rules.base.saved()}
    read: dict[str, Any] = json.loads(json.dumps(terms))
    return read


def freeze(
    frozen: Frozen | None,
    entries: Sequence[Entry],
    table: Entries,
    results: Sequence[Result],
    rules: Rules,
) -> Frozen:
    """What is frozen, with these entries added; those that were keep what they have.

    Raises:
        UsageError: If an entry has not been tuned in full, or differs from what was frozen.
    """
    if frozen is None:
        frozen = Frozen(_better_muon(table, results, rules), terms(rules))
    late = any(result["settings"]["seed"] in rules.final_seeds for result in results)
    for entry in entries:
        if entry.name in frozen.entries:
            frozen.check(entry, rules)
        else:
            frozen.entries[entry.name] = _frozen(entry, results, rules, late)
    return frozen


def _better_muon(table: Entries, results: Sequence[Result], rules: Rules) -> str:
    tuned = {name: _tuned(table[name], results, rules) for name in rules.muons}
    return min(tuned, key=lambda name: min(tuned[name].values()))


def _frozen(entry: Entry, results: Sequence[Result], rules: Rules, late: bool) -> FrozenEntry:
    tried = _tuned(entry, results, rules)
    return FrozenEntry(
        optimizer=entry.optimizer,
        length=entry.length,
        lr=best_rate(tried),
        tuning_losses={f"{lr:g}": loss for lr, loss in sorted(tried.items())},
        date=time.strftime("%Y-%m-%d %H:%M:%S"),
        commit=environment(rules.base.device)["commit"],
        late=late,
    )


def _tuned(entry: Entry, results: Sequence[Result], rules: Rules) -> dict[float, float]:
    tried = losses(entry, results, rules)
    if len(tried) < rules.budget:
        raise UsageError(
            f"{entry.name} has been tuned with {len(tried)} of {rules.budget} learning rates: "
            f"deva race tune {entry.name}"
        )
    return tried
