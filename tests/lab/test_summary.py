"""The summary against cases worked out by hand."""

import json
import math
from pathlib import Path

import pytest

from deva_lab.errors import UsageError
from deva_lab.render.pages import Comparison
from deva_lab.results import loss_range, mean_curve, reach, read_results
from deva_lab.run.settings import TUNED
from lab.made_results import comparison, failed, recorded, result


def to_target(results, along="units"):
    """Label → what it took to the target."""
    summary = Comparison(results)
    return {row.label: summary.to_target(row, along) for row in summary.rows}


def rows_of(results):
    return Comparison(results).rows


def test_units_to_target_by_hand():
    results = [
        result("adamw", loss=[8.0, 6.0, 5.0, 4.0]),
        # reaches 4.0 halfway between the points at 1/3 and 2/3 of the way: 1/2
        result("deva", loss=[8.0, 5.0, 3.0, 2.0]),
        # reaches 4.0 at the point at 2/3; each step takes twice as long
        result("soap", loss=[8.0, 5.0, 4.0, 3.9], seconds=2.0),
        result("muon", loss=[8.0, 7.0, 6.0, 4.5]),
    ]
    units = to_target(results)
    assert list(units) == ["deva", "soap", "adamw", "muon"]
    assert units.pop("muon") is None
    assert units == pytest.approx({"deva": 0.5, "soap": 2 / 3, "adamw": 1.0})
    assert to_target(results, "seconds")["soap"] == pytest.approx(4 / 3)


def test_a_longer_run_may_need_more_than_the_baseline():
    results = [result("adamw", loss=[8.0, 4.0]), result("muon", loss=[8.0, 6.0, 4.0])]
    assert to_target(results)["muon"] == pytest.approx(2.0)


def test_target_is_met_by_the_mean_curve():
    results = [
        result("adamw", loss=[8.0, 4.0, 4.0]),
        result("deva", loss=[8.0, 2.0, 2.0], seed=0),
        result("deva", loss=[8.0, 4.0, 4.0], seed=1),  # the mean is 8, 3, 3: 4 at 0.8 of a half
    ]
    assert to_target(results)["deva"] == pytest.approx(0.4)


def test_reach_at_the_start_and_never():
    assert reach([0, 1], [2.0, 1.0], 3.0) == 0.0
    assert reach([0, 1], [2.0, 1.0], 0.5) is None
    assert reach([], [], 1.0) is None


def test_each_label_is_reported_at_its_own_best_rate():
    results = [
        result("adamw", loss=[8, loss], lr=lr, seed=seed)
        for lr, losses in {0.001: (4.0, 4.2), 0.01: (3.0, 3.4), 0.1: (2.0, 9.0)}.items()
        for seed, loss in enumerate(losses)
    ]
    (row,) = rows_of(results)
    assert row.lr == 0.01  # 0.1 has the best run, not the best mean
    assert row.final == pytest.approx(3.2)
    assert row.spread == pytest.approx(math.sqrt(0.08))  # two values 0.4 apart: 0.4 / √2
    assert (len(row.runs), len(row.by_rate), row.lr_at_edge) == (2, 3, False)


def test_best_is_the_lowest_along_the_way():
    results = [
        result("adamw", loss=[8.0, 3.0, 3.5], seed=0),
        result("adamw", loss=[8.0, 4.0, 3.9], seed=1),
    ]
    (row,) = rows_of(results)
    assert row.best == pytest.approx((3.0 + 3.9) / 2)
    assert row.final == pytest.approx(3.7)


@pytest.mark.parametrize(("best", "edge"), [(0.001, True), (0.01, False), (0.1, True)])
def test_a_best_rate_at_an_end_of_the_grid_is_said(best, edge):
    results = [
        result("soap", loss=[8, 3.0 if lr == best else 4.0], lr=lr) for lr in (0.001, 0.01, 0.1)
    ]
    summary = Comparison(results)
    assert summary.rows[0].lr_at_edge is edge
    assert ("SOAP is at an end of the grid" in summary.table()) is edge


