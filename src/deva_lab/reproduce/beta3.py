"""`table-beta3`: the final loss of DeVA-S∞ over β₃, the decay of its covariances."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..entrants import Entrant
from ..progress import Result
from ..wording import percent
from .claims import Finding, findings_table, judged, sentence, throughout
from .experiment import Shown, markdown_table
from .language_methods import BETA, DEVA, NAMES, SOAP
from .language_runs import about
from .measures import Measured, below, final, noise, select
from .printed import PRINTED

PAPER: Final = dict(zip(*(PRINTED["table-beta3"][key] for key in ("beta3", "loss")), strict=True))
SOAP_BEST: Final = min(PRINTED["table-lr"]["soap"])
NARROW: Final = 0.005  # of the loss; the paper has 0.0019


def show(results: Sequence[Result], folder: Path) -> Shown:
    """The losses, how much they vary, and whether they are below the best of SOAP."""
    losses = {beta3: final(_runs(results, beta3)) for beta3 in _values(results)}
    target = _best_soap(results)
    findings = [_varies(losses), _below_soap(losses, target, _usual_noise(results))]
    text = [about(results), _table(losses), findings_table(findings)]
    text.append(
        f"The best of SOAP over learning rates: {SOAP_BEST:.4f} in the paper, {target.text()} here."
    )
    return Shown("\n\n".join(text), sentence(findings))


def _beta3(result: Result) -> float | None:
    """The β₃ of a run of DeVA-S∞; None for another method."""
    entrant = Entrant.parse(result["label"])
    if entrant.name != "deva-sinf":
        return None
    betas: tuple[float, ...] = dict(entrant.options).get("betas", (BETA,) * 3)
    return betas[2]


def _values(results: Sequence[Result]) -> list[float]:
    return sorted({beta3 for beta3 in map(_beta3, results) if beta3 is not None})


def _runs(results: Sequence[Result], beta3: float) -> list[Result]:
    return [result for result in results if _beta3(result) == beta3]


def _best_soap(results: Sequence[Result]) -> Measured:
    """The best final loss of SOAP over learning rates, with the seeds of that rate."""
    runs = select(results, optimizer=SOAP)
    rates = {run["settings"]["lr"] for run in runs}
    return min((final(select(runs, lr=lr)) for lr in rates), key=lambda loss: loss.mean)


def _usual_noise(results: Sequence[Result]) -> float | None:
    """The noise between DeVA-S∞ and SOAP at the usual rate."""
    lr = select(results, optimizer=DEVA)[0]["settings"]["lr"]
    return noise(*(final(select(results, optimizer=label, lr=lr)) for label in (DEVA, SOAP)))


def _varies(losses: dict[float, Measured]) -> Finding:
    means = [loss.mean for loss in losses.values()]
    varies = max(means) / min(means) - 1
    spreads = [loss.spread for loss in losses.values() if loss.spread is not None]
    seeds = f"; over seeds up to {max(spreads):.3f}" if spreads else ""
    return judged(
        f"{NAMES[DEVA]} is robust to β₃",
        f"highest over lowest loss, at most {percent(NARROW, 1)} apart (paper: {_paper_varies()})",
        varies,
        most=NARROW,
        how=f"{percent(varies, 2)}, that is {max(means) - min(means):.3f}{seeds}",
    )


def _paper_varies() -> str:
    return percent(max(PAPER.values()) / min(PAPER.values()) - 1, 2)


def _below_soap(losses: dict[float, Measured], target: Measured, spread: float | None) -> Finding:
    parts = [below("", "", loss, target, spread=spread) for loss in losses.values()]
    held = sum(part.verdict == "holds" for part in parts)
    return throughout(
        "every β₃ ends below the best of SOAP",
        "final loss against SOAP's at its best learning rate",
        parts,
        f"{held} of {len(parts)}: {min(l.mean for l in losses.values()):.3f} to "
        f"{max(l.mean for l in losses.values()):.3f} against {target.text()}",
    )


def _table(losses: dict[float, Measured]) -> str:
    values = list(losses)
    paper = [f"{PAPER[value]:.4f}" if value in PAPER else "–" for value in values]
    rows = [("paper", *paper), ("here", *(losses[value].text() for value in values))]
    return markdown_table(("β₃", *(f"{value:g}" for value in values)), rows)
