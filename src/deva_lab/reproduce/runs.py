"""The runs of the paper's experiments: optimizers, and what is swept, at two scales.

Every hyper-parameter of an optimizer but the learning rate is that of the paper's tables, at both
scales. For language that is weight decay 0.1, β 0.95, a basis renewed every ten steps, no Nesterov
momentum, the sign trick in DeVA's msign. What is not a hidden matrix has AdamW under all methods,
as in the code base that the paper trains with, so that methods differ in one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..data import data_folder
from ..data.images import IN_DATA_FOLDER as IMAGE_FILES
from ..data.text_sources import IN_DATA_FOLDER as TEXT_FILES
from ..entrants import Entrant
from ..environment import default_device
from ..progress import Result
from ..render import count
from ..render.figures import COLOURS, SPARE, Style
from ..settings import RunSettings
from . import Scale

# Optimizers ---------------------------------------------------------------------------------------

BETA: Final = 0.95  # of all averages, on text
REFRESH_EVERY: Final = 10


def _label(name: str, **options: Any) -> str:
    return Entrant(name, tuple(sorted(options.items()))).label


def deva(*, sign: bool = True, **options: Any) -> str:
    """DeVA-S∞ with the paper's settings for text but for the given ones."""
    sign_stabilize = {"sign_stabilize": True} if sign else {}
    return _label("deva-sinf", rest="adamw", **sign_stabilize, **options)


def soap(**options: Any) -> str:
    """SOAP with the paper's settings for text but for the given ones."""
    return _label("soap", weight_decay=0.1, **options)


MUON, SOAP, DEVA, ADAMUON = "muon", soap(), deva(), "adamuon"
UNSIGNED: Final = deva(sign=False)
FACTORED: Final = deva(variant="factored")
INSTANTANEOUS: Final = deva(variant="instantaneous")
ADAM: Final = _label("adamw", betas=(0.9, 0.99), weight_decay=0.1)
LION: Final = _label("lion", betas=(BETA, BETA), weight_decay=0.1)
METHODS: Final = (MUON, SOAP, DEVA)
OTHERS: Final = (ADAM, LION, ADAMUON)  # in the paper's table of hyper-parameters, not in its text
VARIANTS: Final = (DEVA, UNSIGNED, FACTORED, INSTANTANEOUS)
KEYS: Final = {MUON: "muon", SOAP: "soap", DEVA: "deva"}  # in `printed`
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

ADAM_BETAS: Final = (0.9, 0.999)  # of Adam and of its like, on images
VECTOR: Final = {
    "adamw": _label("adamw", weight_decay=0.1),
    "signum": _label("signum", weight_decay=0.1),
    "devalinf": _label("deva-linf", betas=ADAM_BETAS),
}
"""Method → its optimizer on CIFAR-10. All momenta are 0.9."""
MATRIX: Final = {
    "muon": _label("muon", rest_betas=ADAM_BETAS),
    "soap": _label("soap", refresh_every=5, rest_betas=ADAM_BETAS, weight_decay=0.1),
    "adamuon": _label("adamuon", rest_betas=ADAM_BETAS),
    "devasinf": _label("deva-sinf", refresh_every=5, rest="adamw", rest_betas=ADAM_BETAS),
}
"""The same for matrices. All averages decay by 0.95."""
IMAGENET: Final = {
    "adamw": _label("adamw", weight_decay=0.1),
    "muon": _label("muon", nesterov=True, rest_betas=ADAM_BETAS),
    "soap": _label("soap", rest_betas=ADAM_BETAS, weight_decay=0.1),
    "adamuon": _label("adamuon", rest_betas=ADAM_BETAS),
    "devasinf": _label(
        "deva-sinf", nesterov=True, rest="adamw", rest_betas=ADAM_BETAS, sign_stabilize=True
    ),
}
"""Method → its optimizer on ImageNet: momentum of Nesterov and the sign trick as the paper has."""
IMAGE_NAMES: Final = {
    "adamw": "Adam",
    "signum": "Signum",
    "devalinf": "DeVA-ℓ∞",
    "muon": "Muon",
    "soap": "SOAP",
    "adamuon": "AdaMuon",
    "devasinf": "DeVA-S∞",
}
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


