"""DeVA and every optimizer that its paper compares with, on one engine, drop-in for torch.optim."""

from .clipping import clip_grad_norm_
from .directions import msign
from .methods import METHODS
from .routing import describe, param_groups
from .zoo import (
    SOAP,
    AdaMuon,
    AdamW,
    DeVA,
    DeVALinf,
    DeVASinf,
    Lion,
    Muon,
    Shampoo,
    Signum,
    SPlus,
)

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "SOAP",
    "AdaMuon",
    "AdamW",
    "DeVA",
    "DeVALinf",
    "DeVASinf",
    "Lion",
    "Muon",
    "SPlus",
    "Shampoo",
    "Signum",
    "clip_grad_norm_",
    "describe",
    "msign",
    "param_groups",
]
