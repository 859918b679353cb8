"""Llama 70B on up to 1,024 ranks, on paper: who has how much to do, to send, and to wait for.

Work is the cost by which owners are chosen, in multiplications; messages are those of FSDP2. Times
are for ranks that work and send at a given rate, both ways at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deva_optim.core.balance import share_out, step_cost
from deva_optim.core.matrices import parts
from deva_optim.core.methods import METHODS
from deva_optim.options import DEFAULTS

from ..render import markdown_table
from .shapes import Shape

# 80 layers of Llama 70B: queries, output; keys, values; gate, up; down.
LLAMA_70B: Final[tuple[Shape, ...]] = 80 * (
    *2 * ((8192, 8192),),
    *2 * ((1024, 8192),),
    *2 * ((28672, 8192),),
    (8192, 28672),
)
SIZES: Final = (8, 64, 128, 256, 512, 1024)
FLOPS: Final = 3e14  # of a rank, a second: bfloat16 products on a GPU of today
BYTES: Final = 5e10  # of a rank, a second and direction: 400 Gb/s
NUMBER: Final = 4  # bytes


@dataclass(frozen=True)
class Plan:
    """A step of the hidden matrices on so many ranks.

    Attributes:
        load: Of the busiest rank, over the mean.
        sent: Bytes that an average rank sends.
        work: Seconds that the busiest rank computes.
        apart, overlapped: Seconds of its step, if it waits for every message, and if the messages
            of one matrix travel while another is updated.
    """

    size: int
    load: float
    sent: float
    work: float
    apart: float
    overlapped: float


def planned(size: int, shapes: Sequence[Shape] = LLAMA_70B) -> Plan:
    """The plan for so many ranks, with DeVA as it comes."""
    read = {shape: parts(shape, "auto", None, -2) for shape in shapes}
    group = dict(DEFAULTS)
    costs = [step_cost(read[shape], METHODS["deva-sinf-lean"], group) for shape in shapes]
    load = [0] * size
    found = share_out(costs, load)
    busiest = load.index(max(load))
    mine = [i for i, owner in enumerate(found) if owner == busiest]
    work = [2 * costs[i] / FLOPS for i in mine]  # an addition for each multiplication
    away = NUMBER * (size - 1) / size / BYTES
    numel = [shapes[i][0] * shapes[i][1] for i in mine]
    there, back = [2 * away * n for n in numel], [away * n for n in numel]
    sent = 3 * NUMBER * sum(n * m for n, m in shapes) * (size - 1) / size**2
    return Plan(
        size,
        max(load) * size / sum(load),
        sent,
        sum(work),
        sum(work) + sum(there) + sum(back),
        overlapped(work, there, back),
    )


def overlapped(work: Sequence[float], there: Sequence[float], back: Sequence[float]) -> float:
    """Seconds until the last round is back.

    A round travels here after the one before it, as soon as the one before that is done.

    >>> overlapped([3.0, 3.0], [2.0, 2.0], [1.0, 1.0])
    9.0
    """
    arrived = returned = 0.0
    done = [0.0, 0.0]
    for w, t, b in zip(work, there, back, strict=True):
        arrived = max(arrived, done[-2]) + t
        done.append(max(done[-1], arrived) + w)
        returned = max(returned, done[-1]) + b
    return returned


def table(sizes: Sequence[int] = SIZES) -> str:
    """The plans, as docs/distributed.md has them."""
    plans = [planned(size) for size in sizes]
    rows = [
        ["load", *(f"{p.load:.2f}" for p in plans)],
        ["GB sent", *(f"{p.sent / 1e9:.1f}" for p in plans)],
        ["work, ms", *(f"{1e3 * p.work:,.0f}" for p in plans)],
        ["step, ms", *(f"{1e3 * p.apart:,.0f}" for p in plans)],
        ["overlapped", *(f"{1e3 * p.overlapped:,.0f}" for p in plans)],
    ]
    return markdown_table(["N", *(f"{p.size:,}" for p in plans)], rows)
