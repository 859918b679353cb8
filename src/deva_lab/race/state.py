"""The race as it stands in a folder: its results, what is frozen, and the tables it is run by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..carry_out import RESULTS
from ..errors import UsageError
from ..progress import Result, is_failed
from ..results import read_results
from .confirm import PLACES, Place
from .entries import ENTRIES, Entries, Entry
from .frozen import FROZEN, Frozen
from .rules import RACE, Rules
from .scores import Standing, standings


@dataclass
class Race:
    """A race in a folder; `results` and `frozen` are read when they are asked for.

    Attributes:
        folder: Where its runs go.
        published: A file of results to look at in place of the folder's, race.json beside it.
    """

    folder: Path
    published: Path | None = None
    rules: Rules = RACE
    entries: Entries = field(default_factory=lambda: ENTRIES)
    places: Mapping[str, Place] = field(default_factory=lambda: PLACES)

    def __post_init__(self) -> None:
        if self.published is not None and not self.published.is_file():
            raise UsageError(f"--results {self.published}: there is no such file")

    @property
    def results(self) -> list[Result]:
        """All runs so far that have come to an end, the lost ones too."""
        path = self.published or self.folder / RESULTS
        results = read_results(path) if path.exists() else []
        return [result for result in results if not is_failed(result)]

    @property
    def frozen_path(self) -> Path:
        """Where race.json is."""
        return (self.published.parent if self.published else self.folder) / FROZEN

    @property
    def frozen(self) -> Frozen | None:
        """What is frozen, if anything is."""
        return Frozen.read(self.frozen_path)

    def need_frozen(self) -> Frozen:
        """What is frozen.

        Raises:
            UsageError: If nothing is.
        """
        frozen = self.frozen
        if frozen is None:
            raise UsageError(
                f"nothing is frozen in {self.frozen_path.parent}: deva race tune, then deva race "
                "freeze, and then the final seeds"
            )
        return frozen

    def standings(self) -> list[Standing]:
        """The entries whose final seeds have been run, the best first."""
        frozen = self.frozen
        if frozen is None:
            return []
        known = {name: entry for name, entry in self.entries.items() if name in frozen.entries}
        return standings(frozen, known, self.results, self.rules)

    def muon(self) -> Entry:
        """The entry that sets the target."""
        return self.entries[self.need_frozen().muon]
