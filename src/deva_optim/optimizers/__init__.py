"""The optimizers: signature, defaults and documentation of each; the engine does the work."""

from .deva import DeVA, DeVALinf, DeVASinf
from .kronecker import SOAP, Shampoo, SPlus
from .spectral import AdaMuon, Muon
from .vector import AdamW, Lion, Signum

__all__ = [
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
]
