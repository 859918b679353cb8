"""What each rank owns: about 1/N of the work, the state and the traffic, as documented."""

from dataclasses import replace
from functools import cache

import pytest

from helpers import ROOT
from ranks import run

from .shares import (
    CASES,
    OPTIMIZERS,
    RanksSettings,
    Share,
    derived,
    of_each,
    plan,
    row,
    share,
)

SMALL = RanksSettings(width=32)
DOCUMENTATION = (ROOT / "docs" / "distributed.md").read_text()


@cache
def whole(name: str) -> Share:
    return share(SMALL, name, None)


@pytest.mark.parametrize(
    ("layout", "size", "wire"),
    [
        ("FSDP2", 2, False),
        ("FSDP2", 4, False),
        ("HSDP", 4, False),
        ("DDP", 4, False),
        ("HSDP", 4, True),
        ("DDP", 2, True),
    ],
)
def test_work_state_and_traffic_are_shared_out(layout: str, size: int, wire: bool) -> None:
    settings = replace(SMALL, wire=wire)
    found = run(size, of_each, settings, layout)
    for name in OPTIMIZERS:
        each = [of_rank[name] for of_rank in found]
        assert sum(x.flops for x in each) == whole(name).flops, name  # nothing is done twice
        assert max(x.flops for x in each) <= 1.15 / size * whole(name).flops, name
        assert max(x.state for x in each) <= 1.15 / size * whole(name).state, name
        # A piece of a message is padded to eight bytes, which no piece here needs.
        sent = sum(x.sent for x in each)
        assert sent == pytest.approx(derived(settings, layout, size), rel=1e-6), name
        assert max(x.collectives for x in each) <= 4  # two all-reduces, there and back


def test_bfloat16_on_the_wire_halves_the_bytes() -> None:
    for layout, size in CASES[1:]:
        plain, rounded = (derived(replace(SMALL, wire=wire), layout, size) for wire in (0, 1))
        assert rounded == plain / 2


def test_one_rank_sends_nothing() -> None:
    (found,) = run(1, of_each, SMALL, "FSDP2")
    assert {(x.sent, x.collectives) for x in found.values()} == {(0, 0)}


@pytest.mark.parametrize(("layout", "size"), [("FSDP2", 4), ("DDP", 2)])
def test_the_measured_table_is_that_of_the_command(layout: str, size: int) -> None:
    assert f"| {' | '.join(row(RanksSettings(), layout, size))} |" in DOCUMENTATION


def test_the_planned_table_is_that_of_the_command() -> None:
    assert plan() in DOCUMENTATION
