"""`deva reproduce`: the table of experiments, what is kept, and the costs."""

import json
import math
import re

import pytest
import torch

from deva_lab.bench.subjects import SUBJECTS
from deva_lab.cli import main
from deva_lab.reproduce import tables
from deva_lab.reproduce.experiment import Computed, Shown, one_thread
from deva_lab.reproduce.experiments import EXPERIMENTS, page
from deva_lab.reproduce.paper import EXHIBITS, PRINTED

# Every figure and table of the paper, by its label, and the id that has it.
PAPER = {
    "fig:nano_val": "fig-nanogpt",
    "fig:nano_gpt_loss": "fig-nanogpt",
    "fig:trace-func-avg-plot": "fig-trace",
    "fig:imagenet_loss": "fig-vit",
    "fig:cifar10_optimal_lrs": "fig-cifar",
    "fig:lr-sweep": "fig-lr",
    "fig:abl_gcc": "fig-batch",
    "fig:abl_freq": "fig-freq",
    "fig:sec_mom": "fig-variants",
    "tab:summary": "table-methods",
    "tab:nanogpt": "table-nanogpt",
    "tab:hyper_nanogpt": "table-hyper",
    "tab:hyper_VIT": "table-hyper",
    "tab:hyper_resnet": "table-hyper",
    "tab:lr-sweep": "table-lr",
    "tab:beta3": "table-beta3",
    "tab:complexity": "table-cost",
    "tab:sec_mom": "table-variants",
    "tab:snr": "table-snr",
}


def made(calls: list, **settings) -> Computed:
    def compute(given):
        calls.append(dict(given))
        return {"answer": 42}

    def show(results, folder):
        (folder / "drawn.png").write_bytes(b"")
        return Shown(f"the answer is {results['answer']}", "holds", (folder / "drawn.png",))

    return Computed("made", "made up", "nowhere", show, compute, settings)


def test_every_figure_and_table_has_an_id(capsys):
    assert main(["reproduce", "--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == {*PAPER.values(), "theory"}
    assert listed == set(EXPERIMENTS)
    assert set(PRINTED) <= listed


def test_results_are_computed_once_for_each_setting(tmp_path):
    calls = []
    for steps in (1, 1, 2):
        record = made(calls, steps=steps).record("cpu", tmp_path)
        assert record["results"] == {"answer": 42}
    assert calls == [{"steps": 1}, {"steps": 2}]
    (first, _) = sorted(tmp_path.glob("made-*.json"))
    assert json.loads(first.read_text())["environment"]["torch"]


def test_a_page_says_what_was_found_and_how(tmp_path):
    one = made([], steps=3)
    text = page(one, one.record("cpu", tmp_path), tmp_path)
    for part in ("the answer is 42", "**Verdict**: holds.", "`deva reproduce made`", "steps 3",
                 "![made up](drawn.png)", "In the paper: nowhere."):  # fmt: skip
        assert part in text


def test_the_command_writes_a_page_and_takes_its_results_from_the_folder(tmp_path, capsys):
    assert main(["reproduce", "table-cost", "--out", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    assert "**Verdict**" in first
    (kept,) = tmp_path.glob("table-cost-*.json")
    edited = re.sub(r' "digest": .*\n', "", kept.read_text())  # an edited record goes without
    kept.write_text(edited.replace('"seconds": ', '"seconds": 12340'))
    assert main(["reproduce", "table-cost", "--out", str(tmp_path)]) == 0
    assert re.search(r"· 1234\d* s on", capsys.readouterr().out)
    assert (tmp_path / "table-cost.md").read_text().startswith("# table-cost")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["theory2"], "did you mean 'theory'"),
        ([], "deva reproduce ID"),
    ],
)
def test_requests_that_make_no_sense_are_refused(words, message, capsys):
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


def test_small_matrices_are_computed_on_one_thread_and_the_others_come_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


# table-cost -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tables.COSTS)
@pytest.mark.parametrize("shape", [(48, 48), (32, 96), (96, 32), (40, 56)])
def test_formulas_are_what_is_counted_and_measured(name, shape):
    row = tables.measure_cost(name, shape, k=5)
    assert math.isclose(row["formula_flops"], row["counted_flops"], rel_tol=1e-12)
    assert row["formula_bytes"] == row["measured_bytes"]


def test_both_sides_pay_for_both():
    """What the paper's n² m leaves out: on a wide matrix, most of it."""
    one, both = (tables.COSTS[name](64, 256, 10) for name in ("deva-short", "deva-both"))
    assert both - one > 6 * 64 * 256**2


def test_the_paper_has_its_columns_swapped_no_more():
    results = tables.compute_cost({"shapes": [[16, 24]], "refresh_every": 4})
    shown = tables.show_cost(results, None)
    assert "every formula is what was counted and measured" in shown.verdict
    muon, soap = (line.split(" | ") for line in shown.text.splitlines()[2:5:2])
    assert muon[0] == "| Muon"
    assert (muon[1], muon[3]) == ("O(3nm)", "O(5nm²)")
    assert soap[1] == "O(n² + m² + 4nm)"


def test_every_method_of_the_table_of_costs_has_its_row():
    results = tables.compute_cost({"shapes": [], "refresh_every": 4})
    rows = tables.show_cost(results, None).text.split("\n\n")[0].splitlines()[2:]
    rows_of = EXHIBITS["table-cost"]["rows"]
    assert [subject for subject, *_ in rows_of.values()] == list(tables.COSTS)
    states = [SUBJECTS[name].state.formula for name in tables.COSTS]
    found = [(row.split(" | ")[0][2:], row.split(" | ")[2]) for row in rows]
    assert found == list(zip(rows_of, states, strict=True))
