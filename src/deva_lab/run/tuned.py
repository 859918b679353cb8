"""What the race has found best for each of four optimizers: settings, and the rate with them.

docs/race.md says how they were found, and how many settings of each were tried. `deva` is the lean
form of what has there the name `soft`, at its rate; `muon:…` is `muon-quick`, and `soap:…` is
`soap-light`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

TUNED: Final[Mapping[str, float]] = MappingProxyType(
    {
        "deva": 0.01,
        "muon:momentum=0.8,nesterov=true": 0.0141,
        "soap:betas=0.9/0.95/0.95": 0.005,
        "adamw": 0.005,
    }
)
"""Label, as `deva compare` takes it → learning rate."""
