"""`fig-variants` and `table-variants`: what the second moment is made of, and the sign trick."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..figures import draw
from ..progress import Result
from ..wording import percent
from .claims import Finding, compared, findings_table, judged, sentence, throughout
from .experiment import Shown, markdown_table
from .language_methods import DEVA, FACTORED, INSTANTANEOUS, LOOKS, UNSIGNED, VARIANTS
from .language_runs import about
from .measures import Measured, at, below, curve_of, gap, lowest, noise, order, select
from .panels import curves_panel, legend_below
from .printed import PRINTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups = dict[str, list[Result]]
TITLES: Final = {
    DEVA: "DeVA-S∞ w. sign",
    UNSIGNED: "DeVA-S∞ w/o sign",
    FACTORED: "factored w. sign",
    INSTANTANEOUS: "instantaneous w. sign",
}
PAPER: Final[dict[str, float]] = dict(
    zip(VARIANTS, PRINTED["table-variants"].values(), strict=True)
)
SMALL: Final = 0.02  # of the loss: what the factored variant may lose; in the paper it is 1.2 %


def show_table(results: Sequence[Result], folder: Path) -> Shown:
    """The lowest validation losses beside the paper's."""
    runs = {label: select(results, optimizer=label) for label in VARIANTS}
    losses = {label: lowest(own) for label, own in runs.items()}
    findings = table_findings(losses)
    rows = [
        ("paper", *(f"{PAPER[label]:.3f}" for label in VARIANTS)),
        ("here", *(losses[label].text() for label in VARIANTS)),
        ("state, MB", *(f"{runs[label][0]['state_bytes'] / 1e6:.1f}" for label in VARIANTS)),
    ]
    table = markdown_table(("lowest validation loss", *TITLES.values()), rows)
    printed = order({TITLES[label]: Measured({0: PAPER[label]}) for label in VARIANTS})
    here = order({TITLES[label]: losses[label] for label in VARIANTS})
    orders = f"Order: in the paper {printed}; here {here}."
    text = [about(results), table, orders, findings_table(findings)]
    return Shown("\n\n".join(text), sentence(findings))


def table_findings(losses: dict[str, Measured]) -> list[Finding]:
    """Factored is worst but not by much, the sign trick hurts, instantaneous gains."""
    computed = "lowest validation loss"
    others = [label for label in VARIANTS if label != FACTORED]
    worse = [below("", "", losses[label], losses[FACTORED]) for label in others]
    loses = gap(losses[DEVA], losses[FACTORED]) / losses[DEVA].mean
    return [
        throughout(
            "the factored variant is the worst of the four",
            computed,
            worse,
            f"above {sum(part.verdict == 'holds' for part in worse)} of {len(worse)}",
        ),
        judged(
            "it loses little for a second moment in n + m numbers",
            f"relative, at most {percent(SMALL)} (paper: {percent(_paper_loss(), 1)})",
            loses,
            most=SMALL,
            how=percent(loses, 1, signed=True),
        ),
        below("the sign trick makes it worse", computed, losses[UNSIGNED], losses[DEVA]),
        below("the instantaneous variant gains", computed, losses[INSTANTANEOUS], losses[DEVA]),
    ]


def _paper_loss() -> float:
    return PAPER[FACTORED] / PAPER[DEVA] - 1


def show_figure(results: Sequence[Result], folder: Path) -> Shown:
    """Both losses along the way, and whether the factored variant is behind in both."""
    runs = {label: select(results, optimizer=label) for label in VARIANTS}
    findings = [_behind(runs, "loss", "validation"), _behind(runs, "train_loss", "training")]
    figures = draw(folder, "fig-variants", (8.4, 4.0), lambda figure: _fill(figure, runs))
    caption = (
        "Training and validation loss of the variants of DeVA-S∞ in nats a token, mean over the "
        "seeds, the band from the lowest to the highest."
    )
    text = [about(results), findings_table(findings)]
    return Shown("\n\n".join(text), sentence(findings), figures, caption)


def _behind(runs: Groups, column: str, name: str) -> Finding:
    """The factored variant ends above the others, which end close together."""
    ends = {label: at(own, -1, column) for label, own in runs.items()}
    others = [label for label in VARIANTS if label != FACTORED]
    highest = max((ends[label] for label in others), key=lambda one: one.mean)
    least = min((ends[label] for label in others), key=lambda one: one.mean)
    return compared(
        f"{name} loss: the factored variant ends above the other three",
        "at the end, against the highest of the others",
        gap(highest, ends[FACTORED]),
        noise=noise(highest, ends[FACTORED]),
        how=f"{ends[FACTORED].text()} against {least.mean:.3f} to {highest.mean:.3f}",
    )


def _fill(figure: Figure, runs: Groups) -> None:
    left, right = figure.subplots(1, 2)
    for axes, column, title in (
        (left, "train_loss", "training loss"),
        (right, "loss", "validation loss"),
    ):
        curves = {LOOKS[label]: curve_of(own, column) for label, own in runs.items()}
        curves_panel(axes, curves, title=title, x="tokens", y="nats a token")
    legend_below(figure, left)
