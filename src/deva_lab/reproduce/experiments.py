"""The table of experiments: one row a figure or table of the paper, and its theory.

To add one that is computed, write `compute` and `show` and add an `Experiment`; what the results
depend on belongs into the settings: they are cached by them. To add one that is made of training
runs, write `runs` and `show` and add a `Trained`; runs are cached by their own settings.
`printed.py` has the paper's numbers.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Any, Final

from ..errors import unknown
from . import Scale, images, losses, runs, sweeps, tables, theory, trace
from .experiment import Experiment, Settings, Trained


def _same(**settings: Any) -> dict[Scale, Settings]:
    """Settings of an experiment that is small enough to be done in full anywhere."""
    return {"cpu": settings, "paper": settings}


_on_text = partial(Trained, kind="text", data=runs.text_data)
_ROWS: Final[tuple[Experiment | Trained, ...]] = (
    Experiment(
        "fig-trace",
        "trace quadratic, homogeneous and heterogeneous, eight methods, 100 seeds",
        "figure “Trace Quadratic Function Optimization” (a)–(d)",
        _same(seeds=100, steps=400, batch=3, lr=0.1, factors=(0.2, 0.4, 1, 2, 5)),
        trace.compute,
        trace.show,
    ),
    _on_text(
        "fig-nanogpt",
        "NanoGPT: validation and training loss of Muon, SOAP and DeVA-S∞",
        "figures “NanoGPT pretraining on FineWeb” and “EMA-smoothed training loss for a 274M …”",
        runs=runs.figure_runs,
        show=losses.show_nanogpt_figure,
    ),
    _on_text(
        "table-nanogpt",
        "NanoGPT: final loss and time against Muon",
        "table “Final validation perplexity and training runtime”",
        runs=runs.main_runs,
        show=losses.show_nanogpt_table,
    ),
    _on_text(
        "fig-lr",
        "learning-rate sensitivity of Muon, SOAP and DeVA-S∞",
        "figure “Learning-rate sensitivity”",
        runs=runs.rate_runs,
        show=sweeps.show_rates_figure,
    ),
    _on_text(
        "table-lr",
        "the learning-rate sweep in numbers",
        "table “Numerical learning-rate sweep”",
        runs=runs.rate_runs,
        show=sweeps.show_rates_table,
    ),
    _on_text(
        "table-beta3",
        "robustness of DeVA-S∞ to β₃",
        "table “Robustness of DeVA-S∞ to β₃”",
        runs=runs.beta3_runs,
        show=sweeps.show_beta3,
    ),
    _on_text(
        "fig-batch",
        "batch size: loss and step time",
        "figure “Batch size sensitivity on NanoGPT”",
        runs=runs.batch_runs,
        show=sweeps.show_batch,
    ),
    _on_text(
        "fig-freq",
        "frequency of the eigendecomposition: loss and step time",
        "figure “Sensitivity to eigen-decomposition frequency on NanoGPT”",
        runs=runs.frequency_runs,
        show=sweeps.show_frequency,
    ),
    _on_text(
        "fig-variants",
        "training and validation loss of the variants of DeVA-S∞",
        "figure “Training and Validation Performance of different DeVA-S∞ variants”",
        runs=runs.variant_runs,
        show=losses.show_variants_figure,
    ),
    _on_text(
        "table-variants",
        "the variants of DeVA-S∞ in numbers",
        "table “Best Validation loss across DeVA-S∞ variants”",
        runs=runs.variant_runs,
        show=losses.show_variants_table,
    ),
    _on_text(
        "table-snr",
        "Frobenius norm of Γ by layer and tokens",
        "table “SNR matrix evolution (Frobenius norm)”",
        runs=runs.snr_runs,
        show=losses.show_snr,
    ),
    Trained(
        "fig-cifar",
        "ResNet-20 on CIFAR-10, vector and matrix methods over learning rates",
        "figure “ResNet-20 validation accuracy on CIFAR-10 after 40 epochs”",
        "images",
        runs.cifar_data,
        runs.cifar_runs,
        images.show_cifar,
    ),
    Trained(
        "fig-vit",
        "vision transformer on ImageNet, training loss at a fixed rate",
        "figure “EMA-smoothed training loss for ViT-L/16 on ImageNet-1K”",
        "images",
        runs.vit_data,
        runs.vit_runs,
        images.show_vit,
    ),
    Experiment(
        "table-cost",
        "memory and FLOPs of a step",
        "table “Asymptotic per-step cost”",
        _same(shapes=((256, 256), (128, 384), (384, 128)), refresh_every=10),
        tables.compute_cost,
        tables.show_cost,
    ),
    Experiment(
        "table-hyper",
        "the hyper-parameters of the paper's runs, and those of --scale paper",
        "tables “Hyperparameter configurations …” and “Best Hyperparameter settings …”",
        _same(tables=("NanoGPT", "ViT-L/16", "ResNet-20")),
        tables.compute_hyper,
        tables.show_hyper,
    ),
    Experiment(
        "table-methods",
        "bases and variance adaptations of the methods, and their preconditioners",
        "table “Special instantiations of Adaptive Subgradient descent”",
        _same(),
        tables.compute_methods,
        tables.show_methods,
    ),
    Experiment(
        "theory",
        "the propositions and theorems, checked numerically",
        "sections “Our Methods” and “Analysis”, and their proofs",
        _same(steps=400, paths=24),
        theory.compute,
        theory.show,
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
