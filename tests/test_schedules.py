"""The schedule: its shape, with every optimizer, and from a checkpoint on."""

import pytest
import torch

import deva_optim as do
from deva_optim.schedules import Trapezoid
from helpers import OPTIMIZERS


def run(optimizer, schedule, p, steps):
    """The rate of each step."""
    rates = []
    for _ in range(steps):
        p.grad = torch.ones_like(p)
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return rates


def test_the_rate_rises_stays_and_falls_to_zero():
    factor = Trapezoid(100, warmup=0.1, decay=0.4)
    # (step + 1) / 10, then (100 − step) / 40: quotients of small whole numbers, rounded once
    assert [factor(s) for s in (0, 4, 9, 10, 60, 61, 80, 99, 100, 150)] == [
        *(1 / 10, 5 / 10, 1.0, 1.0, 1.0),
        *(39 / 40, 20 / 40, 1 / 40, 0.0, 0.0),
    ]
    assert {Trapezoid(7, decay=0.0)(step) for step in range(7)} == {1.0}
    assert [Trapezoid(2, decay=1.0)(step) for step in range(3)] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_can_have_it(name, tensor):
    p = torch.nn.Parameter(torch.zeros(3, 4))
    optimizer = OPTIMIZERS[name]([p], lr=torch.tensor(0.5) if tensor else 0.5)
    rates = run(optimizer, do.trapezoid(optimizer, 8, warmup=0.25, decay=0.5), p, 8)
    assert rates == [0.25, 0.5, 0.5, 0.5, 0.5, 0.375, 0.25, 0.125]  # exact in float32


def test_it_goes_on_from_a_checkpoint():
    def start():
        p = torch.nn.Parameter(torch.zeros(3, 4))
        optimizer = do.DeVA([{"params": [p], "role": "matrix"}], lr=0.5)
        return p, optimizer, do.trapezoid(optimizer, 10)

    p, optimizer, schedule = start()
    whole = run(optimizer, schedule, p, 10)
    p, optimizer, schedule = start()
    run(optimizer, schedule, p, 6)
    saved = optimizer.state_dict(), schedule.state_dict()
    p, optimizer, schedule = start()
    optimizer.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    assert run(optimizer, schedule, p, 4) == whole[6:]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 5, "warmup": -0.1}, "warmup must be a share of the steps, 0 to 1, got -0.1"),
        ({"steps": 5, "decay": 40}, "decay must be a share of the steps, 0 to 1, got 40"),
    ],
)
def test_what_is_no_schedule_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Trapezoid(**settings)
