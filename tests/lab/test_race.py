"""The race on made-up runs: tuning, freezing, scores, tests and ranges."""

import inspect
import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

import deva_optim
from deva_lab.cli import main
from deva_lab.errors import UsageError
from deva_lab.race.entries import COURSES, ENTRIES, PLACES, RACE, Place
from deva_lab.race.page import _without_effect, claim, confirmation, markdown, text
from deva_lab.race.standings import Frozen, Race, freeze, interval, paired, runner_up, standings
from deva_lab.race.tuning import (
    at_an_end,
    good_range,
    losses,
    lowest_point,
    next_rates,
    next_runs,
    pending,
    robustness,
)
from deva_lab.reproduce.measures import Measured
from deva_lab.run.entrants import Entrant, entrants
from deva_lab.run.settings import TUNED
from deva_lab.run.tasks import check_task
from deva_lab.usage import OPTIMIZERS
from lab.made_race import (
    COURSE,
    ENDS,
    FAIR,
    RULES,
    TABLE,
    all_tuned,
    finals,
    raced,
    result_of,
    tuned,
)

# The table and the rules -------------------------------------------------------------------------


def test_the_entries_are_optimizers_that_there_are():
    for name, entry in ENTRIES.items():
        assert entry.name == name
        assert Entrant.parse(entry.optimizer).lr is None
        assert entry.kind != "ablation" or entry.of in ENTRIES
        assert 0 < entry.length <= 1
    assert set(RACE.muons) <= set(ENTRIES)
    assert {"adamw", "lion", "adamuon", "soap-light", "deva-paper", "deva-authors"} <= set(ENTRIES)
    kinds = {(entry.optimizer, entry.length, entry.decay) for entry in ENTRIES.values()}
    assert len(kinds) == len(ENTRIES)


def test_the_courses_differ_from_the_sprint_in_one_thing_and_have_seeds_of_their_own():
    sprint = COURSES["sprint"].rules.base
    assert sprint == RACE.base
    longer = sprint.changed(steps=5 * sprint.steps, evaluate_every=100)
    assert COURSES["distance"].rules.base == longer
    assert COURSES["broad"].rules.base == sprint.changed(batch=4 * sprint.batch)
    seen = {*COURSES["first"].rules.final_seeds, *COURSES["first"].rules.tuning_seeds}
    for name in ("sprint", "distance", "broad"):
        course = COURSES[name]
        assert course.name == name
        assert not seen & set(course.rules.final_seeds)
        assert len(course.rules.final_seeds) >= (8 if name == "sprint" else 4)
        assert {course.fair, *course.rules.muons} <= set(course.entries)
        assert {"adamw", "lion", "adamuon", "soap-light", "deva-paper"} <= set(course.entries)


def test_an_entry_has_the_defaults_of_deva_written_out():
    defaults = inspect.signature(deva_optim.DeVA).parameters
    options = dict(Entrant.parse(ENTRIES["firm-fall"].optimizer).options)
    assert {name: defaults[name].default for name in options} == options
    sinf = inspect.signature(deva_optim.DeVASinf).parameters
    apart = {name for name in sinf if sinf[name].default != defaults[name].default}
    assert apart == {*options, "rest"}  # no other default is DeVA's own


def test_a_comparison_takes_what_the_race_has_found_best():
    """Settings and rates, of DeVA those that it has by default (the test above)."""
    pages = Path(__file__).parents[2] / "docs/race"
    frozen, sprint = Frozen.read(pages / "first.json"), Frozen.read(pages / "sprint.json")
    assert frozen is not None
    assert sprint is not None
    named = {"muon": frozen.muon, "soap": "soap-light", "adamw": "adamw"}
    found = {name: frozen.entries[entry] for name, entry in named.items()}
    found = {"deva": sprint.entries["firm-fall"], **found}
    taken = {label.partition(":")[0]: (label, lr) for label, lr in TUNED.items()}
    assert taken == {
        name: ("deva" if name == "deva" else entry.optimizer, entry.lr)
        for name, entry in found.items()
    }
    for name in ("muon", "soap", "adamw"):  # the lowest that tuning has seen
        tried = [e for e in frozen.entries.values() if e.optimizer.partition(":")[0] == name]
        assert found[name] == min(tried, key=lambda entry: min(entry.tuning_losses.values()))
    assert [entrant.default_lr for entrant in entrants(OPTIMIZERS)] == list(TUNED.values())


