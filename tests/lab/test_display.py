"""What a person sees: lines without a terminal, bars on one."""

import io

import pytest

from deva_lab.render.display import Display, Live, duration, line, loss_text
from deva_lab.run.entrants import Entrant
from deva_lab.run.plan import Request, plan
from deva_lab.run.progress import Event


@pytest.fixture
def runs():
    entrants = (Entrant.parse("deva"), Entrant.parse("muon"))
    return plan(Request(entrants, task="mlp", size="tiny", steps=100))


def event(run, step, loss, status="running", evaluated=True):
    return Event(run.id, step, status, loss, 1.5, evaluated)


def test_lines_are_printed_for_evaluations_alone(runs):
    out = io.StringIO()
    shown = Display(out)
    shown.begin(runs, 3)
    shown.event(event(runs[0], 50, 1.25))
    shown.event(event(runs[0], 51, 1.25, evaluated=False))
    shown.event(event(runs[1], 100, None, "diverged"))
    shown.end()
    first, second, third = out.getvalue().splitlines()
    assert first == "3 runs are done already, 2 to go"
    line = f"deva lr {runs[0].lr:g} seed 0 step 50/100 loss 1.2500 1.5 s"
    assert " ".join(second.split()) == line
    assert third.endswith("diverged")


def test_bars_of_what_is_running_and_a_line_for_what_has_ended(runs):
    from rich.console import Console

    shown = Live()
    out = io.StringIO()
    shown.progress.live.console = Console(file=out, force_terminal=True, width=120)
    shown.begin(runs, 0)
    shown.event(event(runs[0], 100, 0.5, "finished"))
    shown.event(event(runs[1], 30, 0.75))
    shown.progress.refresh()
    drawn = out.getvalue()
    assert f"{line(runs[0], event(runs[0], 100, 0.5, 'finished'))}\n" in drawn
    assert "30/100" in drawn
    assert "loss 0.7500" in drawn
    assert "1 of 2 runs" in drawn
    assert "130/200" in drawn
    shown.event(event(runs[1], 40, None, "diverged"))  # no more steps of it to wait for
    shown.end()
    assert "2 of 2 runs" in out.getvalue()
    assert "200/200" in out.getvalue()


def test_bars_may_be_shown_again_for_other_runs(runs):
    shown = Live()
    for run in runs:
        shown.begin([run], 0)
        shown.event(event(run, 100, 0.5, "finished"))
        shown.end()
    assert not shown.progress.tasks


def test_numbers_are_readable():
    assert [duration(s) for s in (0.04, 59.9, 61, 7200)] == [
        "0.0 s",
        "59.9 s",
        "1 min 01 s",
        "2 h 00 min",
    ]
    assert [loss_text(x) for x in (None, 3.14159, 12345.0)] == ["–", "3.1416", "1.234e+04"]
