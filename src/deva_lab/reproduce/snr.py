"""`table-snr`: ‖Γ‖_F of early and late layers along the training, by `optimizer.telemetry()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..models.gpt import SIZES
from ..progress import Result
from ..wording import count, percent
from .claims import Finding, Verdict, findings_table, sentence, throughout
from .experiment import Shown, markdown_table
from .language_runs import about
from .printed import PRINTED

Norms = dict[str, list[float]]  # layer, in the paper's words → ‖Γ‖_F at each of the times
TABLE: Final = PRINTED["table-snr"]
PAPER: Final[Norms] = {name: list(row) for name, row in TABLE.items() if name != "tokens"}
PARTS: Final = {"mlp.c_proj": "mlp.down.weight", "attn.c_proj": "attention.out.weight"}
EARLY: Final = 2  # times of five: in the first so many the paper has every peak
BAND: Final = 0.15  # of the smallest: what the paper's later norms vary by at most is 14.5 %


def layers(size: str) -> dict[str, tuple[str, float]]:
    """The paper's name of a layer → ours, and √(n m), the norm of Γ = 1."""
    last, width = SIZES[size].layers - 1, SIZES[size].width
    sides = {"mlp.c_proj": 2 * width, "attn.c_proj": width}  # √(4w · w), √(w · w)
    return {
        f"block.{block}.{part}": (f"blocks.{block}.{ours}", float(sides[part]))
        for block in (0, last)
        for part, ours in PARTS.items()
    }


def norms_of(result: Result) -> tuple[list[int], Norms]:
    """The times in tokens, and the norms at them."""
    records = result["telemetry"]
    times = [record["step"] * result["units"] for record in records]
    names = layers(result["settings"]["size"])
    norms = {
        # A matrix that has had no gradient yet rests, and has no row: its Γ is zero.
        name: [record["matrices"].get(ours, {}).get("gamma_norm", 0.0) for record in records]
        for name, (ours, _) in names.items()
    }
    return times, norms


def show(results: Sequence[Result], folder: Path) -> Shown:
    """Both tables, the norms over those of Γ = 1, and what the paper sees in them."""
    (result,) = results
    times, norms = norms_of(result)
    sizes = {name: size for name, (_, size) in layers(result["settings"]["size"]).items()}
    paper_sizes = {name: size for name, (_, size) in layers("paper").items()}
    findings = [peaks(norms), settles(norms)]
    text = [
        about(results),
        _table("paper", TABLE["tokens"], PAPER, paper_sizes),
        _table("here", times, norms, sizes),
        "In brackets the root mean square of Γ, ‖Γ‖_F / √(n m), by which matrices of different "
        "sizes compare. Ours has the bias correction κ in it, the paper's has none.",
        findings_table(findings),
    ]
    return Shown("\n\n".join(text), sentence(findings))


def peaks(norms: Norms) -> Finding:
    """Every layer has its largest norm at one of the first times."""
    places = {name: row.index(max(row)) for name, row in norms.items()}
    parts = [_part(place < EARLY) for place in places.values()]
    return throughout(
        "the norm peaks early in training",
        f"whether the largest of {len(next(iter(norms.values())))} is among the first {EARLY}",
        parts,
        ", ".join(f"{name} at the {_ordinal(place)}" for name, place in places.items()),
    )


def settles(norms: Norms) -> Finding:
    """After the first times the norms vary within a narrow band."""
    bands = {name: max(row[EARLY:]) / min(row[EARLY:]) - 1 for name, row in norms.items()}
    return throughout(
        "and then stays within a narrow band",
        f"largest over smallest of the later ones, at most {percent(BAND)} apart",
        [_part(band <= BAND) for band in bands.values()],
        ", ".join(f"{name} {percent(band, 1)}" for name, band in bands.items()),
    )


def _part(holds: bool) -> Finding:
    verdict: Verdict = "holds" if holds else "does not hold"
    return Finding("", "", verdict, "", float(holds))


def _ordinal(place: int) -> str:
    return ("first", "second", "third", "fourth", "fifth")[place]


def _table(where: str, times: Sequence[float], norms: Norms, sizes: Mapping[str, float]) -> str:
    rows = []
    for name, row in norms.items():
        cells = [f"{norm:.1f} ({norm / sizes[name]:.2f})" for norm in row]
        top = row.index(max(row))
        cells[top] = f"**{cells[top]}**"
        rows.append((f"`{name}`", *cells))
    return markdown_table((f"{where}: ‖Γ‖_F", *(f"{count(t)} tokens" for t in times)), rows)
