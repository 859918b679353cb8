"""What `fig-trace` shows: curves, a table of where they end, and the paper's claims about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..figures import draw
from ..palette import NAMES as PALETTE_NAMES
from ..palette import styles
from .experiment import Shown, markdown_table
from .trace import ADAPTED, LOSSES, METHODS, NAMES, RECORD_EVERY, SIZES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Mapping[str, Any]  # problem → method → "loss" or "norm" → quartiles → times
LOWEST: Final = 1e-6  # of the axis: below it float32 has nothing to say about f
ABOUT: Final = {
    "squared": "the squared loss of the text, Muon at its usual scale",
    "published": "the published script's setting: norm not squared, Muon at five times the scale",
}


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """The table and the claims for both settings, and a figure for each."""
    text, figures = list[str](), list[Path]()
    for loss in LOSSES:
        curves = results[loss]
        found = _claims_table(claims(curves))
        text += [f"## {loss}: {ABOUT[loss]}", _ends(curves), found, _rates(curves)]
        figures += _draw(curves, loss, folder)
    return Shown("\n\n".join(text), verdict(results), tuple(figures))


def verdict(results: Mapping[str, Any]) -> str:
    """How many of the paper's claims hold in each setting, and whether they hold at other rates."""
    held = {loss: [holds for _, holds, _ in claims(results[loss])] for loss in LOSSES}
    every = [holds for each in held.values() for holds in each]
    word = "holds" if all(every) else "holds in part" if any(every) else "does not hold"
    counts = (f"{sum(h)} of {len(h)} claims with the {loss} loss" for loss, h in held.items())
    ahead = [
        loss for loss in LOSSES if best(results[loss])["devasinf"] < best(results[loss])["muon"]
    ]
    return (
        f"{word} at the paper's learning rate: {', '.join(counts)}; with a best rate for each, "
        f"DeVA-S∞ ends below Muon in {len(ahead)} of {len(LOSSES)} settings"
    )


def claims(curves: Curves) -> list[tuple[str, bool, str]]:
    """What the paper says of its figure: the claim, whether it holds here, and the numbers."""
    alike, unlike = SIZES

    def last(size: str, method: str) -> float:
        return float(curves[size][method]["loss"][1][-1])

    def norm(size: str, method: str) -> float:
        times = curves[size][method]["norm"][1]
        return float(sum(times) / len(times))

    def below(size: str, one: str, other: str) -> tuple[bool, str]:
        a, b = last(size, one), last(size, other)
        return a < b, f"{a:.2g} against {b:.2g}"

    def similar(method: str) -> tuple[bool, str]:
        a, b = last(alike, method), last(unlike, method)
        return 1 / 3 < a / b < 3, f"{a:.2g} homogeneous, {b:.2g} heterogeneous"

    def lower(method: str) -> tuple[bool, str]:
        a, b = norm(alike, method), norm(unlike, method)
        return b < a < 1, f"mean {a:.2f} homogeneous, {b:.2f} heterogeneous"

    return [
        ("GD is much the same on both problems", *similar("sgd")),
        ("heterogeneous: DeVA-S∞ ends below Muon", *below(unlike, "devasinf", "muon")),
        ("heterogeneous: DeVA-ℓ∞ ends below SignSGD", *below(unlike, "devalinf", "signum")),
        ("heterogeneous: Adam ends below SignSGD", *below(unlike, "adamw", "signum")),
        ("SOAP is similar on both problems", *similar("soap")),
        ("‖H‖₁,Γ of DeVA-ℓ∞ falls, more where heterogeneous", *lower("devalinf")),
        ("‖H‖₁,Γ of DeVA-S∞ falls, more where heterogeneous", *lower("devasinf")),
    ]


def _claims_table(found: list[tuple[str, bool, str]]) -> str:
    rows = [(claim, "holds" if ok else "does not hold", numbers) for claim, ok, numbers in found]
    return markdown_table(("the paper", "here", "median of f at the end, or ‖H‖₁,Γ / ‖H‖₁"), rows)


def _ends(curves: Curves) -> str:
    """Where every method ends on both problems."""
    rows = []
    for method in METHODS:
        ends = [[times[-1] for times in curves[size][method]["loss"]] for size in SIZES]
        cells = [f"{middle:.2g} ({low:.2g} … {high:.2g})" for low, middle, high in ends]
        rows.append((name(method), *cells))
    return markdown_table(("f at the end: median (quartiles)", *SIZES), rows)


def best(curves: Curves) -> dict[str, float]:
    """Where Muon and DeVA-S∞ end at their best rate, heterogeneous."""
    return {method: min(ends) for method, ends in curves["rates"].items()}


def _rates(curves: Curves) -> str:
    """How Muon and DeVA-S∞ compare over learning rates, which the paper does not ask."""
    rows = [
        (name(method), *(f"{end:.2g}" for end in ends)) for method, ends in curves["rates"].items()
    ]
    head = tuple(f"× {factor:g}" for factor in curves["factors"])
    return markdown_table(("heterogeneous, f at the end, rate", *head), rows)


def name(method: str) -> str:
    """What the paper calls a method."""
    return NAMES.get(method) or PALETTE_NAMES[method]


def _draw(curves: Curves, loss: str, folder: Path) -> tuple[Path, ...]:
    return draw(folder, f"fig-trace-{loss}", (8.4, 6.2), lambda figure: _fill(figure, curves))


def _fill(figure: Figure, curves: Curves) -> None:
    above, below = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[1.6, 1])
    for i, size in enumerate(SIZES):
        _losses(above[i], curves[size], size)
        _norms(below[i], curves[size])
    above[0].set_ylabel(r"$f(X) = \frac{1}{2}\,\mathrm{tr}(X^T H X)$")
    below[0].set_ylabel(r"$\|H\|_{1,\Gamma}\;/\;\|H\|_1$")
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False)


def _losses(axes: Axes, curves: Curves, size: str) -> None:
    looks = styles(METHODS)
    for method in METHODS:
        low, middle, high = curves[method]["loss"]
        look, steps = looks[method], range(len(middle))
        axes.fill_between(steps, low, high, color=look.light, alpha=0.12, linewidth=0)
        dashed = method == "adamw"  # with β₁ = 0 it is DeVA-ℓ∞ but for ε, and lies on top of it
        axes.plot(
            steps,
            middle,
            color=look.light,
            linewidth=look.width * 0.8,
            linestyle=(0, (3, 3)) if dashed else "solid",
            zorder=3 if dashed else 2,
            label=name(method),
        )
    start = curves["sgd"]["loss"][1][0]
    lowest = min(min(curves[method]["loss"][0]) for method in METHODS)
    axes.set_yscale("log")
    axes.set_ylim(max(LOWEST, lowest / 2), 30 * start)
    axes.set_title(f"{size}: median and quartiles over the seeds", fontsize=9)
    axes.grid(axis="y")


def _norms(axes: Axes, curves: Curves) -> None:
    looks = styles(METHODS)
    for method in ADAPTED:
        low, middle, high = curves[method]["norm"]
        steps = [RECORD_EVERY * i + RECORD_EVERY // 2 + 1 for i in range(len(middle))]
        axes.fill_between(steps, low, high, color=looks[method].light, alpha=0.15, linewidth=0)
        axes.plot(steps, middle, color=looks[method].light, linewidth=1.8)
    axes.axhline(1, color="#5a5a5a", linewidth=0.7, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.15)
    axes.set_xlabel("step")
    axes.grid(axis="y")
