"""Every kind of file that the laboratory writes and reads again, made small, and its damage."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_results import result

from deva_lab.commands.options import OPTIONS, options_in
from deva_lab.data import silent
from deva_lab.data.corpus import load_corpus, prepare
from deva_lab.data.images import load_images
from deva_lab.data.text_sources import HUB_CONFIGURATION, find_texts
from deva_lab.data.tokenizers import load_tokenizer
from deva_lab.files import append_line, write_record
from deva_lab.race.standings import Frozen, FrozenEntry
from deva_lab.reproduce.experiment import Computed, Shown
from deva_lab.results import read_results
from deva_lab.run import checkpoint
from deva_lab.run.entrants import Entrant
from deva_lab.run.plan import Request, plan
from deva_lab.run.runner import train
from deva_lab.run.tasks import make_task
from deva_lab.run.training import Run

DOCUMENTS = [f"<{number}> " * (20 + number % 7) for number in range(40)]


@dataclass(frozen=True)
class Kind:
    """Some files of a kind.

    Attributes:
        files: Those that are damaged, one at a time.
        read: What they hold, as the laboratory reads it.
        right: Whether that is right, where one is damaged and was not refused.
    """

    files: list[Path]
    read: Callable[[], Any]
    right: Callable[[Any], bool]


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The content cut off somewhere, or with other bytes in one to eight places."""
    if chance.random() < 0.3:
        return content[: chance.randrange(len(content))]
    changed = bytearray(content)
    for place in chance.sample(range(len(content)), chance.choice((1, 1, 1, 1, 2, 8))):
        changed[place] ^= chance.randrange(1, 256)
    return bytes(changed)


# --- Checkpoints ---------------------------------------------------------------------------------


class Runs:
    """A run with checkpoints after steps 5 and 10, and what it is at these and at its start."""

    def __init__(self, folder: Path, *, as_ranks: bool) -> None:
        self.folder, self.said = folder, list[str]()
        (settings,) = plan(Request((Entrant.parse("deva"),), task="quadratic", steps=12))
        task = make_task(settings, silent)
        self.run = Run(settings, task)
        self.start = {**self.run.state(), "model": _copy(self.run.model.state_dict())}
        train(Run(settings, task), folder=folder, save_steps=5, stopping=_at(10))
        self.newest, self.older = checkpoint.found(folder)
        self.newest_holds, self.older_holds = self._holds(self.newest), self._holds(self.older)
        if as_ranks:
            self._write_as_ranks()

    def _write_as_ranks(self) -> None:
        """Put the newest checkpoint into the form of ranks."""
        state = checkpoint.read_file(self.newest, "cpu")
        assert state is not None
        self.run.restore(state)
        self.newest.unlink()
        self.newest = self.newest.with_suffix("")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is .* uninitialized")
            checkpoint.write_folder(self.newest, self.run)

    def _holds(self, path: Path) -> str:
        state = checkpoint.read_file(path, "cpu")
        assert state is not None
        self.run.restore(state)
        return fingerprint(self.run.state())

    def read(self) -> str:
        """What a run that has not begun is at when it has found its checkpoint."""
        self.run.restore(self.start)
        self.said.clear()
        checkpoint.load(self.folder, self.run, self.said.append)
        return fingerprint(self.run.state())


def _at(step: int) -> Callable[[], bool]:
    steps = iter(range(1, 1000))
    return lambda: next(steps) == step


