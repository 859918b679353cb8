"""Names that the command completes and lists, where torch need not be imported for them.

Of all but optimizers, tables elsewhere have what stands behind them; the tests hold the two to each
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .run.settings import TUNED

# Name → class, rate unless one is given, and options. The rates of deva and adamw are
# the best of docs/race.md, those of deva-sinf, muon and soap the best of the grid of
# docs/evidence.md; the others have not been tuned and are where one would begin.
OPTIMIZERS: Final[Mapping[str, tuple[str, float, Mapping[str, Any]]]] = {
    "deva": ("DeVA", TUNED["deva"], {}),
    "deva-sinf": ("DeVASinf", 0.005, {}),
    "deva-sinf-factored": ("DeVASinf", 0.005, {"variant": "factored"}),
    "deva-sinf-instantaneous": ("DeVASinf", 0.005, {"variant": "instantaneous"}),
    "deva-sinf-whitened": ("DeVASinf", 0.005, {"variant": "whitened"}),
    "deva-sinf-lean": ("DeVASinf", 0.005, {"variant": "lean"}),
    "deva-sinf-authors": ("AuthorsDeVASinf", 0.005, {}),
    "deva-linf": ("DeVALinf", 0.003, {}),
    "adamw": ("AdamW", TUNED["adamw"], {}),
    "signum": ("Signum", 0.001, {}),
    "lion": ("Lion", 0.001, {}),
    "muon": ("Muon", 0.01, {"nesterov": False}),
    "muon-original": ("Muon", 0.02, {"adjust_lr_fn": "original"}),
    "adamuon": ("AdaMuon", 0.01, {}),
    "normuon": ("NorMuon", 0.01, {}),
    "soap": ("SOAP", 0.01, {}),
    "splus": ("SPlus", 0.1, {}),
    "shampoo": ("Shampoo", 0.005, {}),
    "shampoo-ungrafted": ("Shampoo", 0.005, {"graft": "none"}),
    "torch-adamw": ("torch.optim.AdamW", 0.005, {}),
}
IMAGES: Final = ("digits", "cifar10", "imagenet-1k", "cifar10-small", "tiny-imagenet")
LOGGERS: Final = ("tensorboard", "wandb", "mlflow")
STAGES: Final = ("all", "tune", "freeze", "final", "confirm", "robustness", "page", "recipe")
PLACES: Final = ("books", "wide", "deep", "half-batch", "double-batch", "resnet", "vit")
EXPERIMENTS: Final = (
    "fig-trace",
    "fig-nanogpt",
    "table-nanogpt",
    "fig-lr",
    "table-lr",
    "table-beta3",
    "fig-batch",
    "fig-freq",
    "fig-variants",
    "table-variants",
    "table-snr",
    "fig-cifar",
    "fig-vit",
    "table-cost",
    "table-hyper",
    "table-methods",
    "theory",
)
