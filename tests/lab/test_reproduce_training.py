"""`deva reproduce` with training, end to end on a tiny GPT: what is kept, shared and resumed."""

import json
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deva_lab.cli import main
from deva_lab.commands import reproduce
from deva_lab.models.gpt import GPT, SIZES
from deva_lab.render.display import Display
from deva_lab.reproduce import SCALES
from deva_lab.reproduce.experiment import Trained, parameters, runs_of, units
from deva_lab.reproduce.experiments import EXPERIMENTS
from deva_lab.reproduce.paper import (
    ADAM,
    ADAMUON,
    DEVA,
    LION,
    METHODS,
    MUON,
    SETUPS,
    SOAP,
    Setup,
    data_of,
)
from deva_lab.results import read_results
from deva_lab.run.entrants import Entrant
from deva_lab.run.settings import RunSettings

TEXT_IDS = [
    "fig-nanogpt", "table-nanogpt", "fig-lr", "table-lr", "table-beta3", "fig-batch", "fig-freq",
    "fig-variants", "table-variants", "table-snr",
]  # fmt: skip
TINY = Setup(
    replace(
        SETUPS["gpt", "cpu"].base, size="tiny", steps=4, batch=2, vocabulary=256, evaluate_every=2
    ),
    seeds=(0, 1),
    few=(0, 1),
    rates=(0.005, 0.01),
    beta3=(0.9, 0.95),
    accumulations=(1, 2),
    frequencies=(10, 20),
    recorded=(1, 2, 3, 4),
)


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A small text, and a scale that is done with it in seconds."""
    monkeypatch.setitem(SETUPS, ("gpt", "cpu"), TINY)
    monkeypatch.setenv("DEVA_CACHE", str(tmp_path / "cache"))
    words = [f"word{number}" for number in range(50)]
    chance = random.Random(0)
    path = tmp_path / "text.jsonl"
    documents = (" ".join(chance.choices(words, k=80)) for _ in range(60))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def deva(*words) -> int:
    return main(["reproduce", *map(str, words)])


@pytest.mark.slow
def test_every_experiment_leaves_a_page_and_a_second_call_trains_nothing(
    text, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "out"
    asked = [*TEXT_IDS, "--data", text, "--out", out, "--jobs", "1"]
    assert deva(*asked) == 0
    trained = [one for one in EXPERIMENTS.values() if isinstance(one, Trained)]
    wanted = runs_of([one for one in trained if one.kind == "text"], "cpu", str(text))
    results = read_results(out / "results.jsonl")
    assert sorted(result["id"] for result in results) == sorted(run.id for run in wanted)
    assert len((out / "results.jsonl").read_text().splitlines()) == len(wanted)  # each once
    (with_it,) = (result for result in results if "telemetry" in result)
    settings = {k: v for k, v in with_it["settings"].items() if k != "telemetry"}
    (without,) = (result for result in results if result["settings"] == settings)
    assert with_it["curve"]["loss"] == without["curve"]["loss"]  # the same trajectory
    pages = {name: (out / f"{name}.md").read_text() for name in TEXT_IDS}
    for name, page in pages.items():
        assert page.startswith(f"# {name}\n")
        assert "**Verdict**: " in page
        assert f"`deva reproduce {name} --data {text}` · data {text}, seeds 0" in page
        for kind in ("png", "svg"):
            assert (out / f"{name}.{kind}").exists() == name.startswith("fig-")

    def refuse(*arguments, **options):
        raise AssertionError("a run was carried out again")

    monkeypatch.setattr("deva_lab.run.runner.run_one", refuse)
    (out / "fig-lr.md").unlink()
    capsys.readouterr()
    assert deva("fig-lr", "table-lr", "--data", text, "--out", out) == 0
    assert {name: (out / f"{name}.md").read_text() for name in TEXT_IDS} == pages
    assert deva(*TEXT_IDS, "--data", text, "--out", out, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"{len(wanted)} different runs, 0 to do" in said


class Interrupting(Display):
    """Asks to stop, as Ctrl-C does, once a run has taken some steps."""

    def event(self, event):
        if event.step == 2:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_call_goes_on_where_it_was(text, tmp_path, capsys, monkeypatch):
    asked = ["table-snr", "--data", text, "--jobs", "1"]
    assert deva(*asked, "--out", tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "display", lambda: Interrupting(sys.stdout))
        assert deva(*asked, "--out", tmp_path / "cut") == 130
    said = capsys.readouterr().out
    assert "Stopped. To go on: deva reproduce table-snr" in said
    assert not (tmp_path / "cut" / "results.jsonl").exists()
    assert not (tmp_path / "cut" / "table-snr.md").exists()
    first = []

    class Watching(Display):
        def event(self, event):
            first.append(event.step)

    monkeypatch.setattr(reproduce, "display", lambda: Watching(sys.stdout))
    assert deva(*asked, "--out", tmp_path / "cut") == 0
    assert first[0] == 4  # asked after step 2, it stopped after step 3
    (whole,), (cut,) = (
        read_results(tmp_path / name / "results.jsonl") for name in ("whole", "cut")
    )
    assert [record["step"] for record in whole["telemetry"]] == [1, 2, 3, 4]
    assert cut["telemetry"] == whole["telemetry"]
    assert cut["curve"]["loss"] == whole["curve"]["loss"]


def test_ids_of_kept_results_are_those_of_their_settings():
    """New fields of RunSettings must not rename the runs of docs/evidence.jsonl."""
    path = Path(__file__).parents[2] / "docs" / "evidence.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows
    for row in rows:
        assert RunSettings(**row["settings"]).id == row["id"]


# What is asked for --------------------------------------------------------------------------------


def test_without_the_data_folder_there_is_python_s_own_text(tmp_path, monkeypatch):
    monkeypatch.delenv("DEVA_DATA", raising=False)
    assert data_of("gpt", "cpu") == "python"
    monkeypatch.setenv("DEVA_DATA", str(tmp_path))
    assert data_of("gpt", "cpu") == "python"
    (tmp_path / "fineweb_2800docs.jsonl.xz").write_bytes(b"")
    assert data_of("gpt", "cpu") == "fineweb-sample"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fig-lr", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["fig-lr", "--data", "no/such/text"], "no text at no/such/text"),
    ],
)
def test_errors_come_before_anything_is_trained(words, message, capsys, tmp_path):
    assert deva(*words, "--out", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_experiments_share_their_runs():
    """The usual runs are carried out once, whoever asks for them."""
    main_runs = set(EXPERIMENTS["table-nanogpt"].runs("cpu", "python"))
    for name in TEXT_IDS[:-1]:
        own = EXPERIMENTS[name].runs("cpu", "python")
        assert set(own) & main_runs, name
        assert len({run.id for run in own}) == len(own), name
    text = [one for one in EXPERIMENTS.values() if isinstance(one, Trained) and one.kind == "text"]
    assert len(runs_of(text, "cpu", "python")) <= 60  # what an hour on two cores allows


@pytest.mark.parametrize("scale", SCALES)
def test_optimizers_are_named_as_entrants_name_them(scale):
    """So that a comparison with the same options has the same runs."""
    trained = [one for one in EXPERIMENTS.values() if isinstance(one, Trained)]
    labels = {run.optimizer for one in trained for run in one.runs(scale)}
    assert len(labels) > 20
    assert {Entrant.parse(label).label for label in labels} == labels


def test_every_run_of_a_sweep_has_the_same_number_of_tokens():
    tokens = {units(run) for run in EXPERIMENTS["fig-batch"].runs("cpu", "python")}
    assert tokens == {200 * 8 * 256}


# The paper's own scale ----------------------------------------------------------------------------


def test_paper_scale_is_the_paper_s_setting():
    base = SETUPS["gpt", "paper"].base
    assert 274e6 < (parameters(base) or 0) < 276e6
    assert (base.batch * SIZES["paper"].context, base.lr, base.decay, base.warmup) == (
        49_152, 1e-3, 0.4, 0.0,
    )  # fmt: skip
    assert units(base) == pytest.approx(1.4e9, rel=1e-3)
    setup = SETUPS["gpt", "paper"]
    assert setup.rates == (1e-4, 5e-4, 1e-3, 5e-3, 1e-2)
    assert setup.beta3 == (0.8, 0.9, 0.95, 0.975, 0.9875)
    assert setup.frequencies == (10, 20, 50, 100, 200)
    tokens = [step * 49_152 for step in setup.recorded]
    assert tokens == pytest.approx([5e6, 10e6, 50e6, 100e6, 500e6], rel=5e-3)  # half a step of 102
    for run in EXPERIMENTS["fig-batch"].runs("paper", "fineweb"):
        assert units(run) == pytest.approx(1.4e9, rel=1e-3)


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@pytest.mark.parametrize(
    ("label", "betas"),
    [
        (MUON, (0.95,)),
        (SOAP, (0.95, 0.95, 0.95)),
        (DEVA, (0.95, 0.95, 0.95)),
        (ADAM, (0.9, 0.99)),
        (LION, (0.95, 0.95)),
        (ADAMUON, (0.95, 0.95)),
    ],
)
def test_optimizers_have_the_paper_s_hyper_parameters(scale, label, betas):
    every = EXPERIMENTS["fig-nanogpt"].runs(scale, "python")
    (run,) = [run for run in every if run.optimizer == label and run.seed == 0]
    assert run.lr == (1e-3 if scale == "paper" else 1e-2)
    optimizer = Entrant.parse(label).build(GPT(SIZES["tiny"], 20), run.lr)
    assert {group["lr"] for group in optimizer.param_groups} == {run.lr}
    group = next(group for group in optimizer.param_groups if group["role"] == "matrix")
    assert group["weight_decay"] == 0.1
    found = group["betas"] if "betas" in group else (group["momentum"],)
    assert tuple(found[: len(betas)]) == betas[: len(found)]
    assert not group["nesterov"]
    if label in METHODS:
        assert (group["rest"], group["rest_betas"]) == ("adamw", (0.9, 0.99))
    if label in (SOAP, DEVA):
        assert (group["refresh_every"], group["eps"]) == (10, 1e-8)
    assert group["sign_stabilize"] == (label in (DEVA, ADAMUON))


def test_dry_run_of_the_paper_s_scale_trains_and_fetches_nothing(tmp_path, capsys):
    assert deva("all", "--scale", "paper", "--dry-run", "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "gpt paper on fineweb:2200000, 275,562,276 parameters" in said
    assert "muon  lr 0.001  seed 0  28483 steps of 48  1.4G tokens" in said
    assert "steps of 48 × 4" in said
    assert "theory: computed, no training" in said
    assert not (tmp_path / "out").exists()
