"""What an experiment is: settings, a computation that is cached, and what to show of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

import deva_optim

from ..environment import environment
from ..errors import warn
from ..files import read_record, write_record
from . import Scale

Say = Callable[[str], None]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """What a reader gets to see.

    Attributes:
        text: Tables and findings, as Markdown.
        verdict: One sentence: holds, holds in part, or does not hold at this scale, and why.
        figures: The files that were drawn.
        caption: What they show.
    """

    text: str
    verdict: str
    figures: tuple[Path, ...] = ()
    caption: str = ""


class Shows(Protocol):
    """What a page is made of: an `Experiment`, or one that is made of training runs."""

    @property
    def id(self) -> str:
        """What `deva reproduce` calls it."""

    @property
    def what(self) -> str:
        """What it shows, in a line."""

    @property
    def place(self) -> str:
        """Where the paper has it."""

    @property
    def show(self) -> Callable[[Any, Path], Shown]:
        """Results and the folder for figures → what the reader sees."""


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper, or its theory.

    Attributes:
        id: What `deva reproduce` calls it.
        what: What it shows, in a line.
        place: Where the paper has it.
        settings: Scale → what `compute` is given; results are cached by it, so it must be JSON.
        compute: Settings → results, as JSON. Slow.
        show: Results and the folder for figures → what the reader sees. Quick.
        printed: The paper's own numbers, where it prints them.
    """

    id: str
    what: str
    place: str
    settings: Mapping[Scale, Settings]
    compute: Callable[[Settings, Say], dict[str, Any]]
    show: Callable[[Mapping[str, Any], Path], Shown]
    printed: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def one_thread() -> Iterator[None]:
    """While it lasts, torch has one thread: on 9×9 matrices several wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def results_of(
    experiment: Experiment, scale: Scale, folder: Path, *, say: Say, command: str
) -> dict[str, Any]:
    """The record of an experiment: from the folder if it is there, else computed and put there."""
    if (found := kept(experiment, scale, folder)) is not None:
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
    write_record(_path(experiment, scale, folder), record)
    return record


def kept(experiment: Experiment, scale: Scale, folder: Path) -> dict[str, Any] | None:
    """The record of an experiment that the folder has, if it has one that is whole."""
    path = _path(experiment, scale, folder)
    if not path.is_file():
        return None
    found = read_record(path, begins=("id",))
    if found is None:
        warn(f"{path} is damaged, and left out: deva reproduce {experiment.id} computes it again")
    return found


def _path(experiment: Experiment, scale: Scale, folder: Path) -> Path:
    key = [experiment.id, deva_optim.__version__, dict(experiment.settings[scale])]
    data = json.dumps(key, sort_keys=True).encode()
    return folder / f"{experiment.id}-{hashlib.blake2b(data, digest_size=5).hexdigest()}.json"


def page(experiment: Shows, record: Mapping[str, Any], folder: Path) -> str:
    """The experiment as a page of Markdown, its figures being in the folder."""
    shown = experiment.show(record["results"], folder)
    parts = [
        f"# {experiment.id}: {experiment.what}",
        f"In the paper: {experiment.place}.",
        shown.text,
        *(f"![{experiment.what}]({path.name})" for path in shown.figures if path.suffix == ".png"),
        *([f"*{shown.caption}*"] if shown.caption else []),
        f"**Verdict**: {shown.verdict}.",
        origin(record, record["command"]),
    ]
    return "\n\n".join(parts) + "\n"


def origin(record: Mapping[str, Any], command: str) -> str:
    """A line on how results were made: the command, the settings, the time and the machine."""
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return (
        f"`{command}` · {settings or 'no settings'} · {record['seconds']:.0f} s"
        f"{record.get('spent', '')} on {record['environment']['processor']}"
    )


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table.

    >>> print(markdown_table(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [head, head, *rows]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in lines]
    text = ["| " + " | ".join(row) + " |" for row in cells]
    text[1] = "|" + "---|" * len(head)
    return "\n".join(text)