Setups = dict[Scale, Setup]


def _base(task: str, size: str, lr: float, steps: int, batch: int, **more: Any) -> RunSettings:
    return RunSettings(task, size, "", "", lr, seed=0, steps=steps, batch=batch, **more)


TEXT: Final[Setups] = {
    # The rate is constant for 60 % of the steps and then falls to zero. At CPU scale the usual one,
    # 0.01, is the best of each method in docs/evidence.md.
    "cpu": Setup(
        _base("gpt", "small", 0.01, 200, 8, vocabulary=512, evaluate_every=20),
        seeds=(0, 1, 2),
        few=(0, 1),
        rates=(1e-3, 5e-3, 1e-2, 5e-2, 1e-1),
        accumulations=(1, 2, 4),
        recorded=(5, 10, 50, 100, 200),
    ),
    # 1.4 G tokens, 49,152 a step
    "paper": Setup(
        _base(
            "gpt",
            "paper",
            1e-3,
            28_483,
            48,
            vocabulary="gpt2",
            evaluate_every=284,
            dtype="bfloat16",
        )
    ),
}
CIFAR: Final[Setups] = {
    # The rate falls to zero from the first step on.
    "cpu": Setup(
        _base("resnet", "resnet20", 0.01, 200, 64, decay=1.0, evaluate_every=200),
        rates=(0.001, 0.005, 0.01, 0.05),
    ),
    # 40 epochs of 50,000 images, an evaluation each; the paper's best rates, both times it names
    # them, are inside the grid
    "paper": Setup(
        _base("resnet", "resnet20", 0.01, 15_625, 128, decay=1.0, evaluate_every=391),
        rates=(5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1),
    ),
}
VIT: Final[Setups] = {
    "cpu": Setup(_base("vit", "mini", 0.001, 300, 64, decay=0.0, evaluate_every=20)),
    # five epochs of 1,281,167 images, 512 a step
    "paper": Setup(
        _base(
            "vit",
            "vit-l16",
            0.001,
            12_511,
            64,
            decay=0.0,
            accumulate=8,
            evaluate_every=250,
            dtype="bfloat16",
        )
    ),
}


@dataclass(frozen=True)
class Data:
    """What an experiment is trained on unless the user says otherwise.

    Attributes:
        paper: At the scale of the paper.
        small: At the scale of two cores, if DEVA_DATA has it.
        anywhere: What there is without.
    """

    paper: str
    small: str
    anywhere: str

    def __call__(self, scale: Scale) -> str:
        """The data of a scale."""
        if scale == "paper":
            return self.paper
        folder, file = data_folder(), (TEXT_FILES | IMAGE_FILES)[self.small]
        return self.small if folder and (folder / file).exists() else self.anywhere


text_data: Final = Data("fineweb:2200000", "fineweb-sample", "python")  # about 1.5 G tokens
cifar_data: Final = Data("cifar10", "cifar10-small", "digits")
vit_data: Final = Data("imagenet-1k", "tiny-imagenet", "digits")

# Runs ---------------------------------------------------------------------------------------------


def _runs(
    setups: Mapping[Scale, Setup],
    scale: Scale,
    data: str,
    optimizers: Iterable[str],
    seeds: Iterable[int] = (0,),
    **changes: Any,
) -> list[RunSettings]:
    device = default_device() if scale == "paper" else "cpu"
    base = setups[scale].base.changed(data=data, device=device, **changes)
    optimizers = list(optimizers)
    return [base.changed(optimizer=one, seed=seed) for seed in seeds for one in optimizers]


def main_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The paper's three methods, and DeVA-S∞ without the sign trick, at the usual rate."""
    return _runs(TEXT, scale, data, (*METHODS, UNSIGNED), TEXT[scale].seeds)


def figure_runs(scale: Scale, data: str) -> list[RunSettings]:
    """These, and the other optimizers of the paper's table of hyper-parameters with one seed."""
    return main_runs(scale, data) + _runs(TEXT, scale, data, OTHERS)


