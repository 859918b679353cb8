"""`fig-cifar` and `fig-vit`: the paper's own settings, and what is said of made-up runs."""

import math
from pathlib import Path

import pytest
from torch import nn

from deva_lab.cli import main
from deva_lab.data.images import load_images
from deva_lab.reproduce import losses, sweeps
from deva_lab.reproduce.experiment import parameters
from deva_lab.reproduce.experiments import EXPERIMENTS
from deva_lab.reproduce.paper import IMAGENET, MATRIX, SETUPS, VECTOR, Setup, data_of
from deva_lab.run.entrants import Entrant
from deva_lab.run.settings import RunSettings
from lab.made_results import Result, result_of

# The paper's settings ----------------------------------------------------------------------------


@pytest.mark.parametrize("label", [*MATRIX.values(), *list(IMAGENET.values())[1:]])
def test_what_is_no_matrix_has_the_paper_s_adam(label: str) -> None:
    optimizer = Entrant.parse(label).build(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 0.01)
    assert optimizer.defaults["rest"] == "adamw"
    assert optimizer.defaults["rest_betas"] == (0.9, 0.999)
    assert optimizer.defaults["eps"] == 1e-8
    # AdaMuon has the sign by itself
    signed = label in (IMAGENET["devasinf"], IMAGENET["adamuon"])
    assert optimizer.defaults.get("sign_stabilize", False) is signed


