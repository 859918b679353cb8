"""Weights in half precision over ranks: copies are rounded alike, blocks each in its own way."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing import assert_close

from ranks import run

from .sharding import advance, alone, past, shared, weights, whole

NAMES = ("deva", "muon", "splus", "soap")
LAYOUTS = ("rows", "ddp", "hybrid", "replicated")
MATRICES = ((7, 5), (3, 5, 4), (6, 6))
BIASES = ((9,), (40,))


def history(start: list[Tensor]) -> list[list[Tensor | None]]:
    """Gradients of some steps, the last of which is zero: there matrices only decay."""
    return [*past(start, 5), [torch.zeros_like(x) for x in start]]


def blocks_and_wholes(dtype: torch.dtype) -> dict[tuple[str, str], tuple[list[Tensor], ...]]:
    found = {}
    for name in NAMES:
        for layout in LAYOUTS:
            start = weights((*MATRICES, *BIASES), dtype)
            params, optimizer, lay = shared(name, start, layout, foreach=False)
            advance(params, optimizer, lay, history(start)[:-1])
            before = whole(params)
            advance(params, optimizer, lay, history(start)[-1:])
            own = [(p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in params]
            found[name, layout] = own, before
    return found


def test_copies_are_the_same_to_the_bit() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        ranks = run(4, blocks_and_wholes, dtype)
        start = weights((*MATRICES, *BIASES), dtype)
        for (name, layout), (own, before) in ranks[0].items():
            others = [found[name, layout] for found in ranks]
            copies = {"rows": (0,), "hybrid": (0, 2)}.get(layout, (0, 1, 2, 3))
            for rank in copies:
                assert_close(others[rank][0], own, rtol=0, atol=0, msg=f"{name}, {layout}")
            # The owner of a matrix rounds all of it, as a single process does.
            theirs = alone(name, start, history(start)[:-1], foreach=False)
            pairs = zip(before, theirs[: len(MATRICES)], strict=False)
            assert all(torch.equal(X, Y) for X, Y in pairs), f"{name}, {layout}"


def equal_rows() -> bool:
    """Whether ranks round equal blocks of a vector alike."""
    ones = torch.ones(400, dtype=torch.bfloat16)
    params, optimizer, lay = shared("adamw", [ones], "rows", lr=1e-3)
    advance(params, optimizer, lay, [[ones]])
    first, second = whole(params)[0].chunk(dist.get_world_size())
    return torch.equal(first, second)


def test_blocks_have_noise_of_their_own() -> None:
    assert run(2, equal_rows) == [False, False]


def resumed() -> bool:
    """Whether ranks that go on from a checkpoint round as those that never stopped."""
    start = weights((*MATRICES, *BIASES), torch.bfloat16)
    steps = past(start, 6)
    params, optimizer, lay = shared("deva", start, "rows")
    advance(params, optimizer, lay, steps[:3])
    others, other, _ = shared("deva", whole(params), "rows")
    other.load_state_dict(optimizer.state_dict())
    advance(params, optimizer, lay, steps[3:])
    advance(others, other, lay, steps[3:])
    pairs = zip(whole(params), whole(others), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_ranks_resume_to_the_bit() -> None:
    assert run(2, resumed) == [True, True]
