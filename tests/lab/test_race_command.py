"""`deva race` from beginning to end, on a tiny GPT."""

import json

import pytest

from deva_lab.cli import parser
from deva_lab.commands import race as command
from deva_lab.errors import UsageError
from deva_lab.race import tuning
from deva_lab.race.entries import RACE, Course, Entry, Place, Rules
from deva_lab.race.standings import Race
from deva_lab.results import read_results

TABLE = {
    "muon": Entry("muon", "muon", 0.01, "Muon", "baseline"),
    "whitened": Entry("whitened", "deva:variant=whitened", 0.01, "whitened"),
    "whitened-80": Entry("whitened-80", "deva:variant=whitened", 0.01, "shorter", length=0.8),
}


@pytest.fixture
def race(tmp_path, monkeypatch) -> Race:
    monkeypatch.setenv("DEVA_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "texts.jsonl"
    texts = [f"document {number}, " * 30 for number in range(60)]
    text.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    base = RACE.base.changed(size="tiny", data=str(text), vocabulary=256)
    base = base.changed(steps=5, batch=2, evaluate_every=5)
    rules = Rules(base, (0,), (11, 12), budget=2, muons=("muon",))
    places = {"batch": Place("a larger batch", {"batch": 3})}
    course = Course("tiny", "a tiny GPT", rules, TABLE, goal=0.9)
    return Race(tmp_path / "race", course=course, places=places)


def deva(race: Race, *words: str) -> int:
    options = parser().parse_args(["race", *words, "--jobs", "1"])
    options.words = ["race", *words]
    return command.run(options, race)


def test_from_tuning_to_the_board_and_no_run_twice(race, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FARTHEST", 1.0)  # none beyond what tuning has run
    with pytest.raises(UsageError, match="has no runs of the course tiny, so there is no page"):
        deva(race, "page", "--docs", str(tmp_path / "docs"))
    assert not (tmp_path / "docs").exists()
    assert deva(race, "tune", "muon") == 0
    with pytest.raises(UsageError, match="whitened has been tuned with 0 of 2"):
        deva(race, "freeze")
    assert deva(race, "freeze", "muon") == 0
    with pytest.raises(UsageError, match="whitened is not frozen"):
        deva(race, "final", "whitened")
    assert deva(race, "tune", "whitened", "whitened-80") == 0
    assert len(race.results) == 2 * len(TABLE)
    assert deva(race, "freeze") == 0
    assert deva(race, "final") == 0
    results = read_results(race.folder / "results.jsonl")
    assert len(results) == (2 + 2) * len(TABLE)
    assert {r["settings"]["steps"] for r in results} == {5, 4}
    rows = race.standings()
    assert {row.entry.name for row in rows} == set(TABLE)
    assert not any(row.frozen.late for row in rows)
    capsys.readouterr()
    written = (race.folder / "results.jsonl").read_text()
    assert deva(race) == 0  # all of it again: nothing is left to do
    assert (race.folder / "results.jsonl").read_text() == written
    said = capsys.readouterr().out
    assert "deva compare --optimizers deva:variant=whitened,lr=" in said
    assert (race.folder / "race.svg").is_file()
    with pytest.raises(
        UsageError, match="unknown place to confirm at 'bach', did you mean 'batch'"
    ):
        deva(race, "confirm", "whitened", "--at", "bach")
    assert deva(race, "confirm", "whitened") == 0
    assert "a larger batch" in capsys.readouterr().out
    assert deva(race, "robustness", "whitened") == 0
    assert "rates within 1 %" in capsys.readouterr().out
    assert deva(race, "page", "--docs", str(tmp_path / "docs")) == 0
    assert "a larger batch" in (tmp_path / "docs" / "tiny.md").read_text()
    assert deva(race, "recipe", "whitened-80") == 0
    said = capsys.readouterr().out
    assert "-m deva_lab.race.track" in said
    assert "--steps 2600" in said


def test_a_race_that_is_stopped_goes_on(race, capsys, monkeypatch):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    assert deva(race, "tune", "muon") == 0
    first = race.results
    monkeypatch.setattr("deva_lab.launchers.run_one", stopped)
    with pytest.raises(KeyboardInterrupt):
        deva(race, "tune", "whitened")
    monkeypatch.undo()
    assert race.results == first
    assert deva(race, "tune", "muon", "whitened") == 0
    assert race.results[: len(first)] == first
    assert len(race.results) == 4


def test_entries_alone_go_through_all_stages(race, capsys):
    assert deva(race, "muon", "whitened") == 0
    assert {row.entry.name for row in race.standings()} == {"muon", "whitened"}
    with pytest.raises(UsageError, match="unknown stage of the race 'muno'"):
        deva(race, "muno")
