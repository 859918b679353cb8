"""Everything that a run of the benchmark depends on; printed and saved with its results."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..errors import UsageError


class SettingsError(UsageError):
    """What was asked for cannot be measured; the message says what can."""


@dataclass(frozen=True)
class Settings:
    """What is measured, and how often.

    Attributes:
        shapes: Names of shape sets, see `shapes.SETS`.
        dims: Widths of one GPT block, to be measured in place of the shape sets.
        only: Names of subjects or globs; see `subjects.SUBJECTS`.
        baseline: The subject that the others are divided by.
        rounds: How often every subject takes its turn.
        steps: Steps in a turn: whole refresh periods, so that a turn is a fair share of them.
        warmup: Steps before the first round; what is compiled needs two refreshes to settle.
        refresh_every: Steps between two refreshes of a basis, for every method that has one.
        gradients: How many random gradients take turns; one alone would leave covariances singular.
        compile: The backend by which each of ours is measured once more, compiled; None is none.
        profile: Whether to count FLOPs and memory and to profile, after the timing.
        threads: Threads of torch; 0 leaves its own choice.
        peak_size: n of the n×n×n product that the machine's peak is measured with.
        lr, weight_decay: The same for all; a decay of zero would spare some of them a pass.
    """

    shapes: tuple[str, ...] = ("gpt-256", "gpt-768", "tiny-batch")
    dims: tuple[int, ...] = ()
    only: tuple[str, ...] = ("*",)
    baseline: str = "muon"
    rounds: int = 7
    steps: int = 10
    warmup: int = 21
    refresh_every: int = 10
    gradients: int = 3
    compile: str | None = None
    profile: bool = True
    threads: int = 0
    device: str = "cpu"
    seed: int = 0
    peak_size: int = 2048
    lr: float = 1e-3
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        for name in ("steps", "warmup", "refresh_every", "gradients"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.threads < 0:
            raise SettingsError(f"threads must be at least 0, got {self.threads}")
        if self.steps % self.refresh_every:
            raise SettingsError(
                f"steps must be a multiple of refresh_every ({self.refresh_every}), got "
                f"{self.steps}: every turn has to hold its share of the refreshes"
            )
        if self.rounds < 2:
            raise SettingsError(f"rounds must be at least 2 to have a spread, got {self.rounds}")

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of what is measured."""
        return tuple(f"gpt-{d}:1" for d in self.dims) or self.shapes


def matching(patterns: Iterable[str], names: Iterable[str], *, kind: str) -> list[str]:
    """The names that match any of the patterns, in the order of the names.

    >>> matching(["deva-*", "soap"], ["soap", "muon", "deva-both"], kind="subject")
    ['soap', 'deva-both']
    """
    known, patterns = list(names), list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SettingsError(unknown(kind, pattern, known))
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is none of the known ones; it names the nearest."""
    known = list(known)
    longer = sorted((candidate for candidate in known if candidate.startswith(name)), key=len)
    nearest = (longer or difflib.get_close_matches(name, known, n=1, cutoff=0))[0]
    return f"unknown {kind} {name!r}, did you mean {nearest!r}? Known are {', '.join(known)}"
