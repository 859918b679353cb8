"""Checkpoints of torch.distributed: saved on N ranks, loaded on M, whole, cut or damaged."""

import copy
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer
from torch.testing import assert_close

from helpers import MATRIX
from ranks import SOON, run

from .sharding import (
    agree,
    alone,
    build,
    gradients,
    mesh,
    packed,
    past,
    placed,
    weights,
    whole,
)

STEPS = 6  # before each change of ranks
NAMES = ("deva", "deva-sinf-factored", "soap", "shampoo", "splus")


class Model(nn.Module):
    """The parameters of the other tests, with names for a checkpoint."""

    def __init__(self, layout: str | None) -> None:
        super().__init__()
        self.on = None if layout in (None, "ddp") else mesh(layout)
        self.layout = layout
        self.weights = nn.ParameterList(self.lay(x) for x in weights())

    def lay(self, x: Tensor) -> Tensor:
        return x.clone() if self.on is None else placed(x, self.on, self.layout)


def made(name: str, layout: str | None, **options: Any) -> tuple[Model, Optimizer]:
    model = Model(layout)
    ranks = {"process_group": dist.group.WORLD} if layout == "ddp" else {}
    return model, build(name, model.weights, foreach=False, **ranks, **options)


def go_on(model: Model, optimizer: Optimizer, first: int) -> None:
    for step in range(first, first + STEPS):
        for p, g in zip(model.weights, gradients(weights(), step), strict=True):
            p.grad = model.lay(g)
        optimizer.step()
    optimizer.zero_grad()


def saved(model: Model, optimizer: Optimizer, flat: bool) -> dict[str, Any]:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    return {
        "model": {key: in_one_piece(x) for key, x in get_model_state_dict(model).items()},
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
    }


def in_one_piece(x: Tensor) -> Tensor:
    """A weight as torch can save it: it would take a block of several pieces for one."""
    if not any(hasattr(p, "split_factor") for p in getattr(x, "placements", ())):
        return x
    return x.redistribute(placements=[Shard(p.dim) for p in x.placements])


def in_pieces(model: Model, state: dict[str, Any]) -> dict[str, Any]:
    """The weights that were loaded, placed as the model has them."""
    found = {}
    for key, p in get_model_state_dict(model).items():
        x = state[key]
        found[key] = x.redistribute(placements=p.placements) if isinstance(p, DTensor) else x
    return found


@cache
def expected(name: str, steps: int) -> list[Tensor]:
    """Where a single process is after so many steps."""
    start = weights()
    return alone(name, start, past(start, steps), foreach=False)


def leg(names: tuple[str, ...], layout: str, folder: str, first: int, flat: bool) -> list[Any]:
    """Load unless it is the first leg, take some steps, save."""
    ends = []
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    for name in names:
        model, optimizer = made(name, layout)
        if first:
            state = saved(model, optimizer, flat)
            dcp.load(state, checkpoint_id=f"{folder}/{name}-{first}")
            set_model_state_dict(model, in_pieces(model, state["model"]))
            set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
        go_on(model, optimizer, first)
        state = saved(model, optimizer, flat)
        dcp.save(state, checkpoint_id=f"{folder}/{name}-{first + STEPS}")
        ends.append(whole(model.weights))
    return ends


ROUTE = ((4, "rows"), (2, "ddp"), (1, "rows"), (4, "hybrid"), (2, "columns"))
PACKED = ((2, "packed"), (4, "packed-columns"), (1, "rows"), (4, "packed"))


@pytest.mark.parametrize(
    ("names", "flat", "route"),
    [
        (NAMES, False, ROUTE),
        (NAMES[:2], True, (ROUTE[3], ROUTE[1], ROUTE[2])),  # 4, 2 and 1
        pytest.param(NAMES[:2], False, PACKED, marks=packed),
    ],
    ids=["nested", "flat", "packed"],
)
def test_a_checkpoint_may_be_read_by_other_numbers_of_ranks(
    tmp_path: Path, names: tuple[str, ...], flat: bool, route: tuple[tuple[int, str], ...]
) -> None:
    for i, (size, layout) in enumerate(route):
        found = run(size, leg, names, layout, str(tmp_path), i * STEPS, flat)
        for ends in found:
            for name, ours in zip(names, ends, strict=True):
                agree(ours, expected(name, (i + 1) * STEPS))


# Whole and cut -----------------------------------------------------------------------------------


def from_plain(layout: str) -> list[list[Tensor]]:
    """Every rank loads what a single process has saved."""
    ends = []
    for name in NAMES:
        plain, ours = made(name, None), made(name, layout)
        go_on(*plain, 0)
        with torch.no_grad():
            for p, q in zip(ours[0].weights, plain[0].weights, strict=True):
                p.copy_(ours[0].lay(q.detach()))
        ours[1].load_state_dict(plain[1].state_dict())
        go_on(*ours, STEPS)
        ends.append(whole(ours[0].weights))
    return ends