def rate_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The three methods at every rate, and at the usual one with all seeds."""
    runs = _runs(TEXT, scale, data, METHODS, TEXT[scale].seeds)
    for lr in TEXT[scale].rates:
        runs += _runs(TEXT, scale, data, METHODS, lr=lr)
    return _each_once(runs)


def beta3_runs(scale: Scale, data: str) -> list[RunSettings]:
    """DeVA-S∞ at every β₃, and SOAP at every rate, whose best the paper compares with."""
    values = TEXT[scale].beta3
    labels = [DEVA if beta3 == BETA else deva(betas=(BETA, BETA, beta3)) for beta3 in values]
    own = _runs(TEXT, scale, data, labels, TEXT[scale].few)
    return own + [run for run in rate_runs(scale, data) if run.optimizer == SOAP]


def batch_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The three methods with so many batches in a step and accordingly fewer steps."""
    setup = TEXT[scale]
    runs = _runs(TEXT, scale, data, METHODS, setup.seeds)
    for batches in setup.accumulations:
        shorter: dict[str, Any] = {
            "accumulate": batches,
            "steps": setup.base.steps // batches,
            "evaluate_every": max(1, setup.base.evaluate_every // batches),
        }
        runs += _runs(TEXT, scale, data, METHODS, **shorter)
    return _each_once(runs)


def frequency_runs(scale: Scale, data: str) -> list[RunSettings]:
    """SOAP and DeVA-S∞ at every frequency, and at the usual one with all seeds."""
    runs = _runs(TEXT, scale, data, (SOAP, DEVA), TEXT[scale].seeds)
    for steps in TEXT[scale].frequencies:
        options: dict[str, Any] = {} if steps == REFRESH_EVERY else {"refresh_every": steps}
        runs += _runs(TEXT, scale, data, (soap(**options), deva(**options)))
    return _each_once(runs)


def variant_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The four variants of DeVA-S∞."""
    return _runs(TEXT, scale, data, VARIANTS, TEXT[scale].seeds)


def snr_runs(scale: Scale, data: str) -> list[RunSettings]:
    """DeVA-S∞ with its telemetry at some steps."""
    return _runs(TEXT, scale, data, (DEVA,), telemetry=TEXT[scale].recorded)


def cifar_runs(scale: Scale, data: str) -> list[RunSettings]:
    """Every method at every rate."""
    labels, rates = (*VECTOR.values(), *MATRIX.values()), CIFAR[scale].rates
    every = (_runs(CIFAR, scale, data, (label,), lr=lr) for label in labels for lr in rates)
    return [run for runs in every for run in runs]


def vit_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The five methods at one rate."""
    return _runs(VIT, scale, data, IMAGENET.values())


def _each_once(runs: Sequence[RunSettings]) -> list[RunSettings]:
    return list(dict.fromkeys(runs))


COUNTS: Final = (
    "Runs of one seed share the first weights and the batches. A difference counts if it is larger "
    "than its standard deviation over the seeds; between single runs, than that of the methods "
    "where they have several seeds."
)
ONE_SEED: Final = "One seed, so the spread is not known and every difference counts."


def scale_of(results: Sequence[Result]) -> str:
    """How far runs on text are from the paper's: why they may come out otherwise."""
    run, paper = results[0], TEXT["paper"].base
    steps = run["settings"]["steps"]
    return (
        f"Scale: a GPT of {count(run['parameters'])} parameters sees {count(steps * run['units'])} "
        f"tokens in {steps:,} steps here, in the paper one of 276M sees 1.4G in {paper.steps:,}."
    )


def about(results: Sequence[Result]) -> str:
    """The setting of runs on text in a sentence, beside the paper's."""
    run = results[0]
    settings = run["settings"]
    text = settings["data"]
    if text == "python":
        text += " (the source of Python's standard library, not FineWeb)"
    products = " with bfloat16 products" * (settings["dtype"] == "bfloat16")
    return (
        f"Here: the GPT `{settings['size']}`, {run['parameters']:,} parameters, "
        f"{count(settings['steps'] * run['units'])} tokens of {text}, {run['units']:,} a step, "
        f"float32{products}. In the paper: 275.6 M parameters, 1.4 G tokens of FineWeb, 49,152 a "
        f"step. {COUNTS if len({r['settings']['seed'] for r in results}) > 1 else ONE_SEED}"
    )
