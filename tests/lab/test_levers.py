"""The program behind docs/race/levers.md: every lever trains, and its page says what runs say."""

import math
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from deva_lab.run import tasks
from lab.made_text import task_of

FOLDER = Path(__file__).parents[2] / "docs/race"


def _program():
    spec = spec_from_file_location("levers", FOLDER / "levers.py")
    module = module_from_spec(spec)
    sys.modules["levers"] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


levers = _program()


@pytest.fixture
def few_steps(monkeypatch):
    """Runs of six steps on a tiny model, which evaluate at the end alone."""
    whole = levers.settings_of
    changes = {"size": "tiny", "data": "made", "vocabulary": 64, "steps": 6, "evaluate_every": 6}
    monkeypatch.setattr(levers, "settings_of", lambda job: whole(job).changed(**changes))
    monkeypatch.setattr(tasks, "make_task", lambda settings, report: task_of(settings))


@cache
def loss_without_lever() -> float:
    """To be called before a lever has replaced any function."""
    return levers.carry_out(levers.Job("sprint", "deva", "none", 1, 0.0141))["loss"]


@pytest.mark.parametrize("lever", levers.LEVERS)
def test_a_lever_changes_a_run(lever, few_steps, monkeypatch):
    from deva_optim.core import directions, step

    for module, name in (
        (directions, "soft_quintics"),
        (directions, "softness_of"),
        (step, "lean_"),
        (step, "momentum_"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back after the test
    plain = loss_without_lever()
    found = levers.carry_out(levers.Job("sprint", "deva", lever, 1, 0.0141))
    assert math.isfinite(found["loss"])
    assert (found["loss"] == plain) == (lever == "none")
    assert set(found["read"]) == {f"{n}/{x}" for n in levers.AVERAGES for x in levers.SHARES}
    assert found["read"]["15/0.5"] != found["loss"]


def row(lever, seed, loss):
    return {"course": "made", "optimizer": "deva", "lever": lever, "seed": seed, "loss": loss}


def test_noise_is_what_neither_seed_nor_lever_explains():
    # ±1 is left in each of the four cells of two levers on two seeds, where one degree is free.
    square = [row("none", 1, 1.0), row("none", 2, 5.0), row("brake", 1, 5.0), row("brake", 2, 5.0)]
    spread, free = levers.noise([*square, row("head", 1, 7.0)])
    assert (spread, free) == (pytest.approx(2.0), 1)
    assert levers.noise(square[:1])[1] == 0


def test_a_lever_is_compared_on_the_seeds_that_both_have():
    rows = [row("none", 1, 3.0), row("head", 1, 3.25), row("head", 2, 9.0), row("none", 3, 4.0)]
    lines = levers.table(rows).splitlines()
    assert lines[2].startswith("| head | whitened inputs of the head | made | lean-fall | 1 |")
    assert lines[2].endswith("| +0.2500 |")


def test_the_page_has_the_table_of_the_runs():
    rows, page = levers.results(FOLDER / "levers.json"), (FOLDER / "levers.md").read_text("utf-8")
    assert levers.table(rows) in page  # python docs/race/levers.py table
    assert levers.averages(rows) in page
