"""What the paper has: its optimizers, its scales, its runs and, in paper.json, its numbers.

Every hyper-parameter of an optimizer but the learning rate is that of the paper's tables, at both
scales. For language that is weight decay 0.1, β 0.95, a basis renewed every ten steps, no Nesterov
momentum, the sign trick in DeVA's msign. What is not a hidden matrix has AdamW under all methods,
as in the code base that the paper trains with, so that methods differ in one thing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

from ..data import data_folder
from ..data.images import IN_DATA_FOLDER as IMAGE_FILES
from ..data.text_sources import IN_DATA_FOLDER as TEXT_FILES
from ..render import figures as palette
from ..render.figures import COLOURS, SPARE, Style
from ..run.environment import default_device
from ..run.settings import RunSettings
from . import SCALES, Scale


def _read(name: str) -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = json.loads((files(__package__) / name).read_text("utf-8"))
    return read


_SETTINGS: Final = _read("setups.json")
EXHIBITS: Final = _read("paper.json")
"""Id of an experiment → `what` it shows, the `place` in the paper, and `printed` numbers.

It also has the `subject` of what is trained, or the `settings` of what is computed, and what the
tables have of ours: the `rows`, the `runs` that have the hyper-parameters, and what is `used`.
"""
PRINTED: Final = {name: each["printed"] for name, each in EXHIBITS.items() if "printed" in each}
"""Id of an experiment → the numbers that the paper prints, by its names of the methods."""

# Optimizers ---------------------------------------------------------------------------------------

BETA: Final = 0.95  # of all averages, on text
REFRESH_EVERY: Final = 10
MUON, SOAP, ADAMUON = "muon", "soap:weight_decay=0.1", "adamuon"
DEVA: Final = "deva-sinf:rest=adamw,sign_stabilize=true"
UNSIGNED: Final = "deva-sinf:rest=adamw"
FACTORED: Final = f"{DEVA},variant=factored"
INSTANTANEOUS: Final = f"{DEVA},variant=instantaneous"
ADAM: Final = "adamw:betas=0.9/0.99,weight_decay=0.1"
LION: Final = "lion:betas=0.95/0.95,weight_decay=0.1"
METHODS: Final = (MUON, SOAP, DEVA)
OTHERS: Final = (ADAM, LION, ADAMUON)  # in the paper's table of hyper-parameters, not in its text
VARIANTS: Final = (DEVA, UNSIGNED, FACTORED, INSTANTANEOUS)
LOOKS: Final = {
    MUON: Style("Muon", *COLOURS["muon"], (), 1.7),
    SOAP: Style("SOAP", *COLOURS["soap"], (), 1.7),
    DEVA: Style("DeVA-S∞", *COLOURS["devasinf"], (), 2.4),
    UNSIGNED: Style("DeVA-S∞ w/o sign", *COLOURS["devasinf"], (6, 2), 1.7),
    FACTORED: Style("factored", *SPARE[0], (), 1.7),
    INSTANTANEOUS: Style("instantaneous", *SPARE[2], (2, 2), 1.7),
    ADAM: Style("AdamW", *COLOURS["adamw"], (2, 2), 1.2),
    LION: Style("Lion", *COLOURS["lion"], (2, 2), 1.2),
    ADAMUON: Style("AdaMuon", *COLOURS["adamuon"], (2, 2), 1.2),
}
NAMES: Final = {label: look.name for label, look in LOOKS.items()}

VECTOR: Final[dict[str, str]] = _SETTINGS["resnet"]["vector"]
"""Method → its optimizer on CIFAR-10. All momenta are 0.9."""
MATRIX: Final[dict[str, str]] = _SETTINGS["resnet"]["matrix"]
"""The same for matrices. All averages decay by 0.95."""
IMAGENET: Final[dict[str, str]] = _SETTINGS["vit"]["optimizers"]
"""Method → its optimizer on ImageNet: momentum of Nesterov and the sign trick as the paper has."""
IMAGE_NAMES: Final = {**palette.NAMES, "adamw": "Adam"}
IMAGE_LOOKS: Final = {
    method: Style(name, *COLOURS[method], (), 2.4 if method.startswith("deva") else 1.7)
    for method, name in IMAGE_NAMES.items()
}

# Scales -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What a scale has.

    Attributes:
        base: What all runs share; its learning rate is the usual one.
        seeds: Of the runs that methods are compared by, at the usual rate.
        few: The seeds of an ablation.
        rates: The learning rates of the sweep, the usual one among them.
        beta3: The decays of the covariances.
        accumulations: Batches in a step, at the same number of tokens.
        frequencies: Steps between two refreshes of a basis.
        recorded: The steps after which Γ is looked at.
    """

    base: RunSettings
    seeds: tuple[int, ...] = (0,)
    few: tuple[int, ...] = (0,)
    rates: tuple[float, ...] = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2)
    beta3: tuple[float, ...] = (0.8, 0.9, 0.95, 0.975, 0.9875)
    accumulations: tuple[int, ...] = (1, 2, 4, 8)
    frequencies: tuple[int, ...] = (10, 20, 50, 100, 200)
    recorded: tuple[int, ...] = (102, 203, 1017, 2035, 10173)  # 5 M to 500 M tokens

    def runs(
        self, optimizers: Iterable[str], seeds: Iterable[int] = (0,), **changes: Any
    ) -> list[RunSettings]:
        """A run of each optimizer with each seed, some settings changed."""
        base, labels = self.base.changed(**changes), list(optimizers)
        return [base.changed(optimizer=one, seed=seed) for seed in seeds for one in labels]


