"""What an experiment is: a computation or training runs, both kept, and what to show of them."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

import deva_optim

from ..data.images import SHAPES
from ..errors import UsageError, warn
from ..files import read_record, write_record
from ..launchers import finished
from ..models.gpt import GPT, SIZES
from ..render import NONE, count, listed, loss, percent, rate
from ..results import RESULTS, read_results
from ..run.environment import environment
from ..run.plan import check_numbers
from ..run.progress import is_failed
from ..run.settings import RunSettings
from ..run.tasks import check_task
from ..vision import build_model
from . import Scale
from .measures import Finding, best, final, holding, orders, overall, sentence, speeds
from .paper import IMAGE_NAMES, NAMES, PAPER_STEPS, PRINTED, Setup, data_of, setup_of

Record = dict[str, Any]
GPT2_IDS = 50_257

# Shown --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """What a reader gets to see.

    Attributes:
        text: Tables and findings, as Markdown.
        verdict: Holds, holds in part, or does not hold at this scale; behind a colon, of what.
        figures: The files that were drawn.
        caption: What they show.
        why: A sentence on why it does not hold as in the paper, where it does not. It begins with
            the cause and a colon: scale, steps, or the authors' own setting.
    """

    text: str
    verdict: str
    figures: tuple[Path, ...] = ()
    caption: str = ""
    why: str = ""


def shown(
    name: str, found: Mapping[str, Finding], figures: tuple[Path, ...] = (), **values: Any
) -> Shown:
    """What templates/experiments.md makes of an experiment.

    Args:
        name: The id of the experiment, whose blocks are filled in.
        found: What was found of its claims, by the names that they have in the template.
        figures: The files that were drawn.
        values: What else the blocks want to know.
    """
    values |= {"found": found, "printed": PRINTED.get(name)}
    text, verdict, caption, why = (
        written("experiments.md", name.replace("-", "_") + part, **values)
        for part in ("", "_verdict", "_caption", "_why")
    )
    return Shown(text, verdict or sentence(found.values()), figures, caption, why)


def written(template: str, block: str, *, joined: bool = True, **values: Any) -> str:
    """A block of a template, the lines of a paragraph joined; nothing if there is no such block."""
    found = _ENVIRONMENT.get_template(template)
    if block not in found.blocks:
        return ""
    text = "".join(found.blocks[block](found.new_context(values))).strip()
    text = re.sub(r"\n{3,}", "\n\n", text)
    return re.sub(r"(?<![|\n])\n(?![|#\n])", " ", text) if joined else text


def bold(text: str, chosen: bool) -> str:
    """The text of a cell, strong if it is the chosen one."""
    return f"**{text}**" if chosen else text


_ENVIRONMENT = Environment(
    loader=ChoiceLoader([PackageLoader(f"deva_lab.{each}") for each in ("reproduce", "race")]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals |= {"NONE": NONE, "names": NAMES | IMAGE_NAMES, "paper_steps": PAPER_STEPS}
_ENVIRONMENT.filters |= {each.__name__: each for each in (bold, count, listed, percent, rate, loss)}
_MEASURES: tuple[Callable[..., Any], ...] = (best, final, holding, orders, overall, speeds)
_ENVIRONMENT.filters |= {each.__name__: each for each in _MEASURES}
_ENVIRONMENT.globals |= {each.__name__: each for each in _MEASURES}


# Computed -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper, or its theory: a `Computed` or a `Trained`.

    Attributes:
        id: What `deva reproduce` calls it.
        what: What it shows, in a line.
        place: Where the paper has it.
        show: The results and the folder for figures → what the reader sees. Quick.
    """

    id: str
    what: str
    place: str
    show: Callable[[Any, Path], Shown]


