"""Checkpoints and copies of every optimizer."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import Optimizer

from helpers import (
    CLASSES,
    OPTIMIZERS,
    OPTIONS,
    Params,
    advance,
    build,
    clones,
    every,
    every_class,
    gradients,
    parameters,
    same,
    tensors,
    trained,
)


def resumable(name: str, dtype: torch.dtype, **options: Any) -> tuple[Params, Optimizer]:
    """Parameters of many kinds, one of them cut into unequal parts, and their optimizer."""
    torch.manual_seed(0)
    params = parameters((4, 4), (3, 5), (4, 4), (2, 3, 3), (5,), (), (7, 3), dtype=dtype)
    optimizer = build(name, params[:-1], **options)
    optimizer.add_param_group({"params": params[-1:], **OPTIONS, **options, "split": (3, 4)})
    return params, optimizer


# Every variant has a state of its own; how it is kept in another precision is one code for all.
PRECISIONS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float64": (torch.float64, {"lr": torch.tensor(2**-6)}),
    "bfloat16": (torch.bfloat16, {}),
    "state_dtype": (torch.float32, {"state_dtype": torch.bfloat16}),
    "int8": (torch.float32, {"state_dtype": "int8"}),
}


@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        *(pytest.param(n, torch.float32, {}, id=n) for n in OPTIMIZERS),
        *(pytest.param(n, *PRECISIONS[p], id=f"{n}-{p}") for n in CLASSES for p in PRECISIONS),
    ],
)
def test_resume_is_exact(
    name: str, dtype: torch.dtype, options: dict[str, Any], tmp_path: Any
) -> None:
    params, optimizer = resumable(name, dtype, **options)
    history = gradients(params, 9)
    for grads in history[:5]:  # a matrix that has no basis yet when the state is saved
        grads[3][1] = 0
    advance(optimizer, params, history[:3])
    torch.save([params, optimizer.state_dict()], tmp_path / "state.pt")
    advance(optimizer, params, history[3:])

    resumed, other = resumable(name, dtype, **options)
    weights, state = torch.load(tmp_path / "state.pt")
    with torch.no_grad():
        torch._foreach_copy_(resumed, weights)
    other.load_state_dict(state)
    advance(other, resumed, history[3:])
    same(resumed, params)
    same(tensors(other), tensors(optimizer))  # dtypes included
    assert len({p.dtype for p in resumed}) == 1


@every_class
def test_numbers_of_numpy_are_saved_as_pythons(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lr": np.float32(0.5), "weight_decay": np.float64(0.5)}
    if "betas" in build(name, parameters((4, 4))).param_groups[0]:
        settings["betas"] = [np.float64(0.5), np.float32(0.25)]
    optimizer = build(name, parameters((4, 4)), **settings, lr_scale=np.float32(0.5))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    (group,) = torch.load(tmp_path / "state.pt")["param_groups"]
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.5)
    assert group.get("betas", (0.5, 0.25)) == (0.5, 0.25)


@every
def test_loading_shares_nothing(name: str) -> None:
    params, optimizer = resumable(name, torch.float32, lr=torch.tensor(2**-6))
    others, other = resumable(name, torch.float32)
    history = gradients(params, 6)
    advance(optimizer, params, history[:4])
    given = optimizer.state_dict()
    before = copy.deepcopy(given)
    other.load_state_dict(given)
    for group in other.param_groups:
        group["lr"].mul_(0.5)
    advance(other, others, history[4:])
    same(given["state"], before["state"])
    assert given["param_groups"] == before["param_groups"]
    kept = {id(x) for state in optimizer.state.values() for x in state.values()}
    assert not any(id(x) in kept for state in other.state.values() for x in state.values())


@every_class
def test_a_fresh_state_may_be_saved_and_loaded(name: str) -> None:
    start = parameters((4, 4), (5,))
    history = gradients(start, 4)
    fresh = build(name, start, lr=2**-5).state_dict()
    assert fresh["state"] == {}
    params = clones(start)
    optimizer = build(name, params)
    advance(optimizer, params, history)
    optimizer.load_state_dict(fresh)  # forgets what it had
    restarted = clones(params)
    advance(optimizer, params, history)
    same(params, trained(name, restarted, history, lr=2**-5))


@every
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["deepcopy", "pickle"],
)
def test_copies_go_their_own_way(name: str, copied: Any) -> None:
    params, optimizer = resumable(name, torch.float32)
    history = gradients(params, 6)
    advance(optimizer, params, history[:3])
    twins, twin = copied((params, optimizer))
    before, state = clones(params), tensors(optimizer)
    advance(twin, twins, history[3:])
    same(params, before)
    same(tensors(optimizer), state)
    advance(optimizer, params, history[3:])
    same(twins, params)
    same(tensors(twin), tensors(optimizer))
    assert repr(twin) == repr(optimizer)
    assert {k for k in vars(twin) if k[0] != "_"} == {k for k in vars(optimizer) if k[0] != "_"}