def to_plain(layout: str) -> list[list[Tensor]]:
    """A single process loads what all ranks have put together, by torch's functions."""
    ends = []
    full = StateDictOptions(full_state_dict=True)
    for name in NAMES:
        ours, plain = made(name, layout), made(name, None)
        go_on(*ours, 0)
        set_model_state_dict(plain[0], get_model_state_dict(ours[0], options=full))
        state = get_optimizer_state_dict(*ours, options=full)
        assert not any(
            isinstance(x, DTensor) for values in state["state"].values() for x in values.values()
        )
        set_optimizer_state_dict(*plain, state)
        go_on(*plain, STEPS)
        ends.append(whole(plain[0].weights))
    return ends


def by_rank_0(layout: str) -> list[list[Tensor]]:
    """Rank 0 alone has a whole state and gives the others their parts."""
    ends = []
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, cpu_offload=True)
    for name in NAMES:
        first, second = made(name, layout), made(name, layout)
        go_on(*first, 0)
        weights, state = get_model_state_dict(first[0], options=options), {}
        state = get_optimizer_state_dict(*first, options=options)
        assert bool(state) == (dist.get_rank() == 0)
        set_model_state_dict(second[0], weights, options=options)
        set_optimizer_state_dict(*second, state, options=options)
        go_on(*second, STEPS)
        ends.append(whole(second[0].weights))
    return ends


def all_ways(layout: str) -> list[list[Tensor]]:
    ends = [*from_plain(layout), *to_plain(layout)]
    # torch cuts the weights of rank 0 itself, and takes every block for one piece.
    return ends if layout == "packed" else [*ends, *by_rank_0(layout)]


@pytest.mark.parametrize("layout", ["rows", "ddp", pytest.param("packed", marks=packed)])
def test_whole_and_cut_state_are_the_same(layout: str) -> None:
    for ends in run(2, all_ways, layout):
        for i, ours in enumerate(ends):
            agree(ours, expected(NAMES[i % len(NAMES)], 2 * STEPS), NAMES[i % len(NAMES)])


def offloaded() -> list[list[Tensor]]:
    """torch copies a share that is on another device than the mesh, as with CPUOffloadPolicy."""
    plain = DTensor.from_local
    DTensor.from_local = staticmethod(lambda x, *rest, **named: plain(x.clone(), *rest, **named))
    return to_plain("rows")


def test_shares_are_filled_before_torch_copies_them() -> None:
    for ends in run(2, offloaded):
        for name, ours in zip(NAMES, ends, strict=True):
            agree(ours, expected(name, 2 * STEPS), name)


NARROW: dict[str, Any] = {"state_dtype": torch.bfloat16, "msign_dtype": torch.bfloat16}


CODES: dict[str, Any] = {"state_dtype": "int8"}


def narrow(folder: str, layout: str, name: str, given: dict[str, Any]) -> list[list[Tensor]]:
    """Options that are dtypes, through every way to save and load."""
    first = made(name, layout, **given)
    go_on(*first, 0)
    ways = (
        StateDictOptions(),
        StateDictOptions(flatten_optimizer_state_dict=True),
        StateDictOptions(cpu_offload=True),
        StateDictOptions(full_state_dict=True),
        StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True),
    )
    ways = ways[:3] if layout == "packed" else ways  # as above
    ends = []
    for i, options in enumerate(ways):
        second = made(name, layout, **given)
        weights = get_model_state_dict(first[0], options=options)
        state = get_optimizer_state_dict(*first, options=options)
        if not options.full_state_dict:
            dcp.save({"state": state}, checkpoint_id=f"{folder}/{i}")
            state = get_optimizer_state_dict(*made(name, layout, **given), options=options)
            dcp.load({"state": state}, checkpoint_id=f"{folder}/{i}")
        set_model_state_dict(second[0], weights, options=options)
        set_optimizer_state_dict(*second, state, options=options)
        for group in second[1].param_groups:
            assert {key: group[key] for key in given} == given
        go_on(*second, STEPS)
        ends.append(whole(second[0].weights))
    return ends


@pytest.mark.parametrize(
    ("name", "given"), [("deva", NARROW), ("deva-sinf", CODES)], ids=["bfloat16", "int8"]
)
@pytest.mark.parametrize("layout", ["rows", "ddp", pytest.param("packed", marks=packed)])
def test_options_that_are_dtypes_survive(
    tmp_path: Path, layout: str, name: str, given: dict[str, Any]
) -> None:
    start = weights()
    theirs = alone(name, start, past(start, 2 * STEPS), foreach=False, **given)
    for ends in run(2, narrow, str(tmp_path), layout, name, given):
        for ours in ends:
            assert_close(ours, theirs, rtol=0, atol=0)


def apart() -> list[tuple[int, int]]:
    """Steps of two optimizers, one of which has loaded the state of the other, and gone on."""
    first, second = made("deva", "rows"), made("deva", "rows")
    go_on(*first, 0)
    second[1].load_state_dict(first[1].state_dict())
    go_on(*second, STEPS)
    return [
        (int(first[1].state[p]["step"]), int(second[1].state[q]["step"]))
        for p, q in zip(first[0].weights, second[0].weights, strict=True)
    ]