@dataclass(frozen=True)
class Computed(Experiment):
    """An experiment that is computed, in full wherever it is.

    Attributes:
        compute: Settings → results, as JSON. Slow.
        settings: What `compute` is given; results are kept by it, so it must be JSON.
    """

    compute: Callable[[Mapping[str, Any]], dict[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def path(self, folder: Path) -> Path:
        """Where its record is kept: a file whose name depends on the settings."""
        key = [self.id, deva_optim.__version__, dict(self.settings)]
        data = json.dumps(key, sort_keys=True).encode()
        return folder / f"{self.id}-{hashlib.blake2b(data, digest_size=5).hexdigest()}.json"

    def kept(self, scale: Scale, folder: Path) -> Record | None:
        """The record that the folder has, if it has one that is whole."""
        path = self.path(folder)
        if not path.is_file():
            return None
        found = read_record(path, begins=("id",))
        if found is None:
            warn(f"{path} is damaged, and left out: deva reproduce {self.id} computes it again")
            return None
        return {**found, "scale": scale, "command": f"deva reproduce {self.id}"}

    def record(self, scale: Scale, folder: Path, data: str | None = None) -> Record:
        """The record, from the folder if it is there, else computed; it needs no data."""
        if (found := self.kept(scale, folder)) is not None:
            return found
        start = time.perf_counter()
        results = self.compute(self.settings)
        record = {
            "id": self.id,
            "scale": scale,
            "settings": dict(self.settings),
            "seconds": time.perf_counter() - start,
            "command": f"deva reproduce {self.id}",
            "environment": environment("cpu"),
            "results": results,
        }
        write_record(self.path(folder), record)
        return record


@contextmanager
def one_thread() -> Iterator[None]:
    """While it lasts, torch has one thread: on 9×9 matrices several wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# Trained ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained(Experiment):
    """An experiment that is made of training runs.

    Results are kept run by run, by the id of its settings, so experiments may share runs.

    Attributes:
        plan: What a scale has → the runs; one that another experiment has too is done once.
        subject: What is trained: gpt, resnet or vit.
    """

    plan: Callable[[Setup], Sequence[RunSettings]]
    subject: str = "gpt"

    @property
    def kind(self) -> str:
        """What it is trained on; `--data` names one of that kind."""
        return "text" if self.subject == "gpt" else "images"

    def runs(self, scale: Scale, data: str | None = None) -> list[RunSettings]:
        """The runs, each once, in the order in which `show` gets their results."""
        return list(dict.fromkeys(self.plan(setup_of(self.subject, scale, data))))

    def kept(self, scale: Scale, folder: Path) -> Record | None:
        """The record, on whatever data, if the folder has all of its runs."""
        path = folder / RESULTS
        results = [x for x in read_results(path) if not is_failed(x)] if path.is_file() else []
        done = {result["id"] for result in results}
        used = (result["settings"]["data"] for result in results)
        for data in dict.fromkeys([data_of(self.subject, scale), *used]):
            if all(run.id in done for run in self.runs(scale, data)):
                return self.record(scale, folder, data)
        return None

    def record(self, scale: Scale, folder: Path, data: str | None = None) -> Record:
        """The record of runs that the folder has all results of."""
        runs = self.runs(scale, data)
        kept = {result["id"]: result for result in finished(folder, runs)}
        times = {run.id: kept[run.id]["curve"]["seconds"][-1] for run in runs}
        seeds = " ".join(map(str, sorted({run.seed for run in runs})))
        at = ["--scale", scale] if scale != "cpu" else []
        return {
            "id": self.id,
            "scale": scale,
            "settings": {"data": runs[0].data, "seeds": seeds, "runs": len(runs)},
            "seconds": sum(times.values()),
            "times": times,
            "command": shlex.join(["deva", "reproduce", self.id, *at, "--data", runs[0].data]),
            "environment": kept[runs[0].id]["environment"],
            "results": [kept[run.id] for run in runs],
        }


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
    return list(dict.fromkeys(run for one in experiments for run in one.runs(scale, data)))


def check_runs(runs: Sequence[RunSettings]) -> None:
    """Raises UsageError for what would come to light after hours: missing data, above all."""
    for run in of_each_model(runs):
        check_task(run)
    for run in runs:
        check_numbers(run)


def of_each_model(runs: Sequence[RunSettings]) -> list[RunSettings]:
    """A run of each model and data."""
    return [*{(run.task, run.size, run.data, run.vocabulary): run for run in runs}.values()]


def units(run: RunSettings) -> int:
    """The tokens or images that a run trains on."""
    context = SIZES[run.size].context if run.task == "gpt" else 1
    return run.steps * run.accumulate * run.batch * context


def parameters(run: RunSettings) -> int | None:
    """The parameters of a run's model, without making them; None if its data decides."""
    if run.task != "gpt" and run.data not in SHAPES:
        return None
    with torch.device("meta"):
        if run.task == "gpt":
            ids = GPT2_IDS if run.vocabulary == "gpt2" else int(run.vocabulary)
            model: torch.nn.Module = GPT(SIZES[run.size], ids)
        else:
            model = build_model(run.task, run.size, SHAPES[run.data])
    return sum(parameter.numel() for parameter in model.parameters())
