"""What an experiment is: a computation or training runs, both kept, and what to show of them."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import deva_optim

from ..carry_out import RESULTS, finished
from ..data.images import SHAPES
from ..environment import environment
from ..errors import UsageError, warn
from ..files import read_record, write_record
from ..models.gpt import GPT, SIZES
from ..plan import check_numbers
from ..progress import Result, is_failed
from ..render import count
from ..results import read_results
from ..settings import RunSettings
from ..tasks import check_task
from ..vision import build_model
from . import Scale
from .measures import Finding, sentence

Say = Callable[[str], None]
Settings = Mapping[str, Any]
Record = dict[str, Any]
Kind = Literal["text", "images"]
GPT2_IDS = 50_257
OWN_SETTING = "The authors' own setting: model, data and hyper-parameters are the paper's."


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
    *parts: str | list[Finding],
    figures: tuple[Path, ...] = (),
    caption: str = "",
    why: str = "",
) -> Shown:
    """Texts and, among them, the findings, which become a table and the verdict."""
    findings = [finding for part in parts if isinstance(part, list) for finding in part]
    texts = [part if isinstance(part, str) else findings_table(part) for part in parts]
    return Shown("\n\n".join(texts), sentence(findings), figures, caption, why)


def findings_table(findings: Sequence[Finding]) -> str:
    """The findings as a table."""
    rows = [(f.claim, f.computed, f.verdict, f.how) for f in findings]
    return markdown_table(("the paper", "what was computed", "here", "by how much"), rows)


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table.

    >>> print(markdown_table(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    first, *rest = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([first, "|" + "---|" * len(head), *rest])


# Computed -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper, or its theory, that is computed.

    Attributes:
        id: What `deva reproduce` calls it.
        what: What it shows, in a line.
        place: Where the paper has it.
        settings: Scale → what `compute` is given; results are cached by it, so it must be JSON.
        compute: Settings → results, as JSON. Slow.
        show: Results and the folder for figures → what the reader sees. Quick.
    """

    id: str
    what: str
    place: str
    settings: Mapping[Scale, Settings]
    compute: Callable[[Settings, Say], dict[str, Any]]
    show: Callable[[Mapping[str, Any], Path], Shown]

    def path(self, scale: Scale, folder: Path) -> Path:
        """Where its record is kept: a file whose name depends on the settings."""
        key = [self.id, deva_optim.__version__, dict(self.settings[scale])]
        data = json.dumps(key, sort_keys=True).encode()
        return folder / f"{self.id}-{hashlib.blake2b(data, digest_size=5).hexdigest()}.json"

    def kept(self, scale: Scale, folder: Path) -> Record | None:
        """The record that the folder has, if it has one that is whole."""
        path = self.path(scale, folder)
        if not path.is_file():
            return None
        found = read_record(path, begins=("id",))
        if found is None:
            warn(f"{path} is damaged, and left out: deva reproduce {self.id} computes it again")
        return found

    def command(self, record: Record) -> str:
        """What to type to see it again; a record may know another folder."""
        return f"deva reproduce {self.id}"

    @property
    def at_paper_scale(self) -> str:
        """How to see it at the scale of the paper."""
        return f"`deva reproduce {self.id}` computes it at the paper's own scale"

    def seconds(self, record: Record) -> dict[str, float]:
        """What took how long."""
        return {self.id: record["seconds"]}