def test_a_diverged_run_counts_as_infinite():
    results = [
        result("muon", loss=[8, 2.0], lr=0.1, seed=0),
        result("muon", loss=[8, 9.0], lr=0.1, seed=1, status="diverged"),
        result("muon", loss=[8, 4.0], lr=0.01, seed=0),
        result("muon", loss=[8, 4.0], lr=0.01, seed=1),
    ]
    (row,) = rows_of(results)
    assert (row.lr, row.final, row.diverged) == (0.01, 4.0, 0)
    assert row.sensitivity == {0.01: (4.0, 0.0), 0.1: (math.inf, None)}


def test_all_diverged():
    results = [
        result("adamw", loss=[8, None, None], status="diverged"),
        result("lion", loss=[None], status="diverged"),
    ]
    summary = Comparison(results)
    assert [math.isinf(row.final) for row in summary.rows] == [True, True]
    assert to_target(results) == {"adamw": None, "lion": None}
    assert summary.headline() == "Every optimizer diverged."
    assert summary.details() == []
    assert "1 of 1 runs diverged" in summary.table()


def test_a_finished_run_without_a_last_loss_did_not_end():
    (row,) = rows_of([result(loss=[8.0, 3.0, None])])
    assert math.isinf(row.final)
    assert row.diverged == 1


def test_nulls_are_left_out_of_the_mean():
    curve = mean_curve([result(loss=[8.0, None, 4.0]), result(loss=[6.0, 5.0, 2.0])])
    assert curve.loss == [7.0, 3.0]
    assert curve.step == [0, 200]
    assert (curve.low, curve.high) == ([6.0, 2.0], [8.0, 4.0])


def test_baseline():
    results = [result("soap", loss=[8, 4]), result("muon", loss=[8, 3])]
    more = [*results, result("adamw:eps=1", loss=[8, 5]), result("adamw", loss=[8, 5])]
    for runs, given, expected in (
        (results, None, "soap"),
        (more, None, "adamw"),
        (more, "muon", "muon"),
        ([*results, result("torch-adamw", loss=[8, 5])], None, "torch-adamw"),
    ):
        summary = Comparison(runs, baseline=given)
        assert summary.baseline == summary.target.label == expected
    with pytest.raises(UsageError, match="did you mean 'muon'"):
        Comparison(results, baseline="muno")


def test_accuracy_and_times():
    one, two = (result(loss=[2.0, 1.0], seed=seed) for seed in range(2))
    one["curve"]["accuracy"], two["curve"]["accuracy"] = [0.1, 0.9], [0.1, 0.8]
    one["milliseconds"]["optimizer"], two["milliseconds"]["optimizer"] = 2.0, 4.0
    summary = Comparison([one, two])
    assert summary.rows[0].accuracy == pytest.approx(0.85)
    assert summary.rows[0].milliseconds["optimizer"] == 3.0
    assert "85.0 %" in summary.table()
    assert "accuracy" not in Comparison([result(loss=[2.0, 1.0])]).table()


def test_no_results():
    nothing = Comparison([])
    assert nothing.rows == []
    assert "optimizer" in nothing.table()
    assert nothing.headline() == "There are no results."


def test_table_is_aligned_and_best_first():
    text = Comparison(comparison()).table()
    head, _, body = text.partition("─" * 20)
    lines = body.splitlines()[1:6]
    assert [line.split()[0] for line in lines] == [
        "deva",
        "muon:nesterov=true",
        "soap",
        "adamw",
        "lion",
    ]
    assert len({len(line) for line in lines}) == 1
    assert "tokens" in head
    assert "3.167; tokens and time to it" in text


def test_markdown_has_as_many_cells_in_every_row():
    results = [*comparison(), result("mine:a=1|2", loss=[8, 3])]
    lines = [line for line in Comparison(results).markdown().splitlines() if line.startswith("|")]
    cells = {line.replace(r"\|", "").count("|") for line in lines}
    assert len(lines) == 2 + 6
    assert len(cells) == 1


