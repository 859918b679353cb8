"""DeVA and every optimizer that its paper compares with, on one engine, drop-in for torch.optim."""

from .clipping import clip_grad_norm_
from .core.directions import msign
from .core.methods import METHODS
from .optimizers.deva import DeVA, DeVALinf, DeVASinf
from .optimizers.muon import AdaMuon, Muon, NorMuon
from .optimizers.shampoo import SOAP, Shampoo, SPlus
from .optimizers.vector import AdamW, Lion, Signum
from .routing import describe, param_groups
from .schedules import trapezoid

__version__ = "0.2.0"

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
    "NorMuon",
    "SPlus",
    "Shampoo",
    "Signum",
    "clip_grad_norm_",
    "describe",
    "msign",
    "param_groups",
    "trapezoid",
]
