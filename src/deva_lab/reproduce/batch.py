"""`fig-batch`: loss and time over the batches in a step, at the same number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from ..progress import Result
from .claims import Finding, compared, findings_table, sentence, throughout
from .experiment import Shown
from .language_methods import DEVA, METHODS, MUON, NAMES, SOAP
from .language_runs import about
from .measures import at_one_speed, below, gap, select, speeds
from .sweeps import Series, held, measured, usual_noise

STEPS: Final = "every method, from each number of batches to the next"
PAIRS: Final = "against each of the others, at every number of batches"
CAPTION: Final = (
    "Validation loss at the end, time of training for 1,000 tokens, and the optimizer's part of "
    "it, over the batches in a step. All runs see the same number of tokens: more batches are "
    "fewer steps. Bars are deviations over seeds."
)


def show(results: Sequence[Result], folder: Path) -> Shown:
    """Losses and times, and the paper's claims about both."""
    numbers = sorted({result["settings"]["accumulate"] for result in results})
    steady = at_one_speed(results)
    runs = {
        label: {n: select(steady, optimizer=label, accumulate=n) for n in numbers}
        for label in METHODS
    }
    sweep = measured(runs, over="batches in a step", unit="ms / 1,000 tokens", per_units=1000)
    findings = loss_findings(sweep.losses) + time_findings(sweep.times)
    text = [about(results), sweep.table(), findings_table(findings), speeds(results)]
    return Shown("\n\n".join(text), sentence(findings), sweep.draw(folder, "fig-batch"), CAPTION)


def loss_findings(losses: Series[int]) -> list[Finding]:
    """More batches are worse, DeVA-S∞ is lowest, SOAP suffers most."""
    spread, (first, last) = usual_noise(losses), _ends(losses)
    rise = {label: gap(own[first], own[last]) for label, own in losses.items()}
    others = max(rise[label] for label in METHODS if label != SOAP)
    rising = [
        below("", "", before, after, spread=spread)
        for own in losses.values()
        for before, after in pairwise(own.values())
    ]
    lowest = _ahead(losses, DEVA)
    return [
        throughout("the loss of every method rises with the batches", STEPS, rising, held(rising)),
        throughout("DeVA-S∞ is lowest for every number of batches", PAIRS, lowest, held(lowest)),
        compared(
            "SOAP suffers most",
            f"rise of the loss from {first} to {last} batches",
            rise[SOAP] - others,
            noise=spread,
            how=", ".join(f"{NAMES[label]} {value:+.3f}" for label, value in rise.items()),
        ),
    ]


def time_findings(times: Series[int]) -> list[Finding]:
    """Muon is fastest, time falls with the batches, and the gap to DeVA-S∞ narrows."""
    spread, (first, last) = usual_noise(times), _ends(times)
    fastest = _ahead(times, MUON)
    falling = [
        below("", "", after, before, spread=spread)
        for own in times.values()
        for before, after in pairwise(own.values())
    ]
    wide, narrow = (gap(times[MUON][n], times[DEVA][n]) for n in (first, last))
    return [
        throughout("Muon is fastest for every number of batches", PAIRS, fastest, held(fastest)),
        throughout("the time for a token falls with the batches", STEPS, falling, held(falling)),
        compared(
            "the gap between Muon and DeVA-S∞ narrows",
            f"ms for 1,000 tokens, with {first} and with {last} batches",
            wide - narrow,
            noise=spread,
            how=f"{wide:.1f} and {narrow:.1f}",
        ),
    ]


def _ends(series: Series[int]) -> tuple[int, int]:
    return min(series[DEVA]), max(series[DEVA])


def _ahead(series: Series[int], ours: str) -> list[Finding]:
    """Whether a method is below each of the others, everywhere."""
    spread = usual_noise(series)
    return [
        below("", "", series[ours][n], series[label][n], spread=spread)
        for n in series[ours]
        for label in METHODS
        if label != ours
    ]
