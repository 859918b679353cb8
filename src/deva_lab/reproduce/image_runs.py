"""The runs of the paper's experiments on images: at its own scale, and at one for two cores.

Every hyper-parameter of an optimizer is that of the paper's two tables, at both scales. Where the
tables say nothing, what is not a hidden matrix has AdamW with the betas of their column for Adam,
under all matrix methods, so that methods differ in one thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ..data.folder import data_folder
from ..data.images import IN_DATA_FOLDER
from ..entrants import Entrant
from ..environment import default_device
from ..palette import COLOURS, Style
from ..settings import RunSettings
from . import Scale

ADAM: Final = (0.9, 0.999)  # the betas of Adam and of its like


def _label(name: str, **options: Any) -> str:
    return Entrant(name, tuple(sorted(options.items()))).label


VECTOR: Final = MappingProxyType(
    {
        "adamw": _label("adamw", weight_decay=0.1),
        "signum": _label("signum", weight_decay=0.1),
        "devalinf": _label("deva-linf", betas=ADAM),
    }
)
"""Method → its optimizer on CIFAR-10. All momenta are 0.9."""

MATRIX: Final = MappingProxyType(
    {
        "muon": _label("muon", rest_betas=ADAM),
        "soap": _label("soap", refresh_every=5, rest_betas=ADAM, weight_decay=0.1),
        "adamuon": _label("adamuon", rest_betas=ADAM),
        "devasinf": _label("deva-sinf", refresh_every=5, rest="adamw", rest_betas=ADAM),
    }
)
"""The same for matrices. All averages decay by 0.95."""

IMAGENET: Final = MappingProxyType(
    {
        "adamw": _label("adamw", weight_decay=0.1),
        "muon": _label("muon", nesterov=True, rest_betas=ADAM),
        "soap": _label("soap", rest_betas=ADAM, weight_decay=0.1),
        "adamuon": _label("adamuon", rest_betas=ADAM),
        "devasinf": _label(
            "deva-sinf", nesterov=True, rest="adamw", rest_betas=ADAM, sign_stabilize=True
        ),
    }
)
"""Method → its optimizer on ImageNet: momentum of Nesterov and the sign trick where the paper has
them."""

NAMES: Final = MappingProxyType(
    {
        "adamw": "Adam",
        "signum": "Signum",
        "devalinf": "DeVA-ℓ∞",
        "muon": "Muon",
        "soap": "SOAP",
        "adamuon": "AdaMuon",
        "devasinf": "DeVA-S∞",
    }
)


def look(method: str) -> Style:
    """How a method is drawn."""
    return Style(NAMES[method], *COLOURS[method], (), 2.4 if method.startswith("deva") else 1.7)


@dataclass(frozen=True)
class Setup:
    """What a scale has: what all runs share, and the learning rates."""

    base: RunSettings
    rates: tuple[float, ...]


_CIFAR: Final = RunSettings(
    task="resnet",
    size="resnet20",
    data="",
    optimizer="",
    lr=0.01,
    seed=0,
    steps=200,
    batch=64,
    decay=1.0,  # to zero from the first step on
    evaluate_every=200,
)
CIFAR: Final[dict[Scale, Setup]] = {
    "cpu": Setup(_CIFAR, (0.001, 0.005, 0.01, 0.05)),
    "paper": Setup(
        _CIFAR.changed(
            steps=15_625,  # 40 epochs of 50,000 images
            batch=128,
            evaluate_every=391,  # an epoch
            device=default_device(),
        ),
        (5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1),  # the paper's best, both times it names them, inside
    ),
}

_VIT: Final = RunSettings(
    task="vit",
    size="mini",
    data="",
    optimizer="",
    lr=0.001,
    seed=0,
    steps=300,
    batch=64,
    decay=0.0,
    evaluate_every=20,
)
VIT: Final[dict[Scale, Setup]] = {
    "cpu": Setup(_VIT, (0.001,)),
    "paper": Setup(
        _VIT.changed(
            size="vit-l16",
            steps=12_511,  # five epochs of 1,281,167 images
            batch=64,
            accumulate=8,  # 512 images a step
            evaluate_every=250,
            device=default_device(),
            dtype="bfloat16",
        ),
        (0.001,),
    ),
}


def cifar_data(scale: Scale) -> str:
    """CIFAR-10, a part of it, or the digits that scikit-learn has."""
    return "cifar10" if scale == "paper" else _there("cifar10-small")


def vit_data(scale: Scale) -> str:
    """ImageNet, a small part of it at 32 pixels, or the digits that scikit-learn has."""
    return "imagenet-1k" if scale == "paper" else _there("tiny-imagenet")


def _there(name: str) -> str:
    folder = data_folder()
    there = folder is not None and (folder / IN_DATA_FOLDER[name]).exists()
    return name if there else "digits"


def cifar_runs(scale: Scale, data: str) -> list[RunSettings]:
    """Every method at every rate."""
    optimizers = (*VECTOR.values(), *MATRIX.values())
    return _runs(CIFAR[scale], data, optimizers)


def vit_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The five methods at one rate."""
    return _runs(VIT[scale], data, tuple(IMAGENET.values()))


def _runs(setup: Setup, data: str, optimizers: tuple[str, ...]) -> list[RunSettings]:
    base = setup.base.changed(data=data)
    return [base.changed(optimizer=each, lr=lr) for each in optimizers for lr in setup.rates]