def test_cifar_at_the_scale_of_the_paper() -> None:
    found = EXPERIMENTS["fig-cifar"].runs("paper")
    rates = {run.lr for run in found}
    assert rates > {0.001, 0.005, 0.01, 0.05}  # those that the paper names, and more on both sides
    assert len(found) == 7 * len(rates)
    for run in found:
        assert (run.task, run.size, run.data) == ("resnet", "resnet20", "cifar10")
        assert run.steps * run.batch == 40 * 50_000
        assert (run.batch, run.accumulate, run.warmup, run.dtype) == (128, 1, 0.0, "float32")
        assert [run.rate(step) for step in (0, run.steps // 2)] == pytest.approx([1, 0.5], abs=1e-4)
        assert parameters(run) == 269_722


def test_vit_at_the_scale_of_the_paper() -> None:
    found = EXPERIMENTS["fig-vit"].runs("paper")
    assert len(found) == 5
    for run in found:
        assert (run.task, run.size, run.data, run.lr) == ("vit", "vit-l16", "imagenet-1k", 0.001)
        assert run.batch * run.accumulate == 512
        assert run.steps == 5 * 1_281_167 // 512
        assert run.rate(0) == run.rate(run.steps - 1) == 1.0
        assert parameters(run) == 304_326_632


@pytest.mark.parametrize("subject", ["resnet", "vit"])
def test_there_is_data_everywhere(subject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DEVA_DATA", raising=False)
    assert data_of(subject, "cpu") == "digits"
    monkeypatch.setenv("DEVA_DATA", str(tmp_path))
    assert data_of(subject, "cpu") == "digits"
    for name in ("cifar10-small", "tiny-imagenet-32px-40cls.tar.xz"):
        (tmp_path / name).mkdir()
    assert data_of(subject, "cpu") in ("cifar10-small", "tiny-imagenet")


def test_dry_run_counts_images_and_parameters(tmp_path, capsys) -> None:
    words = ["reproduce", "fig-cifar", "fig-vit", "--scale", "paper", "--dry-run"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "fig-cifar: 42 runs, 84M images" in text
    assert "vit vit-l16 on imagenet-1k, 304,326,632 parameters" in text


def test_validation_images_are_counted_right() -> None:
    assert len(load_images("digits").validation) == sweeps.VALIDATED["digits"]


# What is said of runs ----------------------------------------------------------------------------


def made(run: RunSettings, *, loss: float, accuracy: float, status: str = "finished") -> Result:
    """A result of a run whose loss falls from 3 to the given one."""
    steps = list(range(0, run.steps + 1, run.evaluate_every))
    falling = [loss + (3 - loss) * (1 - step / run.steps) for step in steps]
    return result_of(
        run,
        steps,
        status=status,
        unit="images",
        units=run.batch * run.accumulate,
        parameters=269_722,
        train_loss=[None, *falling[1:]],
        loss=falling,
        accuracy=[accuracy * step / run.steps for step in steps],
    )


def method_of(run: RunSettings) -> str:
    every = (*VECTOR.items(), *MATRIX.items(), *IMAGENET.items())
    return next(method for method, label in every if label == run.optimizer)


def cifar_results(best: dict[str, float], top: dict[str, float]) -> list[Result]:
    """Runs whose accuracy falls off on both sides of a best rate, method by method."""
    found = []
    for run in EXPERIMENTS["fig-cifar"].runs("cpu", "cifar10-small"):
        method = method_of(run)
        off = abs(math.log(run.lr / best.get(method, 0.01)))
        found.append(made(run, loss=1.0, accuracy=top.get(method, 0.5) - 0.05 * off))
    return found


def test_cifar_as_the_paper_has_it(tmp_path: Path) -> None:
    best = dict.fromkeys(VECTOR, 0.005)
    shown = sweeps.show_cifar(cifar_results(best, {"devalinf": 0.6, "soap": 0.65}), tmp_path)
    assert shown.verdict == "holds: 5 of 5 claims hold"
    assert "| DeVA-ℓ∞ | 52.0 | **60.0** | 56.5 | 48.5 | 0.005 | ≈ 0.005 |" in shown.text
    assert "SOAP < " in shown.text
    assert all(path.stat().st_size > 1000 for path in shown.figures)


def test_cifar_the_other_way_round(tmp_path: Path) -> None:
    best = {**dict.fromkeys(VECTOR, 0.05), **dict.fromkeys(MATRIX, 0.001)}
    results = cifar_results(best, {"signum": 0.6, "muon": 0.65, "adamw": 0.3})
    results[0]["status"] = "diverged"
    shown = sweeps.show_cifar(results, tmp_path)
    assert shown.verdict == (
        "holds in part: 1 of 5 claims holds in part, 4 of 5 claims do not hold"
    )  # DeVA-ℓ∞ is above Adam
    assert shown.why.startswith("Steps: a run sees 12,800 images of cifar10-small in 200 steps")
    assert "| Adam | diverged |" in shown.text


def test_a_difference_of_few_images_is_open() -> None:
    errors = sweeps.errors_of(cifar_results({}, {"devalinf": 0.505, "soap": 0.53}))
    noise = sweeps.resolution(errors, 2000)
    assert noise == pytest.approx(100 * math.sqrt(2 * 0.47 * 0.53 / 2000))
    found = sweeps.cifar_findings(errors, noise)
    assert [found[group].verdict for group in ("vector", "matrix")] == ["open", "holds"]


def vit_results(**ends: float) -> list[Result]:
    found = EXPERIMENTS["fig-vit"].runs("cpu", "digits")
    return [made(run, loss=ends.get(method_of(run), 2.0), accuracy=0.4) for run in found]


def test_vit_as_the_paper_has_it(tmp_path: Path) -> None:
    shown = losses.show_vit(vit_results(devasinf=1.5), tmp_path)
    assert shown.verdict == "holds: 4 of 4 claims hold"
    assert "| DeVA-S∞ first | DeVA-S∞ < " in shown.text
    row = next(line for line in shown.text.splitlines() if line.startswith("| Muon"))
    half, end, share = (cell.strip() for cell in row.split("|")[2:5])
    assert 2.5 < float(half) < 2.6  # the average lags behind 2.5
    assert 2.0 < float(end) < 2.1
    assert 60 < float(share.removesuffix(" %")) < 75  # two thirds of the way to 1.5


def test_vit_in_part_and_diverged(tmp_path: Path) -> None:
    results = vit_results(soap=1.2, muon=1.5, devasinf=1.5)
    adam = next(run for run in results if run["label"] == IMAGENET["adamw"])
    adam["status"] = "diverged"
    adam["curve"] = {key: values[:5] for key, values in adam["curve"].items()}
    shown = losses.show_vit(results, tmp_path)
    assert shown.verdict.startswith("holds in part: 2 of 4 claims hold, 1 of 4 claims is within")
    assert shown.why.startswith("Scale: a model of 269,722 parameters sees 19,200 images of digits")
    assert "| Adam | diverged | diverged | – | diverged | – |" in shown.text


# Carried out -------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both experiments with the smallest models, two steps each."""
    monkeypatch.delenv("DEVA_DATA", raising=False)
    short = {"size": "tiny", "steps": 2, "batch": 8, "evaluate_every": 1}
    for subject in ("resnet", "vit"):
        setup = Setup(SETUPS[subject, "cpu"].base.changed(**short), rates=(0.005,))
        monkeypatch.setitem(SETUPS, (subject, "cpu"), setup)


@pytest.mark.usefixtures("tiny")
def test_both_run_from_a_command_once(tmp_path: Path, capsys) -> None:
    words = ["reproduce", "fig-cifar", "fig-vit", "--jobs", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert first.count("**Verdict**") == 2
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 7 + 5
    assert main(words) == 0
    assert first.endswith(capsys.readouterr().out)
    assert (tmp_path / "results.jsonl").read_text().splitlines() == lines
    for name in ("fig-cifar", "fig-vit"):
        assert (tmp_path / f"{name}.svg").exists()
        assert EXPERIMENTS[name].kind == "images"
