"""`deva race` from beginning to end, on a tiny GPT, and the bias correction of the authors."""

import json

import pytest
import torch

from deva_lab.authors import AuthorsDeVASinf
from deva_lab.cli import parser
from deva_lab.commands import race as command
from deva_lab.errors import UsageError
from deva_lab.race import robustness
from deva_lab.race.confirm import Place
from deva_lab.race.entries import Entry
from deva_lab.race.rules import RACE, Rules
from deva_lab.race.state import Race
from deva_lab.summary import read_results
from deva_optim import DeVASinf

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
    return Race(tmp_path / "race", rules=rules, entries=TABLE, places=places)


def deva(race: Race, *words: str) -> int:
    options = parser().parse_args(["race", *words, "--jobs", "1"])
    options.words = ["race", *words]
    return command.run(options, race)


def test_from_tuning_to_the_board_and_no_run_twice(race, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(robustness, "FARTHEST", 1.0)  # none beyond what tuning has run
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
    assert deva(race, "confirm", "whitened") == 0
    assert "a larger batch" in capsys.readouterr().out
    assert deva(race, "robustness", "whitened") == 0
    assert "rates within 1 %" in capsys.readouterr().out
    assert deva(race, "page", "--docs", str(tmp_path / "docs")) == 0
    assert "a larger batch" in (tmp_path / "docs" / "race.md").read_text()
    assert deva(race, "recipe", "whitened-80") == 0
    said = capsys.readouterr().out
    assert "-m deva_lab.race.track" in said
    assert "--steps 2600" in said


def test_a_race_that_is_stopped_goes_on(race, capsys, monkeypatch):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    assert deva(race, "tune", "muon") == 0
    first = race.results
    monkeypatch.setattr("deva_lab.runner.run_one", stopped)
    with pytest.raises(KeyboardInterrupt):
        deva(race, "tune", "whitened")
    monkeypatch.undo()
    assert race.results == first
    assert deva(race, "tune", "muon", "whitened") == 0
    assert race.results[: len(first)] == first
    assert len(race.results) == 4


# The authors' bias correction --------------------------------------------------------------------


def steps(optimizer, grads: list[torch.Tensor], **settings) -> list[torch.Tensor]:
    p = torch.nn.Parameter(torch.zeros_like(grads[0]))
    stepper = optimizer([p], lr=0.1, weight_decay=0.0, msign="svd", eps=0.0, **settings)
    found = []
    for G in grads:
        before = p.detach().clone()
        p.grad = G.clone()
        stepper.step()
        found.append(p.detach() - before)
    return found


# The two take the same sign of the same matrices; a correction is a few operations of float64, up
# to ten times as large, and a step is a difference of weights below 4, rounded before. The margin
# is 16.
ROUNDING = 16 * 10 * 4 * 2**-53


def test_the_authors_correction_differs_by_a_known_factor():
    beta1, beta2 = 0.9, 0.8
    grads = [torch.randn(4, 4, dtype=torch.float64) for _ in range(6)]
    ours = steps(DeVASinf, grads, betas=(beta1, beta2, 0.95))
    theirs = steps(AuthorsDeVASinf, grads, betas=(beta1, beta2, 0.95))
    w = 0.0
    for t, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
        w = beta2 * w + (1 - beta2) * (1 - beta1**t) ** 2
        factor = ((1 - beta2**t) / w) ** 0.5
        torch.testing.assert_close(b, factor * a, rtol=0, atol=ROUNDING)
    assert ((1 - beta2) / ((1 - beta2) * (1 - beta1) ** 2)) ** 0.5 == pytest.approx(10)


def test_the_authors_count_steps_without_a_gradient():
    zero, G = torch.zeros(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    _, ours = steps(DeVASinf, [zero, G])
    _, theirs = steps(AuthorsDeVASinf, [zero, G])
    # κ of the second step, over the exact one of a first: √(1 − β₂²)/(1 − β₁²) against 1 / √w,
    # where M is (1 − β₁) G and V (1 − β₂) of its square.
    expected = (1 - 0.95**2) ** 0.5 / (1 - 0.95**2) / (1 - 0.95) ** 0.5
    torch.testing.assert_close(theirs, expected * ours, rtol=0, atol=ROUNDING)
