"""The runs of the paper's language experiments: at its own scale, and at one for two cores.

At both the rate is constant for 60 % of the steps and then falls to zero. The usual rate at CPU
scale, 0.01, is the best of each method in docs/evidence.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..data.folder import data_folder
from ..data.text_sources import IN_DATA_FOLDER
from ..environment import default_device
from ..progress import Result
from ..settings import RunSettings
from ..wording import count
from . import Scale
from .language_methods import (
    DEVA,
    METHODS,
    OTHERS,
    SOAP,
    UNSIGNED,
    VARIANTS,
    beta3_label,
    frequency_labels,
)


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


SETUPS: Final[dict[Scale, Setup]] = {
    "cpu": Setup(
        RunSettings(
            task="gpt",
            size="small",
            data="",
            optimizer="",
            lr=0.01,
            seed=0,
            steps=200,
            batch=8,
            vocabulary=512,
            evaluate_every=20,
        ),
        seeds=(0, 1, 2),
        few=(0, 1),
        rates=(1e-3, 5e-3, 1e-2, 5e-2, 1e-1),
        accumulations=(1, 2, 4),
        recorded=(5, 10, 50, 100, 200),
    ),
    "paper": Setup(
        RunSettings(
            task="gpt",
            size="paper",
            data="",
            optimizer="",
            lr=1e-3,
            seed=0,
            steps=28_483,  # 1.4 G tokens, 49,152 a step
            batch=48,
            vocabulary="gpt2",
            evaluate_every=284,
            dtype="bfloat16",
        ),
    ),
}


def data(scale: Scale) -> str:
    """The text that a scale is trained on: FineWeb, its sample, or what every Python has."""
    if scale == "paper":
        return "fineweb:2200000"  # documents, about 1.5 G tokens
    folder = data_folder()
    there = folder is not None and (folder / IN_DATA_FOLDER["fineweb-sample"]).exists()
    return "fineweb-sample" if there else "python"


def _runs(
    scale: Scale, data: str, optimizers: Iterable[str], seeds: Iterable[int], **changes: Any
) -> list[RunSettings]:
    device = default_device() if scale == "paper" else "cpu"
    base = SETUPS[scale].base.changed(data=data, device=device, **changes)
    optimizers = list(optimizers)
    return [base.changed(optimizer=one, seed=seed) for seed in seeds for one in optimizers]


def main_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The paper's three methods, and DeVA-S∞ without the sign trick, at the usual rate."""
    return _runs(scale, data, (*METHODS, UNSIGNED), SETUPS[scale].seeds)


def figure_runs(scale: Scale, data: str) -> list[RunSettings]:
    """These, and the other optimizers of the paper's table of hyper-parameters with one seed."""
    return main_runs(scale, data) + _runs(scale, data, OTHERS, (0,))


def rate_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The three methods at every rate, and at the usual one with all seeds."""
    setup = SETUPS[scale]
    sweep = [run for lr in setup.rates for run in _runs(scale, data, METHODS, (0,), lr=lr)]
    return _each_once(_runs(scale, data, METHODS, setup.seeds) + sweep)


def beta3_runs(scale: Scale, data: str) -> list[RunSettings]:
    """DeVA-S∞ at every β₃, and SOAP at every rate, whose best the paper compares with."""
    setup = SETUPS[scale]
    own = _runs(scale, data, map(beta3_label, setup.beta3), setup.few)
    return own + [run for run in rate_runs(scale, data) if run.optimizer == SOAP]


def batch_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The three methods with so many batches in a step and accordingly fewer steps."""
    setup = SETUPS[scale]
    runs = _runs(scale, data, METHODS, setup.seeds)
    for batches in setup.accumulations:
        shorter = {
            "accumulate": batches,
            "steps": setup.base.steps // batches,
            "evaluate_every": max(1, setup.base.evaluate_every // batches),
        }
        runs += _runs(scale, data, METHODS, (0,), **shorter)
    return _each_once(runs)


def frequency_runs(scale: Scale, data: str) -> list[RunSettings]:
    """SOAP and DeVA-S∞ at every frequency, and at the usual one with all seeds."""
    setup = SETUPS[scale]
    runs = _runs(scale, data, (SOAP, DEVA), setup.seeds)
    for steps in setup.frequencies:
        runs += _runs(scale, data, frequency_labels(steps), (0,))
    return _each_once(runs)


def variant_runs(scale: Scale, data: str) -> list[RunSettings]:
    """The four variants of DeVA-S∞."""
    return _runs(scale, data, VARIANTS, SETUPS[scale].seeds)


def snr_runs(scale: Scale, data: str) -> list[RunSettings]:
    """DeVA-S∞ with its telemetry at some steps."""
    return _runs(scale, data, (DEVA,), (0,), telemetry=SETUPS[scale].recorded)


def _each_once(runs: Sequence[RunSettings]) -> list[RunSettings]:
    return list(dict.fromkeys(runs))


def about(results: Sequence[Result]) -> str:
    """The setting in a sentence, beside the paper's."""
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


COUNTS: Final = (
    "Runs of one seed share the first weights and the batches. A difference counts if it is larger "
    "than its standard deviation over the seeds; between single runs, than that of the methods "
    "where they have several seeds."
)
ONE_SEED: Final = "One seed, so the spread is not known and every difference counts."