def test_what_is_loaded_is_a_copy() -> None:
    for found in run(2, apart):
        assert set(found) == {(STEPS, 2 * STEPS)}


def shares() -> list[tuple[int, int]]:
    """Numbers of the state that is kept here and that is saved from here, of each method."""
    found = []
    for name in MATRIX:
        model, optimizer = made(name, "rows")
        go_on(model, optimizer, 0)
        kept = [x for values in optimizer.state.values() for x in values.values()]
        state = optimizer.state_dict()["state"].values()
        local = [
            x.to_local() for values in state for x in values.values() if isinstance(x, DTensor)
        ]
        found.append((sum(x.numel() for x in kept if not x.is_meta), sum(x.numel() for x in local)))
    return found


def test_no_rank_saves_much_more_than_its_share() -> None:
    for per_method in zip(*run(2, shares), strict=True):
        kept, saved = (sum(x) for x in zip(*per_method, strict=True))
        assert saved <= kept  # nothing twice
        assert max(x for _, x in per_method) <= 0.65 * saved  # 3 rows on 2 ranks, and the like


# A checkpoint is cut short -----------------------------------------------------------------------


def damage(folder: Path, how: str) -> None:
    data = max(folder.glob("*.distcp"), key=lambda file: file.stat().st_size)
    if how == "truncated":
        os.truncate(data, data.stat().st_size // 2)
    else:
        (data if how == "missing" else folder / ".metadata").unlink()


def load(model: Any, optimizer: Any, folder: str) -> None:
    state = saved(model, optimizer, flat=False)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def cut_short(folder: str, layout: str) -> tuple[list[str], list[Tensor]]:
    """What is said of damaged checkpoints, and where the last good one leads to."""
    model, optimizer = made("deva-rest-linf", layout)
    go_on(model, optimizer, 0)
    ways = ("truncated", "missing", "no metadata")
    for name in ("good", *ways):
        dcp.save(saved(model, optimizer, flat=False), checkpoint_id=f"{folder}/{name}")
    if dist.get_rank() == 0:
        for how in ways:
            damage(Path(folder) / how, how)
    dist.barrier()
    model, optimizer = made("deva-rest-linf", layout)
    go_on(model, optimizer, 1)  # other steps than those that were saved
    kept = copy.deepcopy([list(values.values()) for values in optimizer.state.values()])
    messages = []
    for how in ways:
        began = time.monotonic()
        with pytest.raises(CheckpointException) as error:
            load(model, optimizer, f"{folder}/{how}")
        assert time.monotonic() - began < SOON
        messages.append(str(error.value))
        for before, values in zip(kept, optimizer.state.values(), strict=True):
            for x, y in zip(before, values.values(), strict=True):
                assert x.is_meta or torch.equal(x, y), how
    load(model, optimizer, f"{folder}/good")
    go_on(model, optimizer, STEPS)
    return messages, whole(model.weights)


@pytest.mark.parametrize("layout", ["rows", "ddp"])
def test_a_checkpoint_cut_short_changes_nothing_and_the_last_good_one_loads(
    tmp_path: Path, layout: str
) -> None:
    start = weights()
    theirs = alone("deva-rest-linf", start, past(start, 2 * STEPS), foreach=False)
    found = run(2, cut_short, str(tmp_path), layout)
    for messages, ours in found:
        assert all(messages)
        agree(ours, theirs)
    assert "No such file" in found[0][0][1]


def by_one_rank(folder: str) -> str:
    """Rank 0 saves what it has as if it were all, and everyone loads that."""
    model, optimizer = made("deva", "ddp")
    go_on(model, optimizer, 0)
    state = optimizer.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/state")
    dist.barrier()
    kept = optimizer.state
    with pytest.raises(ValueError, match="1 of 2 ranks .* another rank had") as error:
        optimizer.load_state_dict(torch.load(f"{folder}/state", weights_only=False))
    assert optimizer.state is kept
    go_on(model, optimizer, STEPS)  # it goes on as it was
    return str(error.value)


def test_the_share_of_one_rank_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    first, second = run(2, by_one_rank, str(tmp_path))
    assert first == second


# A rank is lost ----------------------------------------------------------------------------------


def lost(folder: str) -> str:
    """Rank 1 dies between two steps; rank 0 says what it hears of it."""
    model, optimizer = made("deva", "rows")
    go_on(model, optimizer, 0)
    dcp.save(saved(model, optimizer, flat=False), checkpoint_id=f"{folder}/deva-{STEPS}")
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(0)
    with pytest.raises(RuntimeError) as error:
        go_on(model, optimizer, STEPS)
    return str(error.value)


def test_a_lost_rank_stops_the_others_and_the_checkpoint_loads(tmp_path: Path) -> None:
    message, nothing = run(2, lost, str(tmp_path))
    assert message
    assert nothing is None
    (((*ours,),),) = run(1, leg, ("deva",), "rows", str(tmp_path), STEPS, False)
    agree(ours, expected("deva", 2 * STEPS))