def test_the_task_is_the_one_of_the_issue(monkeypatch):
    base = RACE.base
    assert (base.size, base.data, base.batch, base.steps) == ("small", "fineweb-sample", 8, 600)
    assert (base.decay, base.warmup, base.clip, base.accumulate) == (0.4, 0.0, 0.0, 1)
    assert not set(RACE.tuning_seeds) & set(RACE.final_seeds)
    assert len(RACE.final_seeds) >= 3


def test_the_command_prints_rules_entries_and_an_empty_board(tmp_path, capsys):
    assert main(["race", "--rules"]) == 0
    assert "600 steps of 8 × 256 = 2,048 tokens" in capsys.readouterr().out
    assert main(["race", "--entries"]) == 0
    said = capsys.readouterr().out
    entries = COURSES["sprint"].entries
    assert all(name in said for name in entries)
    assert f"5 learning rates each, {5 * len(entries)} tuning runs" in said
    assert main(["race", "--list", "--out", str(tmp_path)]) == 0
    assert "No entry has been run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--course", "spirnt"], "unknown course of the race 'spirnt', did you mean 'sprint'"),
        (["tnue"], "unknown stage of the race 'tnue', did you mean 'tune'"),
        (["tune", "laen"], "unknown entry of the race 'laen', did you mean 'lean'"),
        (["final"], "nothing is frozen in"),
        (["confirm"], "nothing is frozen in"),
        (["robustness"], "say which: deva race robustness ENTRY muon adamw"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["tune", "--results", __file__], "--results is for looking"),
        (["--list", "--results", "x"], "--results x: there is no such file"),
    ],
)
def test_requests_that_make_no_sense(words, message, tmp_path, capsys):
    assert main(["race", *words, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


# Tuning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("best", "rates"),
    [
        (0.01, {0.005, 0.00707, 0.01, 0.0141, 0.02}),
        (0.014, {0.005, 0.01, 0.0119, 0.0141, 0.02}),
        (0.1, {0.005, 0.01, 0.02, 0.04, 0.08}),
        (0.001, {0.005, 0.01, 0.02, 0.0025, 0.00125}),
    ],
)
def test_tuning_spends_the_budget_near_the_best_rate(best, rates):
    tried: dict[float, float] = {}
    while new := next_rates(tried, 0.01, 5):
        tried |= {lr: 3 + math.log(lr * 1.01 / best) ** 2 for lr in new}
    assert set(tried) == rates
    assert at_an_end(tried) == (best in (0.1, 0.001))


def test_tuning_ends_where_three_digits_say_no_more():
    tried: dict[float, float] = {}
    while rates := next_rates(tried, 0.01, 100):
        assert not tried.keys() & set(rates)
        tried |= {lr: abs(math.log(lr / 0.0108)) for lr in rates}
    assert 10 < len(tried) < 100
    assert min(tried, key=tried.get) == 0.0108


def test_a_rate_that_diverges_is_no_end_to_follow():
    tried = {0.005: 3.1, 0.01: 3.0, 0.02: math.inf}
    assert next_rates(tried, 0.01, 5) == [0.00707]


def test_every_entry_gets_the_same_number_of_runs():
    for entry in TABLE.values():
        results = tuned(entry)
        assert len(results) == RULES.budget
        assert {r["settings"]["seed"] for r in results} == set(RULES.tuning_seeds)
        assert len(losses(entry, results, RULES)) == RULES.budget
        assert pending([entry], results, RULES) == []


def test_tuning_that_was_stopped_goes_on_with_what_it_began():
    entry = TABLE["deva"]
    first, *others = pending([entry], [], RULES)
    results = [result_of(first, 3.1)]
    assert losses(entry, results, RULES) == {}
    assert pending([entry], results, RULES) == others


# Freezing ----------------------------------------------------------------------------------------


def test_the_better_muon_sets_the_target_and_the_best_rates_are_frozen(tmp_path):
    frozen = freeze(None, list(TABLE.values()), TABLE, all_tuned(), RULES)
    assert frozen.muon == "muon-nesterov"
    assert {entry.lr for entry in frozen.entries.values()} == {0.0141}
    assert not any(entry.late for entry in frozen.entries.values())
    frozen.write(tmp_path / "race.json")
    assert Frozen.read(tmp_path / "race.json") == frozen
    assert Frozen.read(tmp_path / "nothing") is None


def test_what_is_not_tuned_is_not_frozen():
    results = all_tuned()
    with pytest.raises(UsageError, match="deva has been tuned with 3 of 4 learning rates"):
        freeze(None, [TABLE["deva"]], TABLE, _without(results, "deva", 0.0141), RULES)
    with pytest.raises(UsageError, match="muon has been tuned with 3 of 4"):  # the target needs it
        freeze(None, [TABLE["deva"]], TABLE, _without(results, "muon", 0.0141), RULES)


def _without(results, name, lr):
    gone = TABLE[name].run(RULES, lr, 0).id
    return [result for result in results if result["id"] != gone]


def test_what_is_frozen_stays_and_what_comes_later_is_late():
    frozen, results = raced()
    before = dict(frozen.entries)
    del frozen.entries["deva"]
    again = freeze(frozen, list(TABLE.values()), TABLE, results, RULES)
    assert again.entries["deva"].late
    assert {name: x for name, x in again.entries.items() if name != "deva"} == {
        name: x for name, x in before.items() if name != "deva"
    }


@pytest.mark.parametrize(
    ("entry", "rules", "message"),
    [
        (replace(TABLE["deva"], name="new"), RULES, "new is not frozen"),
        (replace(TABLE["deva"], optimizer="soap"), RULES, "deva was frozen as deva on 1 of the"),
        (
            replace(TABLE["deva"], decay=0.7),
            RULES,
            "is now deva on 1 of the steps, its rate falling",
        ),
        (TABLE["deva"], replace(RULES, budget=9), "the rules of the race have changed"),
    ],
)
def test_the_final_stage_takes_what_is_frozen_alone(entry, rules, message):
    frozen, _ = raced()
    with pytest.raises(UsageError, match=message):
        frozen.check(entry, rules)


# Scores ------------------------------------------------------------------------------------------


def test_the_score_is_the_share_of_muons_tokens():
    frozen, results = raced()
    rows = {row.entry.name: row for row in standings(frozen, TABLE, results, RULES)}
    assert rows["muon-nesterov"].score == pytest.approx(1)
    # Lines from 5: DeVA's reaches 3.2 after 1.8 / 1.9 of its way, the short one's of 0.8 of it.
    assert rows["deva"].score == pytest.approx(1.8 / 1.9)
    assert rows["short"].score == pytest.approx(0.8 * 1.8 / 1.81)
    assert rows["muon"].score is None
    assert rows["deva"].time == pytest.approx(rows["deva"].score)
    assert (rows["deva"].step, rows["deva"].optimizer) == (100, 9)
    assert list(rows) == ["short", "deva", "muon-nesterov", "muon", "worse"]


def test_a_shorter_schedule_that_ends_at_the_target_counts_by_its_length():
    frozen, results = raced()
    short = TABLE["short"]
    kept = [r for r in results if r["settings"]["steps"] != 80]
    ends = finals(short, frozen.entries["short"].lr, end=ENDS["muon-nesterov"])
    rows = standings(frozen, TABLE, kept + ends, RULES)
    assert next(row for row in rows if row.entry is short).score == pytest.approx(0.8)


def test_schedules_of_different_length_are_compared_by_their_tokens():
    frozen, results = raced()
    kept = [r for r in results if r["settings"]["seed"] == 0]
    ends = {"muon-nesterov": (3.2, 3.2, 3.2), "short": (3.0, 3.05, 3.1)}
    for name, finals_ in ends.items():
        for seed, end in zip(RULES.final_seeds, finals_, strict=True):
            run = TABLE[name].run(RULES, frozen.entries[name].lr, seed)
            kept.append(result_of(run, end))
    rows = standings(frozen, TABLE, kept, RULES)
    shares = [0.8 * 1.8 / (5 - end) for end in ends["short"]]
    assert list(rows[0].scores.values.values()) == pytest.approx(shares)
    gap = 1 - sum(shares) / 3
    assert f"is there {gap:.3f} of Muon's tokens earlier than muon-nesterov" in text(rows, COURSE)


def test_an_entry_that_diverges_on_one_seed_never_reaches_the_target():
    frozen, results = raced()
    lost = TABLE["deva"].run(RULES, frozen.entries["deva"].lr, 102)
    results = [r for r in results if r["id"] != lost.id] + [result_of(lost, 3.0, "diverged")]
    row = next(r for r in standings(frozen, TABLE, results, RULES) if r.entry.name == "deva")
    assert row.score is None
    assert math.isinf(row.final.mean)


def test_there_is_no_board_before_muon_has_run_and_no_row_before_all_seeds_have():
    frozen, results = raced()
    muon = TABLE["muon-nesterov"].run(RULES, frozen.entries["muon-nesterov"].lr, 101).id
    assert standings(frozen, TABLE, [r for r in results if r["id"] != muon], RULES) == []
    deva = TABLE["deva"].run(RULES, frozen.entries["deva"].lr, 101).id
    rows = standings(frozen, TABLE, [r for r in results if r["id"] != deva], RULES)
    assert "deva" not in [row.entry.name for row in rows]


def test_the_board_has_commands_and_a_test_against_the_next_of_its_length():
    frozen, results = raced()
    rows = standings(frozen, TABLE, results, RULES)
    assert runner_up(rows).entry.name == "muon-nesterov"  # another length is no other optimizer
    assert "short is first; against muon-nesterov it cannot be tested" in text(rows, COURSE)
    full = [row for row in rows if row.entry.name != "short"]
    assert runner_up(full).entry.name == "muon-nesterov"
    said = text(full, COURSE)
    assert "deva is first. Seed by seed it ends 0.1000 lower than muon-nesterov" in said
    assert "--optimizers muon:nesterov=true,lr=0.0141 --size small" in said
    assert "--steps 100 --batch 8 --decay 0.4 --evaluate-every 50 --seeds 101,102,103" in said
    assert "not reached" in said
    assert f"with {full[0].score:.3f} of its tokens (95 % " in said
    assert "the goal of 0.90 is missed." in said


def test_the_claim_is_judged_against_both_muons_and_by_time():
    frozen, results = raced()
    rows = standings(frozen, TABLE, results, RULES, FAIR.fair)
    assert [row.entry.name for row in rows if row.fair is None] == ["worse"]
    # Lines from 5 again: the short one reaches 3.3, where muon ends, after 1.7 / 1.81 of its way.
    assert rows[0].fair == pytest.approx(0.8 * 1.7 / 1.81)
    assert interval(rows[0].scores) is None  # on one seed it is not there

    def against(row, muon):
        ends = next(other.final.values for other in rows if other.entry.name == muon)
        pairs = [(ends[seed], row.final.values[seed]) for seed in RULES.final_seeds]
        found = stats.ttest_rel(*zip(*pairs, strict=True))
        chance = "p < 0.001" if found.pvalue < 0.001 else f"p = {found.pvalue:.3f}"
        return f"paired t = {found.statistic:.1f} over 3 seeds, {chance}"

    assert claim(rows, FAIR) == (
        "short reaches the end of muon-nesterov, the tuned Muon, with 0.796 of its tokens: the "
        "goal of 0.90 is met. At its end, after 80% of the steps, it is 0.0100 lower than that "
        f"Muon at its own ({against(rows[0], 'muon-nesterov')}). short reaches the end of muon, a "
        "Muon that has every lever of DeVA's, with 0.751 of its tokens: the goal of 0.85 is met. "
        "At its end, after 80% of the steps, it is 0.1100 lower than that Muon at its own "
        f"({against(rows[0], 'muon')}). short is there after 0.796 of Muon's time: the goal, no "
        "more than it, is met."
    )
    low, high = interval(rows[1].scores)
    assert f"with {rows[1].score:.3f} of its tokens (95 % {low:.3f} to {high:.3f})" in claim(
        rows[1:], COURSE
    )
    assert "| tokens | tokens / fair Muon | time |" in markdown(rows, FAIR, "made.svg")
    slow = [replace(rows[0], score=0.91, fair=None, time=1.01), *rows[2:]]
    assert "with 0.910 of its tokens" in claim(slow, COURSE)
    assert "the goal of 0.90 is missed." in claim(slow, COURSE)
    assert "after 1.010 of Muon's time: the goal, no more than it, is missed." in claim(slow, FAIR)
    assert "No entry of DeVA reaches the end of muon, a Muon that has" in claim(slow, FAIR)
    assert claim([], FAIR) == "No entry has been run on the final seeds yet."


def test_of_those_that_end_alike_the_quickest_is_named():
    frozen, results = raced()
    rows = {row.entry.name: row for row in standings(frozen, TABLE, results, RULES)}
    deva, muon = rows["deva"], rows["muon-nesterov"]
    ends = Measured(dict(zip(RULES.final_seeds, (3.12, 3.1, 3.08), strict=True)))
    twin = replace(deva, entry=replace(deva.entry, name="twin"), final=ends, time=0.5)
    said, *others = (
        markdown(some, COURSE, "made.svg")
        for some in (
            [deva, twin, muon],
            [deva, replace(twin, time=9.0), muon],
            [deva, replace(muon, time=0.5)],  # which it can tell
        )
    )
    assert f"takes {deva.score:.3f} of the tokens and 0.500 of the time" in said
    assert "ends 0.1000 lower than muon-nesterov" in said
    assert not any("cannot tell" in other for other in others)


def test_a_muon_that_was_lower_on_the_way_still_sets_the_target():
    frozen, results = raced()
    muons = {run.id for run in frozen.runs(TABLE["muon-nesterov"], RULES)}
    for result in results:
        if result["id"] in muons:
            curve = result["curve"]
            curve["loss"][-2] = curve["loss"][-1] - 0.01
    rows = standings(frozen, TABLE, results, RULES)
    (muon,) = [row for row in rows if row.sets_target]
    assert muon.entry.name == "muon-nesterov"
    assert muon.score < 1
    deva = next(row for row in rows if row.entry.name == "deva")
    assert "it ends 0.1000 lower than muon-nesterov (paired t" in markdown(
        [deva, muon], COURSE, "made.svg"
    )
    above = Measured({seed: loss + 0.05 + seed / 1e5 for seed, loss in muon.final.values.items()})
    said = markdown([replace(deva, final=above), muon], COURSE, "made.svg")
    assert "it ends 0.0510 higher than muon-nesterov (paired t" in said
    assert "- **deva** (DeVA): 3.25" in _without_effect([replace(deva, final=above), muon])


# The paired test ---------------------------------------------------------------------------------


def test_the_paired_test_is_the_textbooks():
    one, other = [3.1, 3.2, 3.15, 3.3], [3.2, 3.25, 3.2, 3.31]
    found = paired(by_seed(*one), by_seed(*other))
    expected = stats.ttest_rel(other, one)
    assert (found.t, found.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    zero = by_seed(0.0, 0.0)
    assert paired(by_seed(0.0), zero) is None  # of one seed
    assert paired(zero, by_seed(0.1, math.inf)) is None
    assert paired(zero, zero) is None
    assert paired(zero, by_seed(0.5, 0.5)).p == 0


def by_seed(*values: float) -> Measured:
    return Measured(dict(enumerate(values)))


# Elsewhere, and other rates ----------------------------------------------------------------------


def test_the_places_to_confirm_at_are_tasks_that_there_are():
    frozen, _ = raced()
    for place in PLACES.values():
        runs = frozen.runs(TABLE["short"], RULES, place)
        assert [run.seed for run in runs] == list(RULES.final_seeds)
        assert {run.lr for run in runs} == {0.0141}
        assert runs[0].steps == round(0.8 * place.changes.get("steps", RULES.base.steps))
        local = runs[0].changed(data="digits" if runs[0].task != "gpt" else "python")
        check_task(local if runs[0].task != "resnet" else local.changed(size="small"))


def test_confirmation_compares_with_muon_there():
    frozen, results = raced()
    pair = (TABLE["deva"], TABLE["muon-nesterov"])
    half, elsewhere = Place("half the batch", {"batch": 4}), Place("not run", {"batch": 2})
    for entry, end in zip(pair, (3.0, 3.1), strict=True):
        runs = frozen.runs(entry, RULES, half)
        results += [result_of(run, end + run.seed / 1e4) for run in runs]
    table = confirmation(frozen, pair, [half, elsewhere], results, RULES)
    assert "half the batch" in table
    assert "0.1000" in table
    assert len(table.splitlines()) == 3


def test_elsewhere_an_entry_meets_both_muons_on_four_seeds(tmp_path):
    rules = replace(RULES, final_seeds=tuple(range(201, 209)))
    frozen = freeze(None, list(TABLE.values()), TABLE, all_tuned(), rules)
    half = Place("half the batch", {"batch": 4})
    assert [run.seed for run in frozen.runs(TABLE["deva"], rules)] == list(range(201, 209))
    assert [run.seed for run in frozen.runs(TABLE["deva"], rules, half)] == [201, 202, 203, 204]
    race = Race(tmp_path, course=replace(FAIR, rules=rules))
    frozen.write(race.frozen_path)
    assert [entry.name for entry in race.opponents()] == ["muon-nesterov", "muon"]
    del frozen.entries["muon"]
    frozen.write(race.frozen_path)
    assert [entry.name for entry in race.opponents()] == ["muon-nesterov"]


def test_the_range_of_good_rates_is_where_the_loss_crosses_one_per_cent():
    losses = {0.0025: 3.5, 0.005: 3.06, 0.01: 3.0, 0.02: 3.01, 0.04: math.inf}
    found = good_range(losses)
    assert found.low == pytest.approx(0.01 * 0.5**0.5)  # half of the way to 0.06 above
    assert found.high == 0.02  # beyond it the loss is infinite
    assert (found.open_low, found.open_high) == (False, False)
    assert good_range({0.01: math.inf}) is None


def test_the_parabola_finds_its_lowest_point_between_the_rates_or_says_nothing():
    bowl = {lr: 3 + 0.1 * math.log(lr / 0.012) ** 2 for lr in (0.005, 0.01, 0.0141, 0.04)}
    assert lowest_point(bowl) == pytest.approx(0.012)  # all digits but those of the fit
    assert lowest_point({**bowl, 0.08: math.inf}) == pytest.approx(0.012)
    assert lowest_point({lr: -loss for lr, loss in bowl.items()}) is None
    assert lowest_point({lr: loss for lr, loss in bowl.items() if lr < 0.012}) is None
    assert lowest_point({0.0025: 3.1, 0.005: 3.05, 0.01: 3.01}) is None  # beyond the last rate


def test_ends_that_are_open_are_sought():
    results = tuned(TABLE["deva"])
    runs = next_runs([TABLE["deva"]], results, RULES)
    assert runs == []  # a factor of two from 0.0141 costs three per cent, and both were run
    flat = [{**r, "curve": {**r["curve"], "loss": [3.0] * 5}} for r in results]
    assert {run.lr for run in next_runs([TABLE["deva"]], flat, RULES)} == {0.0025, 0.04}
    assert "rates within 1 %" in robustness([TABLE["deva"]], results, RULES)
    assert robustness([TABLE["muon"]], results, RULES) == ""
