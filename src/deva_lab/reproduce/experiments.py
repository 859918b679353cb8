"""The table of experiments: one row a figure or table of the paper, and its theory.

To add one that is computed, write a module with `compute` and `show` and add an `Experiment`; what
the results depend on belongs into the settings: they are cached by them. To add one that is made of
training runs, write `runs` and `show` and add a `Trained`; runs are cached by their own settings.
`printed.py` has the paper's numbers. Take its id out of PENDING.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from ..errors import UsageError, unknown
from . import cost, theory, trace, trace_figure
from .experiment import Experiment, Scale, Settings
from .trained import Trained


def _same(**settings: Any) -> dict[Scale, Settings]:
    """Settings of an experiment that is small enough to be done in full anywhere."""
    return {"cpu": settings, "paper": settings}


_ROWS: Final[tuple[Experiment | Trained, ...]] = (
    Experiment(
        id="fig-trace",
        what="trace quadratic, homogeneous and heterogeneous, eight methods, 100 seeds",
        place="figure “Trace Quadratic Function Optimization” (a)–(d)",
        settings=_same(seeds=100, steps=400, batch=3, lr=0.1, factors=(0.2, 0.4, 1, 2, 5)),
        compute=trace.compute,
        show=trace_figure.show,
    ),
    Experiment(
        id="table-cost",
        what="memory and FLOPs of a step",
        place="table “Asymptotic per-step cost”",
        settings=_same(shapes=((256, 256), (128, 384), (384, 128)), refresh_every=10),
        compute=cost.compute,
        show=cost.show,
        printed=cost.PAPER,
    ),
    Experiment(
        id="theory",
        what="the propositions and theorems, checked numerically",
        place="sections “Our Methods” and “Analysis”, and their proofs",
        settings=_same(steps=400, paths=24),
        compute=theory.compute,
        show=theory.show,
    ),
)

EXPERIMENTS: Final = MappingProxyType({row.id: row for row in _ROWS})
"""Every experiment that can be run, by id."""

PENDING: Final = MappingProxyType(
    {
        "fig-nanogpt": "NanoGPT, validation and training loss",
        "table-nanogpt": "NanoGPT, final loss and time against Muon",
        "fig-lr": "learning-rate sensitivity of Muon, SOAP and DeVA-S∞",
        "table-lr": "the same in numbers",
        "table-beta3": "robustness of DeVA-S∞ to β₃",
        "fig-batch": "batch size: loss and step time",
        "fig-freq": "frequency of the eigendecomposition: loss and step time",
        "fig-variants": "training and validation loss of the variants of DeVA-S∞",
        "table-variants": "the same in numbers",
        "fig-cifar": "ResNet-20 on CIFAR-10 over learning rates",
        "fig-vit": "ViT-L/16 on ImageNet-1K, training loss",
        "table-snr": "Frobenius norm of Γ by layer and tokens",
    }
)
"""What the paper has besides, and cannot be run here yet."""


def experiment(name: str) -> Experiment | Trained:
    """The experiment of this id."""
    if name in PENDING:
        raise UsageError(f"{name} ({PENDING[name]}) cannot be run yet")
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def listing() -> str:
    """A line an experiment."""
    ready = [(row.id, row.what, row.place) for row in EXPERIMENTS.values()]
    pending = [(name, what, "not here yet") for name, what in PENDING.items()]
    rows = sorted(ready + pending)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
