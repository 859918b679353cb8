"""The optimizers of the paper's language experiments: labels, names and looks.

Every hyper-parameter but the learning rate is that of the paper's table: weight decay 0.1, β 0.95,
a basis renewed every ten steps, no Nesterov momentum, the sign trick in DeVA's msign. What is not a
hidden matrix has AdamW under all methods, as in the code base that the paper trains with, so that
methods differ in one thing.
"""

from __future__ import annotations

from typing import Any, Final

from ..entrants import Entrant
from ..palette import COLOURS, SPARE, Style

BETA: Final = 0.95  # of all averages
REFRESH_EVERY: Final = 10


def _label(name: str, **options: Any) -> str:
    return Entrant(name, tuple(sorted(options.items()))).label


def deva(*, sign: bool = True, **options: Any) -> str:
    """DeVA-S∞ with the paper's settings but for the given ones."""
    sign_stabilize = {"sign_stabilize": True} if sign else {}
    return _label("deva-sinf", rest="adamw", **sign_stabilize, **options)


def soap(**options: Any) -> str:
    """SOAP with the paper's settings but for the given ones."""
    return _label("soap", weight_decay=0.1, **options)


MUON, SOAP, DEVA = "muon", soap(), deva()
UNSIGNED: Final = deva(sign=False)
FACTORED: Final = deva(variant="factored")
INSTANTANEOUS: Final = deva(variant="instantaneous")
ADAM: Final = _label("adamw", betas=(0.9, 0.99), weight_decay=0.1)
LION: Final = _label("lion", betas=(BETA, BETA), weight_decay=0.1)
ADAMUON: Final = "adamuon"
METHODS: Final = (MUON, SOAP, DEVA)
OTHERS: Final = (ADAM, LION, ADAMUON)  # in the paper's table of hyper-parameters, not in its text
VARIANTS: Final = (DEVA, UNSIGNED, FACTORED, INSTANTANEOUS)
KEYS: Final = {MUON: "muon", SOAP: "soap", DEVA: "deva"}  # in `printed`

NAMES: Final = {
    MUON: "Muon",
    SOAP: "SOAP",
    DEVA: "DeVA-S∞",
    UNSIGNED: "DeVA-S∞ w/o sign",
    FACTORED: "factored",
    INSTANTANEOUS: "instantaneous",
    ADAM: "AdamW",
    LION: "Lion",
    ADAMUON: "AdaMuon",
}
LOOKS: Final = {
    MUON: Style(NAMES[MUON], *COLOURS["muon"], (), 1.7),
    SOAP: Style(NAMES[SOAP], *COLOURS["soap"], (), 1.7),
    DEVA: Style(NAMES[DEVA], *COLOURS["devasinf"], (), 2.4),
    UNSIGNED: Style(NAMES[UNSIGNED], *COLOURS["devasinf"], (6, 2), 1.7),
    FACTORED: Style(NAMES[FACTORED], *SPARE[0], (), 1.7),
    INSTANTANEOUS: Style(NAMES[INSTANTANEOUS], *SPARE[2], (2, 2), 1.7),
    ADAM: Style(NAMES[ADAM], *COLOURS["adamw"], (2, 2), 1.2),
    LION: Style(NAMES[LION], *COLOURS["lion"], (2, 2), 1.2),
    ADAMUON: Style(NAMES[ADAMUON], *COLOURS["adamuon"], (2, 2), 1.2),
}


def beta3_label(beta3: float) -> str:
    """DeVA-S∞ whose covariances have this decay."""
    return DEVA if beta3 == BETA else deva(betas=(BETA, BETA, beta3))


def frequency_labels(steps: int) -> tuple[str, str]:
    """SOAP and DeVA-S∞ with so many steps between two refreshes."""
    options: dict[str, Any] = {} if steps == REFRESH_EVERY else {"refresh_every": steps}
    return soap(**options), deva(**options)