def test_whence_the_settings_are_is_said_where_all_are_the_race_s():
    as_found = [result(label, loss=[8, 3], lr=lr) for label, lr in TUNED.items()]
    assert "the race found best for it (docs/race.md)" in Comparison(as_found).table()
    for others in (
        [*as_found[:-1], result("adamw", loss=[8, 3], lr=0.01)],  # another rate
        [*as_found, result("muon", loss=[8, 3], lr=0.01)],  # other settings
        [*as_found, result("adamw", loss=[8, 4], lr=0.01)],  # a grid: tuned on this task
        as_found[:1],
    ):
        assert "docs/race.md" not in Comparison(others).table()


def test_small_losses_keep_their_digits():
    assert "1.23e-07" in Comparison([result(loss=[1.0, 1.234e-7])]).table()


def test_read_results(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    first, again, other = {"id": "a", "n": 1}, {"id": "a", "n": 2}, {"id": "é", "n": 3}
    text = "\n".join(json.dumps(each, ensure_ascii=False) for each in (first, again, other))
    path.write_text(text + "\n", "utf-8")
    assert read_results(path) == [again, other]
    whole = path.read_bytes()
    for length in range(1, len(whole)):  # a kill at any byte loses at most the line it cut
        path.write_bytes(whole[:length])
        written = [first, again, other][: whole[:length].count(b"\n")]
        ids = [each["id"] for each in read_results(path)]
        assert ids[: len({each["id"] for each in written})] == list(
            dict.fromkeys(each["id"] for each in written)
        )


def test_read_results_goes_on_after_a_line_that_was_cut(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b", "cur\n{"id": "b"}\n')
    assert [each["id"] for each in read_results(path)] == ["a", "b"]


def test_read_results_of_something_else(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    path.write_text("not\nresults\n")
    with pytest.raises(UsageError, match="no results"):
        read_results(path)


def runs(label, *ends):
    return [result(label, loss=[8.0, end], seed=seed) for seed, end in enumerate(ends)]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (
            runs("adamw", 4.00, 4.02) + runs("deva", 3.00, 3.02),  # 8 − 4.01 is 0.8 of 8 − 3.01
            "DeVA reached AdamW’s final loss with 80 % of its tokens.",
        ),
        (
            runs("adamw", 4.0, 4.2) + runs("deva", 3.9, 4.2),
            "DeVA and AdamW ended as close to each other as seeds alone may bring them: "
            "no difference is shown.",
        ),
        (runs("adamw", 3.0, 3.01) + runs("muon", 4.0, 4.01), "No optimizer ended below AdamW."),
        (runs("muon", 3.0), "Muon ended at a validation loss of 3.000."),
        (
            [result("adamw", loss=[8, None], status="diverged"), *runs("soap", 3.0)],
            "AdamW diverged; SOAP ended lowest.",
        ),
    ],
)
def test_headline(results, expected):
    assert Comparison(results).headline() == expected


def test_details_are_honest_about_the_second_and_about_one_seed():
    close = runs("adamw", 4.0, 4.1) + runs("deva", 3.0, 3.2) + runs("muon", 3.1, 3.2)
    assert "the order of the two is open" in " ".join(Comparison(close).details())
    single = runs("adamw", 4.0) + runs("deva", 3.0)
    assert "should not be believed" in " ".join(Comparison(single).notes())
    level = runs("adamw", 4.0) + runs("deva", 3.0) + runs("muon", 3.004)
    said = "Muon came second with 3.004, which one seed cannot tell from the first."
    assert said in " ".join(Comparison(level).details())
    behind = runs("adamw", 4.0) + runs("deva", 3.0) + runs("muon", 3.1)
    assert "Muon came second with 3.100." in " ".join(Comparison(behind).details())


def test_loss_range_leaves_out_the_first_fall_but_no_end():
    curve = mean_curve([result(loss=[10.0, 6.0, 4.0, 3.5, 3.2, 3.1, 3.05, 3.0])])
    poor = mean_curve([result(loss=[10.0, 9.0, 8.8, 8.7, 8.6, 8.5, 8.4, 8.3])])
    low, high, logarithmic = loss_range([curve])
    assert (2.5 < low < 3.0, 5.0 < high < 7.0, logarithmic) == (True, True, False)
    assert loss_range([curve, curve, poor])[1] > 8.3
    assert loss_range([mean_curve([result(loss=[100.0, 1e-3, 1e-6])])])[2] is True
    assert loss_range([]) == (0.0, 1.0, False)


def test_a_run_that_failed_is_a_row_with_its_error():
    runs = [result("adamw", loss=[8.0, 4.0]), failed("muon", seed=0), failed("muon", seed=1)]
    summary = Comparison([*runs, failed("adamw", "ValueError: odd\nmore", lr=0.5)])
    assert [row.label for row in summary.rows] == ["adamw"]
    lines = summary.table().splitlines()
    row = next(line for line in lines if line.startswith("muon"))
    assert "failed" in row
    assert row.endswith("OutOfMemoryError: 3 GB")
    assert any(line.startswith("adamw") and line.endswith("ValueError: odd") for line in lines)
    assert "Muon at lr 0.01, seed 0 and 1 failed: OutOfMemoryError: 3 GB" in lines


def test_every_run_may_fail():
    summary = Comparison([failed("adamw"), failed("muon")])
    assert summary.headline() == "Every run failed."
    assert summary.details() == []
    assert summary.table().count("OutOfMemoryError") == 4  # rows and notes


def test_a_baseline_that_failed_is_no_target():
    results = [failed("adamw"), result("muon", loss=[8.0, 4.0]), result("soap", loss=[8.0, 5.0])]
    assert Comparison(results).baseline == "muon"
    summary = Comparison(results, baseline="adamw")
    assert summary.headline() == "AdamW failed; Muon ended lowest."
    assert summary.target is None
    assert {summary.to_target(row, "units") for row in summary.rows} == {None}


def test_runs_that_were_stopped_are_counted_and_left_out():
    summary = Comparison(
        [result(loss=[8.0, 4.0]), result(loss=[8.0, 9.0], seed=1, status="stopped")]
    )
    assert summary.rows[0].final == 4.0
    assert "stopped before their end: 1 runs" in summary.table()


def test_what_is_noise_is_worked_out_from_all_spreads():
    results = runs("adamw", 4.0, 4.2) + runs("deva", 3.0, 3.4)
    # variances 0.02 and 0.08, pooled 0.05; Student's t of two degrees is 4.303 at 0.975
    (sentence,) = (note for note in Comparison(results).notes() if note.startswith("Noise"))
    assert "± 0.224" in sentence
    assert f"below about {4.3027 * math.sqrt(0.05):.3f}" in sentence


def test_the_best_rate_beside_the_usual_one():
    grid = [
        result(label, loss=[8.0, loss], lr=lr)
        for label, losses in {"adamw": (5.0, 4.0, 4.5), "mine": (6.0, 5.0, 5.5)}.items()
        for lr, loss in zip((0.005, 0.01, 0.02), losses, strict=True)
    ]
    single = result("muon", loss=[8.0, 4.0], lr=0.01)
    # "mine" has no usual rate, and muon ran at one alone
    rows = [("adamw", "0.005", "5.000", "0.01", "4.000", "1.000")]
    assert Comparison([*grid, single]).tuned().rows == rows


def test_flops_are_six_a_weight_and_token():
    one, other = result("adamw", loss=[8.0, 4.0]), result("muon", loss=[8.0, 4.0])
    estimate = 6.0 * 1_312_000 * 2048
    assert Comparison([one, other]).flops == {"adamw": estimate, "muon": estimate}
    images = [{**one, "unit": "images"}]
    assert Comparison(images).flops == {}  # a weight of a convolution is used many times


def test_telemetry_over_matrices_and_seeds():
    losses = [8.0, 5.0, 4.0]
    runs = [recorded(result("deva", loss=losses, seed=seed)) for seed in range(2)]
    found = Comparison([*runs, result("adamw", loss=losses)]).telemetry
    assert list(found) == ["update", "drift", "skipped"]  # nothing is said of Γ
    assert list(found["update"]) == ["deva"]
    update, drift, skipped = (found[key]["deva"] for key in found)
    assert (update.x, update.middle) == ([100, 200], [0.01, 0.005])
    assert (drift.low, drift.middle, drift.high) == ([0.25] * 2, [0.375] * 2, [0.5] * 2)
    assert skipped.middle == [2.0, 2.0]