def results_of(
    experiment: Experiment, scale: Scale, folder: Path, *, say: Say, command: str
) -> Record:
    """The record of an experiment: from the folder if it is there, else computed and put there."""
    if (found := experiment.kept(scale, folder)) is not None:
        return found
    settings = dict(experiment.settings[scale])
    start = time.perf_counter()
    results = experiment.compute(settings, say)
    record = {
        "id": experiment.id,
        "scale": scale,
        "settings": settings,
        "seconds": time.perf_counter() - start,
        "command": command,
        "environment": environment("cpu"),
        "results": results,
    }
    write_record(experiment.path(scale, folder), record)
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
    """

    id: str
    what: str
    place: str
    kind: Kind
    data: Callable[[Scale], str]
    runs: Callable[[Scale, str], Sequence[RunSettings]]
    show: Callable[[Sequence[Result], Path], Shown]

    def kept(self, scale: Scale, folder: Path) -> Record | None:
        """The record, on whatever data, if the folder has all of its runs."""
        path = folder / RESULTS
        results = [x for x in read_results(path) if not is_failed(x)] if path.is_file() else []
        done = {result["id"] for result in results}
        used = (result["settings"]["data"] for result in results)
        for data in dict.fromkeys([self.data(scale), *used]):
            if all(run.id in done for run in self.runs(scale, data)):
                return record_of(self, scale, folder, data)
        return None

    def command(self, record: Record) -> str:
        """What to type to see it again."""
        return str(record["command"])

    @property
    def at_paper_scale(self) -> str:
        """How to see it at the scale of the paper."""
        return f"`deva reproduce {self.id} --scale paper` trains it at the paper's own scale"

    def seconds(self, record: Record) -> dict[str, float]:
        """How long each run took."""
        return {run["id"]: run["curve"]["seconds"][-1] for run in record["results"]}


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
    for run in _models(runs):
        check_task(run)
    for run in runs:
        check_numbers(run)


def _models(runs: Sequence[RunSettings]) -> list[RunSettings]:
    """A run of each model and data."""
    return [*{(run.task, run.size, run.data, run.vocabulary): run for run in runs}.values()]


def record_of(experiment: Trained, scale: Scale, folder: Path, data: str | None) -> Record:
    """The record of an experiment whose runs the folder has all results of."""
    chosen = data or experiment.data(scale)
    runs = experiment.runs(scale, chosen)
    kept = {result["id"]: result for result in finished(folder, runs)}
    results = [kept[run.id] for run in dict.fromkeys(runs)]
    seeds = " ".join(map(str, sorted({result["settings"]["seed"] for result in results})))
    at = ["--scale", scale] if scale != "cpu" else []
    return {
        "id": experiment.id,
        "scale": scale,
        "settings": {"data": chosen, "seeds": seeds, "runs": len(results)},
        "seconds": sum(result["curve"]["seconds"][-1] for result in results),
        "spent": " of training, all runs added up,",
        "command": shlex.join(["deva", "reproduce", experiment.id, *at, "--data", chosen]),
        "environment": results[0]["environment"],
        "results": results,
    }


# What is written of either ------------------------------------------------------------------------


def page(experiment: Experiment | Trained, record: Record, folder: Path) -> str:
    """The experiment as a page of Markdown, its figures being in the folder."""
    found = experiment.show(record["results"], folder)
    pictures = [path.name for path in found.figures if path.suffix == ".png"]
    parts = [
        f"# {experiment.id}: {experiment.what}",
        f"In the paper: {experiment.place}.",
        found.text,
        *(f"![{experiment.what}]({name})" for name in pictures),
        *([f"*{found.caption}*"] if found.caption else []),
        verdict(experiment, record, found),
        origin(record, record["command"]),
    ]
    return "\n\n".join(parts) + "\n"


def verdict(experiment: Experiment | Trained, record: Record, found: Shown) -> str:
    """The verdict; where not all holds, why, what does, and the command for the paper's scale."""
    word, _, rest = found.verdict.partition(": ")
    if word == "holds":
        return f"**Verdict**: {found.verdict}."
    parts = [f"**Verdict**: {word}.", reason(record, found), f"{rest[:1].upper()}{rest[1:]}."]
    return " ".join([*filter(None, parts), f"{experiment.at_paper_scale}."])


def reason(record: Record, found: Shown) -> str:
    """Why not all holds, in a sentence that begins with the cause; nothing where all does."""
    if found.verdict.partition(":")[0] == "holds":
        return ""
    at_full_scale = record["scale"] == "paper" and "spent" in record  # trained, that is
    return OWN_SETTING if at_full_scale else found.why


def origin(record: Record, command: str) -> str:
    """A line on how results were made: the command, the settings, the time and the machine."""
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return (
        f"`{command}` · {settings or 'no settings'} · {record['seconds']:.0f} s"
        f"{record.get('spent', '')} on {record['environment']['processor']}"
    )


def dry_run(
    experiments: Sequence[Experiment | Trained], scale: Scale, folder: Path, data: str | None
) -> str:
    """Every run that `deva reproduce` would carry out, those that are done already marked."""
    trained = [one for one in experiments if isinstance(one, Trained)]
    runs = runs_of(trained, scale, data)
    done = {result["id"] for result in finished(folder, runs)}
    lines = [f"{one.id}: computed, no training" for one in experiments if one not in trained]
    for one in trained:
        own = runs_of([one], scale, data)
        lines.append(f"{one.id}: {len(own)} runs, {count(sum(map(units, own)))} {_unit(own[0])}")
    if runs:
        sizes = "; ".join(map(_model_line, _models(runs)))
        lines += ["", *(_run_line(run, run.id in done) for run in runs), ""]
        lines += [f"{len(runs)} different runs, {len(runs) - len(done)} to do; {sizes}"]
    return "\n".join(lines)


def units(run: RunSettings) -> int:
    """The tokens or images that a run trains on."""
    context = SIZES[run.size].context if run.task == "gpt" else 1
    return run.steps * run.accumulate * run.batch * context


def _unit(run: RunSettings) -> str:
    return "tokens" if run.task == "gpt" else "images"


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


def _run_line(run: RunSettings, done: bool) -> str:
    batch = f"{run.batch} × {run.accumulate}" if run.accumulate > 1 else f"{run.batch}"
    return (
        f"  {run.optimizer}  lr {run.lr:g}  seed {run.seed}  {run.steps} steps of {batch}  "
        f"{count(units(run))} {_unit(run)}" + "  (done)" * done
    )


def _model_line(run: RunSettings) -> str:
    number = parameters(run)
    size = "" if number is None else f", {number:,} parameters"
    return f"{run.task} {run.size} on {run.data}{size}"
