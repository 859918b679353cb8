"""The table of experiments: one row a figure or table of the paper, and its theory.

To add one that is computed, write a module with `compute` and `show` and add an `Experiment`; what
the results depend on belongs into the settings: they are cached by them. To add one that is made of
training runs, write `runs` and `show` and add a `Trained`; runs are cached by their own settings.
`printed.py` has the paper's numbers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from ..errors import unknown
from . import (
    Scale,
    batch,
    beta3,
    cifar,
    cost,
    frequency,
    hyper,
    image_runs,
    imagenet,
    language_runs,
    method_table,
    nanogpt,
    rates,
    snr,
    theory,
    trace,
    trace_figure,
    variants,
)
from .experiment import Experiment, Settings
from .printed import PRINTED
from .trained import Runs, Show, Trained


def _same(**settings: Any) -> dict[Scale, Settings]:
    """Settings of an experiment that is small enough to be done in full anywhere."""
    return {"cpu": settings, "paper": settings}


def _on_text(id_: str, what: str, place: str, runs: Runs, show: Show) -> Trained:
    """An experiment with a language model."""
    printed = PRINTED.get(id_, {})
    return Trained(id_, what, place, "text", language_runs.data, runs, show, printed)


_ROWS: Final[tuple[Experiment | Trained, ...]] = (
    Experiment(
        id="fig-trace",
        what="trace quadratic, homogeneous and heterogeneous, eight methods, 100 seeds",
        place="figure “Trace Quadratic Function Optimization” (a)–(d)",
        settings=_same(seeds=100, steps=400, batch=3, lr=0.1, factors=(0.2, 0.4, 1, 2, 5)),
        compute=trace.compute,
        show=trace_figure.show,
    ),
    _on_text(
        "fig-nanogpt",
        "NanoGPT: validation and training loss of Muon, SOAP and DeVA-S∞",
        "figures “NanoGPT pretraining on FineWeb” and “EMA-smoothed training loss for a 274M …”",
        language_runs.figure_runs,
        nanogpt.show_figure,
    ),
    _on_text(
        "table-nanogpt",
        "NanoGPT: final loss and time against Muon",
        "table “Final validation perplexity and training runtime”",
        language_runs.main_runs,
        nanogpt.show_table,
    ),
    _on_text(
        "fig-lr",
        "learning-rate sensitivity of Muon, SOAP and DeVA-S∞",
        "figure “Learning-rate sensitivity”",
        language_runs.rate_runs,
        rates.show_figure,
    ),
    _on_text(
        "table-lr",
        "the learning-rate sweep in numbers",
        "table “Numerical learning-rate sweep”",
        language_runs.rate_runs,
        rates.show_table,
    ),
    _on_text(
        "table-beta3",
        "robustness of DeVA-S∞ to β₃",
        "table “Robustness of DeVA-S∞ to β₃”",
        language_runs.beta3_runs,
        beta3.show,
    ),
    _on_text(
        "fig-batch",
        "batch size: loss and step time",
        "figure “Batch size sensitivity on NanoGPT”",
        language_runs.batch_runs,
        batch.show,
    ),
    _on_text(
        "fig-freq",
        "frequency of the eigendecomposition: loss and step time",
        "figure “Sensitivity to eigen-decomposition frequency on NanoGPT”",
        language_runs.frequency_runs,
        frequency.show,
    ),
    _on_text(
        "fig-variants",
        "training and validation loss of the variants of DeVA-S∞",
        "figure “Training and Validation Performance of different DeVA-S∞ variants”",
        language_runs.variant_runs,
        variants.show_figure,
    ),
    _on_text(
        "table-variants",
        "the variants of DeVA-S∞ in numbers",
        "table “Best Validation loss across DeVA-S∞ variants”",
        language_runs.variant_runs,
        variants.show_table,
    ),
    _on_text(
        "table-snr",
        "Frobenius norm of Γ by layer and tokens",
        "table “SNR matrix evolution (Frobenius norm)”",
        language_runs.snr_runs,
        snr.show,
    ),
    Trained(
        id="fig-cifar",
        what="ResNet-20 on CIFAR-10, vector and matrix methods over learning rates",
        place="figure “ResNet-20 validation accuracy on CIFAR-10 after 40 epochs”",
        kind="images",
        data=image_runs.cifar_data,
        runs=image_runs.cifar_runs,
        show=cifar.show,
        printed=PRINTED["fig-cifar"],
    ),
    Trained(
        id="fig-vit",
        what="vision transformer on ImageNet, training loss at a fixed rate",
        place="figure “EMA-smoothed training loss for ViT-L/16 on ImageNet-1K”",
        kind="images",
        data=image_runs.vit_data,
        runs=image_runs.vit_runs,
        show=imagenet.show,
        printed=PRINTED["fig-vit"],
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
        id="table-hyper",
        what="the hyper-parameters of the paper's runs, and those of --scale paper",
        place="tables “Hyperparameter configurations …” and “Best Hyperparameter settings …”",
        settings=_same(tables=tuple(hyper.TABLES)),
        compute=hyper.compute,
        show=hyper.show,
        printed=PRINTED["table-hyper"],
    ),
    Experiment(
        id="table-methods",
        what="bases and variance adaptations of the methods, and their preconditioners",
        place="table “Special instantiations of Adaptive Subgradient descent”",
        settings=_same(),
        compute=method_table.compute,
        show=method_table.show,
        printed=PRINTED["table-methods"],
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


def experiment(name: str) -> Experiment | Trained:
    """The experiment of this id."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def listing() -> str:
    """A line an experiment."""
    rows = sorted((row.id, row.what, row.place) for row in EXPERIMENTS.values())
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
