"""The public classes: update rule, signature, example and paper of each optimizer."""

from .deva import DeVA, DeVALinf, DeVASinf
from .muon import AdaMuon, Muon, NorMuon
from .shampoo import SOAP, Shampoo, SPlus
from .vector import AdamW, Lion, Signum

CLASSES = (
    *(DeVA, DeVASinf, DeVALinf, Muon, AdaMuon, NorMuon),
    *(SOAP, Shampoo, SPlus, AdamW, Signum, Lion),
)
"""All of them, for registries that know optimizers by name."""
