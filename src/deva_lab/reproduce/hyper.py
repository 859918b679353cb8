"""`table-hyper`: the paper's hyper-parameters beside those that `--scale paper` runs with.

Ours are read from optimizers that are built as a run would build them. A hyper-parameter that a
method has no use for is in the paper's table all the same, and compared with nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..entrants import Entrant
from ..models.gpt import GPT, SIZES
from ..settings import RunSettings
from . import image_runs, language_runs
from .claims import Finding, findings_table, judged, sentence
from .dry_run import parameters, units
from .experiment import Say, Shown, markdown_table
from .language_methods import ADAM, NAMES, UNSIGNED
from .printed import PRINTED

Row = tuple[Any, ...]  # in the order of the head of the paper's table
HAS: Final[Mapping[str, tuple[str, ...]]] = {
    "adamw": ("lr", "decay", "batch", "β₁", "β₂", "ε"),
    "lion": ("lr", "decay", "batch", "β₁", "β₂"),
    "signum": ("lr", "decay", "batch", "β₁"),
    "deva-linf": ("lr", "decay", "batch", "β₁", "β₂", "ε", "Nesterov"),
    "muon": ("lr", "decay", "batch", "β₁", "Nesterov"),
    "adamuon": ("lr", "decay", "batch", "β₁", "β₂", "ε", "Nesterov"),
    "soap": ("lr", "decay", "batch", "β₁", "β₂", "β₃", "ε", "refresh"),
    "deva-sinf": ("lr", "decay", "batch", "β₁", "β₂", "β₃", "ε", "refresh", "Nesterov"),
}
"""What a method has a use for, by the name of its entrant."""


def nanogpt_runs() -> dict[str, RunSettings]:
    """The paper's name of a method → its run of the figure on NanoGPT."""
    names = {**NAMES, ADAM: "Adam"}
    runs = language_runs.figure_runs("paper", language_runs.data("paper"))
    return {names[run.optimizer]: run for run in runs if run.optimizer != UNSIGNED}


def vit_runs() -> dict[str, RunSettings]:
    """The same of the figure on ImageNet."""
    names = {label: image_runs.NAMES[method] for method, label in image_runs.IMAGENET.items()}
    runs = image_runs.vit_runs("paper", image_runs.vit_data("paper"))
    return {names[run.optimizer]: run for run in runs}


def resnet_runs() -> dict[str, RunSettings]:
    """The same of the figure on CIFAR-10, at the rates of the paper's table."""
    methods = image_runs.VECTOR | image_runs.MATRIX
    names = {label: image_runs.NAMES[method] for method, label in methods.items()}
    printed = PRINTED["table-hyper"]["ResNet-20"]
    rates = {name: row[0] for name, row in printed.items()}
    runs = image_runs.cifar_runs("paper", image_runs.cifar_data("paper"))
    return {names[run.optimizer]: run for run in runs if run.lr == rates[names[run.optimizer]]}


TABLES: Final[dict[str, Callable[[], dict[str, RunSettings]]]] = {
    "NanoGPT": nanogpt_runs,
    "ViT-L/16": vit_runs,
    "ResNet-20": resnet_runs,
}
"""Title → the runs of each table of hyper-parameters; `printed` has the tables."""

WITHIN: Final = {"NanoGPT": (274e6, 276e6)}  # parameters, where the paper's text has them


def read(run: RunSettings) -> dict[str, Any]:
    """The hyper-parameters of a run that its method has a use for."""
    entrant = Entrant.parse(run.optimizer)
    optimizer = entrant.build(GPT(SIZES["tiny"], 16), run.lr)
    group = next(group for group in optimizer.param_groups if group["role"] == "matrix")
    betas = (*group.get("betas", [group.get("momentum")]), *[0.0] * 3)
    found = {
        "lr": group["lr"],
        "decay": group["weight_decay"],
        "batch": units(run) // run.steps,
        "β₁": betas[0],
        "β₂": betas[1],
        "β₃": betas[2],
        "ε": group["eps"],
        "refresh": group["refresh_every"],
        "Nesterov": group["nesterov"],
    }
    return {key: found[key] for key in HAS[entrant.name]}


def compute(settings: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Title → the hyper-parameters of each method, and the size and length of its runs."""
    return {title: _table(runs()) for title, runs in TABLES.items()}


def _table(runs: Mapping[str, RunSettings]) -> dict[str, Any]:
    first = next(iter(runs.values()))
    return {
        "methods": {name: read(run) for name, run in runs.items()},
        "parameters": parameters(first),
        "units": units(first),
    }


def show(results: Mapping[str, Any], folder: Path) -> Shown:
    """The tables, each cell ours, with the paper's where it differs."""
    parts, findings = [], []
    for title, table in results.items():
        printed = PRINTED["table-hyper"][title]
        parts += [f"## {title}", _markdown(table["methods"], printed)]
        findings.append(_agree(title, table["methods"], printed))
        if title in WITHIN:
            findings.append(_size(title, table["parameters"]))
    parts += [findings_table(findings), NOTE]
    return Shown("\n\n".join(parts), sentence(findings))


NOTE: Final = (
    "A dash is a hyper-parameter that the method has no use for; in brackets what the paper has "
    "there. Lion's Nesterov momentum is its own rule; ε is relative for DeVA-S∞, see "
    "docs/decisions.md."
)


def _agree(title: str, methods: Mapping[str, Any], printed: Mapping[str, Row]) -> Finding:
    pairs = [
        (name, key, value, dict(zip(printed[""], printed[name], strict=True))[key])
        for name, row in methods.items()
        for key, value in row.items()
    ]
    other = [
        f"{name} {key}: {ours} for {theirs}" for name, key, ours, theirs in pairs if ours != theirs
    ]
    return judged(
        f"{title}: the hyper-parameters of {len(methods)} optimizers",
        "values that differ from the paper's table",
        float(len(other)),
        most=0,
        how="; ".join(other) or f"all {len(pairs)} agree",
    )


def _size(title: str, number: int) -> Finding:
    low, high = WITHIN[title]
    return judged(
        f"{title}: the model has {low / 1e6:.0f} to {high / 1e6:.0f} M parameters",
        "parameters, counted",
        max(low - number, number - high, 0),
        most=0,
        how=f"{number:,}",
    )


def _markdown(methods: Mapping[str, Any], printed: Mapping[str, Row]) -> str:
    names = list(methods)
    rows: list[tuple[str, ...]] = []
    for key, *theirs in zip(printed[""], *(printed[name] for name in names), strict=True):
        cells = [_cell(methods[name], key, p) for name, p in zip(names, theirs, strict=True)]
        rows.append((key, *cells))
    return markdown_table(("", *names), rows)


def _cell(row: Mapping[str, Any], key: str, printed: Any) -> str:
    if key in row:
        return _text(row[key]) + ("" if row[key] == printed else f" ({_text(printed)})")
    return "–" if printed is None else f"– ({_text(printed)})"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else f"{value:,}"
