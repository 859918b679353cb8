"""The comparison as Python and notebooks have it."""

import pytest

from deva_lab.entrants import Entrant
from deva_lab.errors import UsageError
from deva_lab.plan import Request, plan
from deva_lab.render.pages import Comparison
from deva_lab.results import summary
from deva_lab.tasks import make_task
from deva_lab.training import train
from lab.made_results import comparison, result

FAILED = {**result("muon", loss=[]), "status": "failed", "error": "RuntimeError: <no> memory"}


def test_table_figure_and_page(tmp_path):
    found = Comparison(comparison(), title="Mine")
    assert found.table() == str(found)
    assert found.table().splitlines()[3].startswith("deva ")
    assert [axes.get_xlabel().split(" (")[0] for axes in found.plot().axes] == [
        "tokens",
        "learning rate",
    ]
    page = found.report(tmp_path / "page.html")
    assert page.read_text("utf-8") == found.page()
    assert "<title>Mine</title>" in found.page()
    assert "deva compare --task gpt" in found.page()  # the command of the last run


def test_a_notebook_shows_table_and_figure():
    shown = Comparison([result(loss=[8.0, 4.0]), FAILED])._repr_html_()
    assert "<table>" in shown
    assert "<svg" in shown
    assert "RuntimeError: &lt;no&gt; memory" in shown


def test_all_runs_may_have_failed(tmp_path):
    found = Comparison([FAILED])
    found.publish(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "curves.svg", "report.html"}
    assert "Every run failed." in found.page()
    assert "Every run failed." in found._repr_html_()
    assert found.plot().axes


def test_a_baseline_that_did_not_run_is_an_error():
    with pytest.raises(UsageError, match="unknown baseline 'muno'"):
        Comparison(comparison(), baseline="muno")


def test_results_are_looked_at_once(tmp_path, monkeypatch):
    means = []
    monkeypatch.setattr(summary, "mean_curve", lambda runs: means.append(runs) or mean(runs))
    found = Comparison(comparison())
    found.publish(tmp_path)
    found.table()
    assert len(means) == len(found.rows)


mean = summary.mean_curve


def test_telemetry_of_a_real_comparison_is_on_the_page(tmp_path):
    entrants = tuple(map(Entrant.parse, ("deva-sinf", "muon", "torch-adamw")))
    runs = plan(Request(entrants, task="mlp", size="tiny", steps=4, telemetry=2))
    assert [run.telemetry for run in runs] == [(2, 4), (2, 4), ()]  # PyTorch's has none
    results = [train(run, make_task(run, report=print)) for run in runs]
    found = Comparison(results)
    assert list(found.telemetry) == ["update", "gamma", "drift", "msign"]
    assert set(found.telemetry["update"]) == {"deva-sinf", "muon"}
    assert found.telemetry["update"]["muon"].x == [2, 4]
    assert "Norm of Γ" in found.page()
    with pytest.raises(UsageError, match="--telemetry is a number of steps, at least 1, got 0"):
        plan(Request(entrants, task="mlp", size="tiny", steps=4, telemetry=0))
