"""Experiments that are training runs: which runs at which scale, and what is kept of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..carry_out import RESULTS, finished
from ..errors import UsageError
from ..plan import check_numbers
from ..progress import Result, is_failed
from ..settings import RunSettings
from ..summary import read_results
from ..tasks import check_task
from . import Scale
from .experiment import Shown

Kind = Literal["text", "images"]
Runs = Callable[[Scale, str], Sequence[RunSettings]]
Show = Callable[[Sequence[Result], Path], Shown]


@dataclass(frozen=True)
class Trained:
    """A figure or a table of the paper that is made of training runs.

    Results are kept run by run, by the id of its settings, so experiments may share runs.

    Attributes:
        id: What `deva reproduce` calls it.
        what: What it shows, in a line.
        place: Where the paper has it.
        kind: What it is trained on; `--data` names one of that kind.
        data: Scale → the data that it has unless the user says otherwise.
        runs: Scale and data → the runs; one that another experiment has too is carried out once.
        show: The results, in the order of the runs, and the folder for figures → what one sees.
        printed: The paper's own numbers, where it prints them.
    """

    id: str
    what: str
    place: str
    kind: Kind
    data: Callable[[Scale], str]
    runs: Runs
    show: Show
    printed: Mapping[str, Any] = field(default_factory=dict)


def runs_of(
    experiments: Sequence[Trained], scale: Scale, data: str | None = None
) -> list[RunSettings]:
    """All runs of these experiments, each once, those of the first experiment first.

    Raises:
        UsageError: If `data` cannot be the data of all of them.
    """
    kinds = dict.fromkeys(one.kind for one in experiments)
    if data is not None and len(kinds) > 1:
        raise UsageError(
            f"--data {data} is for experiments on {' or on '.join(kinds)}, not for both at once: "
            "ask for them one after the other"
        )
    runs = (run for one in experiments for run in one.runs(scale, data or one.data(scale)))
    return list(dict.fromkeys(runs))


def check_runs(runs: Sequence[RunSettings]) -> None:
    """Raises UsageError for what would come to light after hours: missing data, above all."""
    for run in {(run.task, run.size, run.data, run.vocabulary): run for run in runs}.values():
        check_task(run)
    for run in runs:
        check_numbers(run)


def record_of(experiment: Trained, scale: Scale, folder: Path, data: str | None) -> dict[str, Any]:
    """The record of an experiment whose runs the folder has all results of."""
    chosen = data or experiment.data(scale)
    runs = experiment.runs(scale, chosen)
    kept = {result["id"]: result for result in finished(folder, runs)}
    results = [kept[run.id] for run in dict.fromkeys(runs)]
    return {
        "id": experiment.id,
        "scale": scale,
        "settings": {"data": chosen, "seeds": _listed(results, "seed"), "runs": len(results)},
        "seconds": sum(result["curve"]["seconds"][-1] for result in results),
        "spent": " of training, all runs added up,",
        "command": _command(experiment.id, scale, chosen),
        "environment": results[0]["environment"],
        "results": results,
    }


def kept_record(experiment: Trained, scale: Scale, folder: Path) -> dict[str, Any] | None:
    """The record of an experiment, on whatever data, if the folder has all of its runs."""
    path = folder / RESULTS
    results = [x for x in read_results(path) if not is_failed(x)] if path.is_file() else []
    done = {result["id"] for result in results}
    used = (result["settings"]["data"] for result in results)
    for data in dict.fromkeys([experiment.data(scale), *used]):
        if all(run.id in done for run in experiment.runs(scale, data)):
            return record_of(experiment, scale, folder, data)
    return None


def _command(id_: str, scale: Scale, data: str) -> str:
    at = ["--scale", scale] if scale != "cpu" else []
    return shlex.join(["deva", "reproduce", id_, *at, "--data", data])


def _listed(results: Sequence[Result], key: str) -> str:
    """The values of a setting, in a list without commas."""
    return " ".join(map(str, sorted({result["settings"][key] for result in results})))
