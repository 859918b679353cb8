"""The table of experiments: one row a figure or table of the paper, and its theory.

To add one that is computed, write `compute` and `show` and add a `Computed`; what the results
depend on belongs into the settings: they are kept by them. To add one that is made of training
runs, write the runs into `paper.py`, `show`, and add a `Trained`; runs are kept by their own
settings. `PRINTED` in `paper.py` has the paper's numbers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from ..errors import unknown
from ..render import aligned
from . import images, losses, paper, sweeps, tables, theory, trace
from .experiment import Computed, Trained

_ROWS: Final[tuple[Computed | Trained, ...]] = (
    Computed(
        "fig-trace",
        "trace quadratic, homogeneous and heterogeneous, eight methods, 100 seeds",
        "figure “Trace Quadratic Function Optimization” (a)–(d)",
        trace.show,
        trace.compute,
        {"seeds": 100, "steps": 400, "batch": 3, "lr": 0.1, "factors": (0.2, 0.4, 1, 2, 5)},
    ),
    Trained(
        "fig-nanogpt",
        "NanoGPT: validation and training loss of Muon, SOAP and DeVA-S∞",
        "figures “NanoGPT pretraining on FineWeb” and “EMA-smoothed training loss for a 274M …”",
        losses.show_nanogpt_figure,
        paper.figure_runs,
    ),
    Trained(
        "table-nanogpt",
        "NanoGPT: final loss and time against Muon",
        "table “Final validation perplexity and training runtime”",
        losses.show_nanogpt_table,
        paper.main_runs,
    ),
    Trained(
        "fig-lr",
        "learning-rate sensitivity of Muon, SOAP and DeVA-S∞",
        "figure “Learning-rate sensitivity”",
        sweeps.show_rates_figure,
        paper.rate_runs,
    ),
    Trained(
        "table-lr",
        "the learning-rate sweep in numbers",
        "table “Numerical learning-rate sweep”",
        sweeps.show_rates_table,
        paper.rate_runs,
    ),
    Trained(
        "table-beta3",
        "robustness of DeVA-S∞ to β₃",
        "table “Robustness of DeVA-S∞ to β₃”",
        sweeps.show_beta3,
        paper.beta3_runs,
    ),
    Trained(
        "fig-batch",
        "batch size: loss and step time",
        "figure “Batch size sensitivity on NanoGPT”",
        sweeps.show_batch,
        paper.batch_runs,
    ),
    Trained(
        "fig-freq",
        "frequency of the eigendecomposition: loss and step time",
        "figure “Sensitivity to eigen-decomposition frequency on NanoGPT”",
        sweeps.show_frequency,
        paper.frequency_runs,
    ),
    Trained(
        "fig-variants",
        "training and validation loss of the variants of DeVA-S∞",
        "figure “Training and Validation Performance of different DeVA-S∞ variants”",
        losses.show_variants_figure,
        paper.variant_runs,
    ),
    Trained(
        "table-variants",
        "the variants of DeVA-S∞ in numbers",
        "table “Best Validation loss across DeVA-S∞ variants”",
        losses.show_variants_table,
        paper.variant_runs,
    ),
    Trained(
        "table-snr",
        "Frobenius norm of Γ by layer and tokens",
        "table “SNR matrix evolution (Frobenius norm)”",
        losses.show_snr,
        paper.snr_runs,
    ),
    Trained(
        "fig-cifar",
        "ResNet-20 on CIFAR-10, vector and matrix methods over learning rates",
        "figure “ResNet-20 validation accuracy on CIFAR-10 after 40 epochs”",
        images.show_cifar,
        paper.cifar_runs,
        "resnet",
    ),
    Trained(
        "fig-vit",
        "vision transformer on ImageNet, training loss at a fixed rate",
        "figure “EMA-smoothed training loss for ViT-L/16 on ImageNet-1K”",
        images.show_vit,
        paper.vit_runs,
        "vit",
    ),
    Computed(
        "table-cost",
        "memory and FLOPs of a step",
        "table “Asymptotic per-step cost”",
        tables.show_cost,
        tables.compute_cost,
        {"shapes": ((256, 256), (128, 384), (384, 128)), "refresh_every": 10},
    ),
    Computed(
        "table-hyper",
        "the hyper-parameters of the paper's runs, and those of --scale paper",
        "tables “Hyperparameter configurations …” and “Best Hyperparameter settings …”",
        tables.show_hyper,
        tables.compute_hyper,
        {"tables": ("NanoGPT", "ViT-L/16", "ResNet-20")},
    ),
    Computed(
        "table-methods",
        "bases and variance adaptations of the methods, and their preconditioners",
        "table “Special instantiations of Adaptive Subgradient descent”",
        tables.show_methods,
        tables.compute_methods,
    ),
    Computed(
        "theory",
        "the propositions and theorems, checked numerically",
        "sections “Our Methods” and “Analysis”, and their proofs",
        theory.show,
        theory.compute,
        {"steps": 400, "paths": 24},
    ),
)

EXPERIMENTS: Final = MappingProxyType({row.id: row for row in _ROWS})
"""Every experiment that can be run, by id."""


def experiment(name: str) -> Computed | Trained:
    """The experiment of this id."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def listing() -> str:
    """A line an experiment."""
    rows = sorted((row.id, row.what, row.place) for row in EXPERIMENTS.values())
    return aligned((), rows, left=range(3))
