"""The curves of the race: baselines, and the entries that did best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..render.figures import GREY, Style, draw, draw_curves, styles
from ..results.curves import Curve, mean_curve
from .scores import Standing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME: Final = "race"
BASELINES: Final = ("adamw", "soap", "deva-paper")
BEST: Final = 3  # entries that are no baselines


def draw_race(rows: Sequence[Standing], muon: str, folder: Path) -> tuple[Path, Path]:
    """The paths of race.png and race.svg, drawn into a folder that exists."""
    target = next(row.final.mean for row in rows if row.entry.name == muon)
    curves = _curves(_shown(rows, muon))
    return draw(folder, NAME, (7.6, 4.4), lambda figure: _fill(figure, curves, target, muon))


def _shown(rows: Sequence[Standing], muon: str) -> list[Standing]:
    """Muon, a few baselines and the best of the others."""
    others = [row for row in rows if row.entry.kind != "baseline" and row.entry.name != muon]
    names = {muon, *BASELINES, *(row.entry.name for row in others[:BEST])}
    return [row for row in rows if row.entry.name in names]


def _curves(rows: Sequence[Standing]) -> dict[Style, Curve]:
    labels = [f"{row.entry.optimizer.partition(':')[0]}:{row.entry.name}" for row in rows]
    looks = styles(labels)
    return {
        replace(looks[label], name=row.entry.name): mean_curve(row.runs)
        for label, row in zip(labels, rows, strict=True)
    }


def _fill(figure: Figure, curves: Mapping[Style, Curve], target: float, muon: str) -> None:
    axes = figure.add_subplot()
    title = f"Validation loss, mean over the final seeds; the line is the target, {muon}'s end"
    draw_curves(axes, curves, x="tokens")
    axes.set_title(title, fontsize=9, loc="left", color=GREY)
    axes.axhline(target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