def _copy(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def fingerprint(state: Any) -> str:
    """A hash of all that a state holds, to the bit; a run that was stopped is running again."""
    digest = hashlib.sha256()

    def add(thing: Any) -> None:
        if isinstance(thing, torch.Tensor):
            digest.update(f"{thing.dtype} {tuple(thing.shape)}".encode())
            digest.update(thing.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        elif isinstance(thing, dict):
            for key in sorted(thing, key=str):
                digest.update(str(key).encode())
                add(thing[key])
        elif isinstance(thing, list | tuple):
            for each in thing:
                add(each)
        else:
            digest.update(repr(thing).encode())

    add(state)
    return digest.hexdigest()


def of_a_process(folder: Path) -> Kind:
    runs = Runs(folder, as_ranks=False)

    def right(found: str) -> bool:
        return found == runs.older_holds and f"{runs.newest} is damaged" in runs.said[0]

    return Kind([runs.newest], runs.read, right)


def of_a_process_first(folder: Path) -> Kind:
    runs = Runs(folder, as_ranks=False)
    runs.older.unlink()
    runs.run.restore(runs.start)
    start = fingerprint(runs.run.state())
    return Kind([runs.newest], runs.read, lambda x: x == start and "starts anew" in runs.said[0])


def of_a_process_last(folder: Path) -> Kind:
    """The one before is damaged already, so all are refused."""
    runs = Runs(folder, as_ranks=False)
    runs.older.write_bytes(runs.older.read_bytes()[:-1])
    return Kind([runs.newest], runs.read, lambda found: False)


def of_ranks(folder: Path) -> Kind:
    runs = Runs(folder, as_ranks=True)
    assert runs.read() == runs.newest_holds

    def right(found: str) -> bool:
        # A record with other spaces between its fields says the same.
        passed_over = bool(runs.said) and f"{runs.newest} is damaged" in runs.said[0]
        return found == (runs.older_holds if passed_over else runs.newest_holds)

    files = list(runs.newest.iterdir())
    assert len(files) == 3  # the tensors, their table and the record
    return Kind(files, runs.read, right)


# --- Records -------------------------------------------------------------------------------------


def results(folder: Path) -> Kind:
    path, made = folder / "results.jsonl", [result(loss=[4, 3, i / 7], seed=i) for i in range(6)]
    for each in made:
        append_line(path, each)
    lines = dict(zip(path.read_bytes().splitlines(), made, strict=True))

    def right(found: list[dict[str, Any]]) -> bool:
        untouched = [lines[line] for line in path.read_bytes().split(b"\n") if line in lines]
        return all(each in made for each in found) and all(each in found for each in untouched)

    return Kind([path], lambda: read_results(path), right)


def options(folder: Path) -> Kind:
    given = {"optimizers": "deva,muon", "task": "mlp", "lr": "x0.5,x1", "steps": 12}
    write_record(folder / OPTIONS, given)
    return _equal([folder / OPTIONS], lambda: options_in(folder))


def frozen(folder: Path) -> Kind:
    path = folder / "race.json"
    entry = FrozenEntry("muon", 1.0, 0.02, {"0.01": 3.2, "0.02": 3.1}, "a day", "a commit", False)
    Frozen("muon", {"budget": 2, "final_seeds": [1, 2]}, {"muon": entry, "é": entry}).write(path)
    return _equal([path], lambda: Frozen.read(path))


def experiment(folder: Path) -> Kind:
    def compute(settings: Any) -> dict[str, Any]:
        return {"losses": [[settings["n"] / i for i in range(1, 9)]], "by": {3: 1e-7}}

    def show(results: Any, folder: Path) -> Shown:
        return Shown("", "holds")

    made = Computed("made", "made up", "nowhere", show, compute, {"n": 7})

    def read() -> Any:
        record = made.record("cpu", folder)
        return json.loads(json.dumps(record["results"]))

    read()
    return _equal(list(folder.iterdir()), read)


def _equal(files: list[Path], read: Callable[[], Any]) -> Kind:
    whole = read()
    assert whole == read()  # and what is compared is the content, not the object
    return Kind(files, read, lambda found: bool(found == whole))


# --- Data ----------------------------------------------------------------------------------------


def _texts(folder: Path) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    return path


def _tokens(name: Path, cache: Path) -> tuple[Any, ...]:
    corpus = load_corpus(str(name), vocabulary=300, cache=cache)
    sides = (np.asarray(corpus.train[:]), np.asarray(corpus.validation[:]))
    return corpus.vocabulary, *(side.tobytes() for side in sides)


def tokens(folder: Path) -> Kind:
    path, cache = _texts(folder), folder / "cache"
    _tokens(path, cache)
    (place,) = (entry for entry in cache.iterdir() if entry.is_dir())
    files = [place / name for name in ("train.bin", "validation.bin", "shards.json")]
    return _equal(files, lambda: _tokens(path, cache))


def tokenizer(folder: Path) -> Kind:
    path = folder / "bpe.json"

    def read() -> Any:
        known = load_tokenizer(300, DOCUMENTS, path)
        return known.vocabulary, [ids.tolist() for ids in known.encode(DOCUMENTS[:9])]

    read()
    return _equal([path], read)


def shards(folder: Path) -> Kind:
    out = folder / "shards"
    prepare(str(_texts(folder)), out, 300, 900, cache=folder / "cache")
    files = list(out.iterdir())
    assert len(files) > 3
    return _equal(files, lambda: _tokens(out, folder / "cache"))


def fetched(folder: Path) -> Kind:
    """Documents of the hub, which are kept in a file with the checksum of gzip."""
    path = folder / f"fineweb-{HUB_CONFIGURATION}-40.jsonl.gz"
    path.write_bytes(gzip.compress(_texts(folder).read_bytes()))
    return _equal([path], lambda: list(find_texts("fineweb:40")(folder, silent)))


def images(folder: Path) -> Kind:
    path, cache = folder / "images.tar", folder / "cache"
    _write_images(path)

    def read() -> Any:
        found = load_images(str(path), cache=cache)
        parts: Iterable[Any] = (
            found.train,
            found.train_labels,
            found.validation,
            found.validation_labels,
        )
        return found.classes, [np.asarray(part).tolist() for part in parts]

    read()
    return _equal(list(cache.iterdir()), read)


def _write_images(path: Path) -> None:
    from PIL import Image

    noise = np.random.default_rng(0)
    with tarfile.open(path, "w") as archive:
        for name in ("train/a/1", "train/b/2", "val/a/3"):
            data = io.BytesIO()
            pixels = noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(data, format="png")
            info = tarfile.TarInfo(f"{name}.png")
            info.size = len(data.getvalue())
            data.seek(0)
            archive.addfile(info, data)
