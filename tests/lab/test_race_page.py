"""The page of a course: what it shows of runs, and what lies beside it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deva_lab.race.entries import COURSES, RACE
from deva_lab.race.page import compact, page, publish, summary
from deva_lab.race.standings import Race
from lab.made_race import COURSE, RULES, TABLE, raced, result_of, tuned


def race_in(folder) -> Race:
    frozen, results = raced()
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in results))
    frozen.write(folder / "race.json")
    return Race(folder, course=COURSE)


def test_the_page_without_runs_has_the_rules_alone(tmp_path):
    written = page(Race(tmp_path))
    assert "## The rules" in written
    assert "No entry has been run on the final seeds yet." in written
    assert "## Ablations" not in written


def test_the_page_and_what_lies_beside_it(tmp_path):
    race, docs = race_in(tmp_path), tmp_path / "docs"
    docs.mkdir()
    (docs / "made-notes.md").write_text("Nor did prayer.\n")
    written = {path.name for path in publish(race, docs)}
    assert written == {"made.md", "made.jsonl", "made.json", "made.png", "made.svg"}
    said = (docs / "made.md").read_text()
    assert said.startswith("# The race: made\n\nshort reaches the end of muon-nesterov")
    assert "| 1 | short | 0.796 |" in said
    assert (
        "| worse | an ablation | deva | +0.3000 (paired t = 259.8 over 3 seeds, p < 0.001) |"
        in said
    )
    assert "## What did not work\n\nNor did prayer.\n\n## Tuning" in said
    assert "## Tuning" in said
    assert "on seed 0 at one rate or more: 2 of deva and 2 of muon." in said
    published = Race(tmp_path / "none", docs / "made.jsonl", COURSE)
    assert page(published) == said  # all that it says is in what was published
    candidate = {**TABLE, "worse": replace(TABLE["worse"], kind="candidate", of="")}
    unlucky = page(replace(published, course=replace(COURSE, entries=candidate)))
    assert "- **worse** (an ablation): 3.4000 ± 0.0140 against 3.2000 ± 0.0110 of muon" in unlucky


@pytest.mark.parametrize("name", COURSES)
def test_the_page_in_docs_is_what_the_code_and_the_results_there_say(name):
    docs = Path(__file__).parents[2] / "docs/race"
    results = docs / f"{name}.jsonl"
    assert (docs / f"{name}.md").exists() == results.exists()  # a page comes with its runs
    if results.exists():
        race = Race(docs / "none", results, COURSES[name])
        assert (docs / f"{name}.md").read_text() == page(race)  # deva race page --course NAME


def test_the_page_of_all_courses_has_the_table_that_the_results_say():
    docs = Path(__file__).parents[2] / "docs"
    assert summary(docs / "race") in (docs / "race.md").read_text()  # else: deva race page


def test_runs_of_no_entry_are_shown_too(tmp_path):
    race = Race(tmp_path, course=COURSE)
    lost, stray, beyond = (
        RULES.base.changed(optimizer=name, lr=lr)
        for name, lr in (("lion", 0.1), ("soap", 0.02), ("muon", 0.16))
    )
    results = [result_of(lost, 9.0, "diverged"), result_of(stray, 3.2), result_of(beyond, 3.3)]
    results += tuned(TABLE["muon"])
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in results))
    said = page(race).partition("## Tried on the way")[2]
    shown = [line for line in said.splitlines() if line.startswith("| `")]
    assert shown == [
        "| `soap` | 0.02 | 0 | 3.2000 |",
        "| `muon` | 0.16 | 0 | 3.3000 |",
        "| `lion` | 0.1 | 0 | diverged |",
    ]


def test_a_published_run_is_small(tmp_path):
    base = RACE.base.changed(optimizer="deva", lr=0.01)
    result = {**result_of(base, 3.123456789), "command": "deva race tune deva --out runs/a"}
    assert compact(result)["curve"]["loss"][-1] == 3.12346
    assert compact(result)["command"] == "deva race tune deva"
    assert len(json.dumps(compact(result))) < 1500
