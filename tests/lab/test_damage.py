"""A thousand damaged files: each is refused in a line or passed over, and what is read is right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import damage
import pytest
from damage import Kind, damaged

from deva_lab.cli import main
from deva_lab.errors import UsageError
from deva_lab.results import read_results
from deva_lab.run import checkpoint
from helpers import ROOT

DOCS = ROOT / "docs"
HOW_MANY: dict[Callable[[Path], Kind], int] = {
    damage.of_a_process: 250,
    damage.of_a_process_first: 50,
    damage.of_a_process_last: 40,
    damage.of_ranks: 150,
    damage.results: 150,
    damage.options: 50,
    damage.frozen: 50,
    damage.experiment: 50,
    damage.tokens: 80,
    damage.tokenizer: 40,
    damage.shards: 50,
    damage.fetched: 30,
    damage.images: 50,
}


@pytest.mark.parametrize(
    ("make", "count"), HOW_MANY.items(), ids=[make.__name__ for make in HOW_MANY]
)
def test_what_is_damaged_is_never_believed(
    make: Callable[[Path], Kind], count: int, tmp_path: Path
) -> None:
    kind, chance = make(tmp_path), random.Random(make.__name__)
    whole = {path: path.read_bytes() for path in kind.files}
    for _ in range(count):
        path = chance.choice(kind.files)
        path.write_bytes(damaged(whole[path], chance))
        try:
            found = kind.read()
        except UsageError as error:
            said = str(error)
            assert path.name in said or path.parent.name in said
            assert "\n" not in said
        else:
            assert kind.right(found)
        path.write_bytes(whole[path])


def test_these_are_a_thousand() -> None:
    assert sum(HOW_MANY.values()) > 1000


# --- Through the command -------------------------------------------------------------------------

QUICK = ["--task", "quadratic", "--steps", "12", "--save-every", "0"]


def deva(*words: str | Path) -> int:
    return main([str(word) for word in words])


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def losses(folder: Path) -> dict[str, list[float]]:
    return {each["id"]: each["curve"]["loss"] for each in read_results(folder / "results.jsonl")}


@pytest.mark.parametrize("kept", [2, 1])
def test_train_goes_on_from_what_is_whole(
    kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deva("train", *QUICK, "--out", tmp_path) == 0
    before = losses(tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    newest, *older = checkpoint.found(run)
    (tmp_path / "results.jsonl").unlink()
    flip(newest)
    for path in older[kept - 1 :]:
        path.unlink()
    assert deva("train", "--resume", tmp_path) == 0
    assert f"{newest} is damaged" in capsys.readouterr().out
    assert losses(tmp_path) == before
    assert newest in checkpoint.found(run)  # and is whole again
    assert checkpoint.read_file(newest, "cpu") is not None


def test_a_damaged_checkpoint_is_gone_after_the_next_one(tmp_path: Path) -> None:
    runs = damage.Runs(tmp_path, as_ranks=False)
    flip(runs.newest)
    runs.read()
    assert runs.run.progress.step == 5
    runs.run.progress.step = 7
    checkpoint.save(tmp_path, runs.run)
    assert [path.name for path in checkpoint.found(tmp_path)] == [
        "checkpoint-7.pt",
        runs.older.name,
    ]


def test_compare_carries_out_again_what_it_has_no_result_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--optimizers", "muon,adamw", "--jobs", "1"]
    assert deva("compare", *QUICK, *words, "--out", tmp_path) == 0
    before, path = losses(tmp_path), tmp_path / "results.jsonl"
    flip(path, 0.75)
    capsys.readouterr()
    assert deva("compare", "--resume", tmp_path, "--jobs", "1") == 0
    said = capsys.readouterr()
    assert f"line 2 of {path} is cut short or damaged" in said.err
    assert "1 runs are done already, 1 to go" in said.out
    assert losses(tmp_path) == before


def test_damaged_options_are_refused_and_can_be_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deva("train", *QUICK, "--out", tmp_path) == 0
    before = losses(tmp_path)
    flip(tmp_path / "options.json", 0.9)
    assert deva("train", "--resume", tmp_path) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'options.json'} is damaged: remove it and give the whole command" in said
    (tmp_path / "options.json").unlink()
    assert deva("train", *QUICK, "--out", tmp_path) == 0
    assert "step  0/12" not in capsys.readouterr().out  # it has not started over
    assert losses(tmp_path) == before


def test_what_is_older_than_digests_is_read(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    for path in docs.glob("**/*.jsonl"):
        assert len(read_results(path)) > 5
    first = docs / "race" / "first.jsonl"
    assert deva("race", "--list", "--course", "first", "--results", first) == 0
    (tmp_path / "options.json").write_text('{"optimizer": "deva", "seed": 0, "task": "quadratic"}')
    assert deva("train", "--resume", tmp_path, "--steps", "3") == 0


def test_a_damaged_race_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage.frozen(tmp_path)
    flip(tmp_path / "race.json")
    assert deva("race", "--list", "--out", tmp_path) == 2
    assert f"{tmp_path / 'race.json'} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_every_published_line_is_a_result(path: Path) -> None:
    """A line that is edited by hand needs a new digest."""
    lines = path.read_text("utf-8").splitlines()
    assert len(read_results(path)) == len({json.loads(line)["id"] for line in lines})
