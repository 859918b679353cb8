"""`fig-freq`: loss and time of SOAP and DeVA-S∞ over the steps between two refreshes of a basis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..entrants import Entrant
from ..progress import Result
from ..wording import percent
from .claims import Finding, compared, findings_table, judged, sentence, throughout
from .experiment import Shown
from .language_methods import DEVA, REFRESH_EVERY, SOAP
from .language_runs import about
from .measures import at_one_speed, below, gap, speeds
from .sweeps import Series, held, measured, usual_noise

ENTRANTS: Final = {SOAP: "soap", DEVA: "deva-sinf"}
NARROW: Final = 0.005  # of the loss; the paper's text has "around 3.27" for DeVA, 1.2 % for SOAP
KNEE: Final = 100  # steps, beyond which the paper sees little gain in time
CAPTION: Final = (
    "Validation loss at the end, mean time of a training step, and the optimizer's part of it, "
    "over the steps between two refreshes of the bases. Bars are deviations over seeds."
)


def show(results: Sequence[Result], folder: Path) -> Shown:
    """Losses and times, and the paper's claims about both."""
    steady = at_one_speed(results)
    runs = {label: _by_frequency(steady, name) for label, name in ENTRANTS.items()}
    sweep = measured(runs, over="steps between refreshes", unit="ms a step")
    findings = loss_findings(sweep.losses) + time_findings(sweep.optimizer)
    notes = f"{_length(results)} {speeds(results)}"
    text = [about(results), sweep.table(), findings_table(findings), notes]
    return Shown("\n\n".join(text), sentence(findings), sweep.draw(folder, "fig-freq"), CAPTION)


def _by_frequency(results: Sequence[Result], name: str) -> dict[int, list[Result]]:
    groups: dict[int, list[Result]] = {}
    for result in results:
        entrant = Entrant.parse(result["label"])
        if entrant.name == name:
            steps = dict(entrant.options).get("refresh_every", REFRESH_EVERY)
            groups.setdefault(steps, []).append(result)
    return dict(sorted(groups.items()))


def _length(results: Sequence[Result]) -> str:
    steps = results[0]["settings"]["steps"]
    return (
        f"A run has {steps:,} steps: a basis that is renewed every {KNEE} of them is renewed about "
        f"{max(1, steps // KNEE)} times."
    )


def loss_findings(losses: Series[int]) -> list[Finding]:
    """DeVA-S∞ is below SOAP at every frequency, and hardly varies."""
    spread = usual_noise(losses)
    parts = [below("", "", losses[DEVA][k], losses[SOAP][k], spread=spread) for k in losses[DEVA]]
    means = [loss.mean for loss in losses[DEVA].values()]
    varies = max(means) / min(means) - 1
    return [
        throughout("DeVA-S∞ ends below SOAP at every frequency", "final loss", parts, held(parts)),
        judged(
            "the loss of DeVA-S∞ hardly varies",
            f"highest over lowest, at most {percent(NARROW, 1)} apart",
            varies,
            most=NARROW,
            how=f"{percent(varies, 2)}: {min(means):.3f} to {max(means):.3f}",
        ),
    ]


def time_findings(times: Series[int]) -> list[Finding]:
    """Time falls from every 10 steps to every 100, and little beyond."""
    spread = usual_noise(times)
    first, last = min(times[DEVA]), max(times[DEVA])
    knee = max((k for k in times[DEVA] if k <= KNEE), default=last)
    falling = [
        below("", "", own[knee], own[first], spread=spread, spec=".1f") for own in times.values()
    ]
    early, late = (
        sum(gap(own[b], own[a]) for own in times.values()) / len(times)
        for a, b in ((first, knee), (knee, last))
    )
    return [
        throughout(
            f"a step takes less time with refreshes every {knee} steps than every {first}",
            "mean time of the optimizer's part, ms: SOAP; DeVA-S∞",
            falling,
        ),
        compared(
            "beyond that there is less to gain",
            f"ms gained from {first} to {knee}, and from {knee} to {last}",
            early - late,
            noise=spread,
            how=f"{early:.1f} and {late:.1f}",
        ),
    ]