def _setup(base: dict[str, Any], **more: list[Any]) -> Setup:
    run = RunSettings(data="", optimizer="", seed=0, **base)
    return Setup(run, **{name: tuple(values) for name, values in more.items()})


# On text the rate is constant for 60 % of the steps and then falls to zero. At CPU scale the usual
# one, 0.01, is the best of each method in docs/evidence.md. On CIFAR-10 the rate falls to zero from
# the first step on; the paper's best rates, both times it names them, are inside the grid. At the
# paper's scale that is 1.4 G tokens of FineWeb, 49,152 a step, 40 epochs of CIFAR-10 with an
# evaluation each, and five epochs of ImageNet, 512 images a step.
SETUPS: Final = {
    (subject, scale): _setup(**own[scale]) for subject, own in _SETTINGS.items() for scale in SCALES
}
"""What is trained, and the scale → the setup, of setups.json."""


def data_of(subject: str, scale: Scale) -> str:
    """What is trained on unless the user says otherwise; “anywhere” is without DEVA_DATA."""
    known = _SETTINGS[subject]["data"]
    if scale == "paper":
        return str(known["paper"])
    folder, file = data_folder(), (TEXT_FILES | IMAGE_FILES)[known["cpu"]]
    return str(known["cpu" if folder and (folder / file).exists() else "anywhere"])


def setup_of(subject: str, scale: Scale, data: str | None = None) -> Setup:
    """The setup of a scale on some data, or on what it has unless the user says otherwise."""
    setup = SETUPS[subject, scale]
    device = default_device() if scale == "paper" else "cpu"
    base = setup.base.changed(data=data or data_of(subject, scale), device=device)
    return replace(setup, base=base)


PAPER_STEPS: Final = SETUPS["gpt", "paper"].base.steps

# Runs ---------------------------------------------------------------------------------------------


def _main_runs(setup: Setup) -> list[RunSettings]:
    """The paper's three methods, and DeVA-S∞ without the sign trick, at the usual rate."""
    return setup.runs((*METHODS, UNSIGNED), setup.seeds)


def _rate_runs(setup: Setup) -> list[RunSettings]:
    """The three methods at every rate, and at the usual one with all seeds."""
    runs = setup.runs(METHODS, setup.seeds)
    return runs + [run for lr in setup.rates for run in setup.runs(METHODS, lr=lr)]


def _beta3_runs(setup: Setup) -> list[RunSettings]:
    """DeVA-S∞ at every β₃, and SOAP at every rate, whose best the paper compares with."""
    labels = [
        DEVA if beta3 == BETA else DEVA.replace(":", f":betas={BETA}/{BETA}/{beta3},")
        for beta3 in setup.beta3
    ]
    own = setup.runs(labels, setup.few)
    return own + [run for run in _rate_runs(setup) if run.optimizer == SOAP]


def _batch_runs(setup: Setup) -> list[RunSettings]:
    """The three methods with so many batches in a step and accordingly fewer steps."""
    runs, base = setup.runs(METHODS, setup.seeds), setup.base
    for batches in setup.accumulations:
        every = max(1, base.evaluate_every // batches)
        runs += setup.runs(
            METHODS, accumulate=batches, steps=base.steps // batches, evaluate_every=every
        )
    return runs


def _frequency_runs(setup: Setup) -> list[RunSettings]:
    """SOAP and DeVA-S∞ at every frequency, and at the usual one with all seeds."""
    runs = setup.runs((SOAP, DEVA), setup.seeds)
    for steps in setup.frequencies:
        if steps != REFRESH_EVERY:
            rarely = f":refresh_every={steps},"
            runs += setup.runs((SOAP.replace(":", rarely), DEVA.replace(":", rarely)))
    return runs


def _cifar_runs(setup: Setup) -> list[RunSettings]:
    """Every method at every rate."""
    labels = (*VECTOR.values(), *MATRIX.values())
    return [run for label in labels for lr in setup.rates for run in setup.runs((label,), lr=lr)]


RUNS: Final[dict[str, Callable[[Setup], list[RunSettings]]]] = {
    # the other optimizers of the paper's table of hyper-parameters have one seed
    "fig-nanogpt": lambda setup: _main_runs(setup) + setup.runs(OTHERS),
    "table-nanogpt": _main_runs,
    "fig-lr": _rate_runs,
    "table-lr": _rate_runs,
    "table-beta3": _beta3_runs,
    "fig-batch": _batch_runs,
    "fig-freq": _frequency_runs,
    "fig-variants": lambda setup: setup.runs(VARIANTS, setup.seeds),
    "table-variants": lambda setup: setup.runs(VARIANTS, setup.seeds),
    "table-snr": lambda setup: setup.runs((DEVA,), telemetry=setup.recorded),
    "fig-cifar": _cifar_runs,
    "fig-vit": lambda setup: setup.runs(IMAGENET.values()),
}
"""Id of an experiment → the runs that it is made of, of what a scale has."""
