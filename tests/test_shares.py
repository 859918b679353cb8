"""What a rank computes, keeps and sends: about 1/N of the whole, and as the documentation says."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ranks import run
from test_distributed import build, shared, weights

WIDTH, BLOCKS, STEPS = 32, 6, 4  # a period of refreshes
SHAPES = BLOCKS * [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
NORMS = 2 * BLOCKS * [(WIDTH,)]
NAMES = ("deva", "soap", "muon")


class Traffic:
    """Counts the bytes that this rank sends to others through the collectives of a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.calls = 0
        exchange, reduce = dist.all_to_all_single, dist.all_reduce

        def all_to_all(output: Tensor, x: Tensor, taken: Any, given: list[int], group: Any) -> None:
            assert given[dist.get_rank(group)] == 0  # nothing goes out to come back
            self.sent += sum(given)
            self.calls += 1
            exchange(output, x, taken, given, group=group)

        def all_reduce(x: Tensor, group: Any) -> None:
            self.calls += 1
            reduce(x, group=group)

        monkeypatch.setattr(dist, "all_to_all_single", all_to_all)
        monkeypatch.setattr(dist, "all_reduce", all_reduce)


def step(params: list[nn.Parameter], optimizer: Any, lay: Any, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    for p in params:
        p.grad = lay(torch.randn(p.shape, generator=generator))
    optimizer.step()


def kept(optimizer: Any) -> int:
    """Bytes of the state of the matrices."""
    held = [x for p, s in optimizer.state.items() if p.ndim > 1 for x in s.values()]
    return sum(x.numel() * x.element_size() for x in held if not x.is_meta)


@cache
def measured(name: str, layout: str | None) -> tuple[int, int, int, int]:
    """FLOPs of products over a period of refreshes, bytes kept, bytes sent and calls a step."""
    start, lay = weights(SHAPES + NORMS), Tensor.clone
    if layout is None:
        params = [nn.Parameter(x) for x in start]
        optimizer = build(name, params, foreach=False)
    else:
        params, optimizer, lay = shared(name, start, layout, foreach=False)
    step(params, optimizer, lay, 0)
    with pytest.MonkeyPatch.context() as monkeypatch, FlopCounterMode(display=False) as flops:
        traffic = Traffic(monkeypatch)
        for k in range(STEPS):
            step(params, optimizer, lay, k)
    return flops.get_total_flops(), kept(optimizer), traffic.sent // STEPS, traffic.calls // STEPS


def of_each(layout: str) -> list[tuple[int, int, int, int]]:
    return [measured(name, layout) for name in NAMES]


def derived(size: int, layout: str) -> float:
    """Bytes that all ranks together send in a step, as docs/distributed.md derives them."""
    replicas = {"rows": 1, "hybrid": 2, "ddp": size}[layout]
    shards = size // replicas
    numbers = sum(n * m for n, m in SHAPES)
    gathered = 2 * numbers * (shards - 1) / shards  # gradient and weight
    returned = numbers * (size - 1) / shards
    return 4 * (gathered + returned)


@pytest.mark.parametrize(("size", "layout"), [(2, "rows"), (4, "rows"), (4, "hybrid"), (4, "ddp")])
def test_work_state_and_traffic_are_shared_out(size: int, layout: str) -> None:
    found = run(size, of_each, layout)
    for i, name in enumerate(NAMES):
        flops, state, sent, calls = zip(*(of_rank[i] for of_rank in found), strict=True)
        all_flops, all_state, _, _ = measured(name, None)
        assert sum(flops) == all_flops, name  # nothing is done twice
        assert max(flops) <= 1.15 / size * all_flops, name
        assert max(state) <= 1.15 / size * all_state, name
        # A piece of a message is padded to eight bytes, which no piece here needs.
        assert sum(sent) == pytest.approx(derived(size, layout), rel=1e-6), name
        assert max(calls) <= 4  # two all-reduces, there and back


def test_one_rank_sends_nothing() -> None:
    ((_, _, sent, calls),) = run(1, of_each, "rows")[0][:1]
    assert (sent, calls) == (0, 0)
