"""Whether an entry holds elsewhere: other text, sizes, batches and models, nothing tuned again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ..errors import unknown
from ..progress import Result
from ..render import NONE, markdown_table
from ..settings import RunSettings
from .entries import Entry
from .frozen import Frozen
from .leaderboard import NOT_REACHED, tested
from .rules import Rules
from .scores import Standing, against, standing


class Place(NamedTuple):
    """Where an entry is confirmed: what it is, and how a run there differs from the race's."""

    about: str
    changes: Mapping[str, Any]


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


def places(names: Sequence[str], known: Mapping[str, Place] = PLACES) -> dict[str, Place]:
    """The places of these names, all where there are none."""
    for name in names:
        if name not in known:
            raise unknown("place to confirm at", name, known)
    return {name: known[name] for name in names or known}


def confirmation_runs(
    frozen: Frozen, entry: Entry, place: Place, rules: Rules
) -> list[RunSettings]:
    """The runs of an entry at a place, at its frozen rate, with the final seeds."""
    kept = frozen.check(entry, rules)
    runs = (entry.run(rules, kept.lr, seed) for seed in rules.final_seeds)
    return [run.changed(**_scaled(place, entry)) for run in runs]


def _scaled(place: Place, entry: Entry) -> dict[str, Any]:
    """The changes, with the entry's share of the steps where the place has its own."""
    changes = dict(place.changes)
    if "steps" in changes:
        changes["steps"] = round(entry.length * changes["steps"])
    return changes


def confirmation(
    frozen: Frozen,
    pair: tuple[Entry, Entry],
    where: Mapping[str, Place],
    results: Sequence[Result],
    rules: Rules,
) -> str:
    """A table: the first of a pair against Muon, the second, at the places that have been run."""
    by_id = {result["id"]: result for result in results}
    rows = []
    for place in where.values():
        runs = [
            [by_id.get(run.id) for run in confirmation_runs(frozen, entry, place, rules)]
            for entry in pair
        ]
        known = [[run for run in some if run is not None] for some in runs]
        if all(len(some) == len(rules.final_seeds) for some in known):
            one, muon = (
                standing(entry, frozen.entries[entry.name], some, known[1])
                for entry, some in zip(pair, known, strict=True)
            )
            rows.append((place.about, str(known[1][0]["settings"]["steps"]), *_cells(one, muon)))
    head = ("task", "steps", pair[0].name, pair[1].name, "tokens", "lower by")
    return markdown_table(head, rows) if rows else ""


def _cells(one: Standing, muon: Standing) -> tuple[str, ...]:
    test = against(one, muon)
    return (
        one.final.text(".4f"),
        muon.final.text(".4f"),
        NOT_REACHED if one.score is None else f"{one.score:.3f}",
        NONE if test is None else f"{test.gap:.4f} ({tested(test)})",
    )
