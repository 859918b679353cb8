"""Names that the command completes and lists, where torch need not be imported for them.

The tables with what stands behind them are elsewhere; the tests hold the two to each other.
"""

from __future__ import annotations

from typing import Final

# fmt: off
OPTIMIZERS: Final = (
    "deva", "deva-sinf", "deva-sinf-factored", "deva-sinf-instantaneous", "deva-sinf-whitened",
    "deva-sinf-lean", "deva-sinf-authors", "deva-linf", "adamw", "signum", "lion", "muon",
    "muon-original", "adamuon", "normuon", "soap", "splus", "shampoo", "shampoo-ungrafted",
    "torch-adamw",
)
EXPERIMENTS: Final = (
    "fig-trace", "fig-nanogpt", "table-nanogpt", "fig-lr", "table-lr", "table-beta3", "fig-batch",
    "fig-freq", "fig-variants", "table-variants", "table-snr", "fig-cifar", "fig-vit",
    "table-cost", "table-hyper", "table-methods", "theory",
)
# fmt: on
IMAGES: Final = ("digits", "cifar10", "imagenet-1k", "cifar10-small", "tiny-imagenet")
LOGGERS: Final = ("tensorboard", "wandb", "mlflow")
STAGES: Final = ("all", "tune", "freeze", "final", "confirm", "robustness", "page", "recipe")
PLACES: Final = ("books", "wide", "deep", "half-batch", "double-batch", "resnet", "vit")
