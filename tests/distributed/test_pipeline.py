"""What travels while something else is updated, and how much of it there is at a time."""

import gc
import math
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

from deva_optim.core.batch import Batch
from deva_optim.core.step import advance_
from deva_optim.distributed import pipeline
from ranks import run

from .sharding import agree, build, gradients, mesh, placed, shared, weights

SHAPES = ((6, 5), (5, 6), (6, 6), (4, 6), (6, 4), (5, 5), (7,))
BUCKET = 80  # a matrix or so in a round


class Handle:
    """A collective on its way, whose end is written down."""

    def __init__(self, work: Any, log: list[str], name: str) -> None:
        self.work, self.log, self.name = work, log, name

    def wait(self) -> None:
        self.log.append(f"wait {self.name}")
        self.work.wait()


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which messages are sent and waited for, and matrices updated."""
    log: list[str] = []
    exchange = dist.all_to_all_single

    def all_to_all_single(*args: Any, async_op: bool, **how: Any) -> Handle:
        assert async_op
        name = str(sum(x.startswith("send") for x in log))
        log.append(f"send {name}")
        return Handle(exchange(*args, async_op=True, **how), log, name)

    def spy_(batch: Batch) -> None:
        log.append("update" if batch.G.ndim > 2 else "vector")
        advance_(batch)

    monkeypatch.setattr(dist, "all_to_all_single", all_to_all_single)
    monkeypatch.setattr("deva_optim.optimizer.advance_", spy_)
    monkeypatch.setattr(pipeline, "BUCKET", BUCKET)
    return log


def one_step(layout: str) -> list[str]:
    start = weights(SHAPES)
    params, optimizer, lay = shared("muon", start, layout, foreach=False)
    for p, g in zip(params, gradients(start, 0), strict=True):
        p.grad = lay(g)
    with pytest.MonkeyPatch.context() as monkeypatch:
        log = watched(monkeypatch)
        optimizer.step()
    return log


def test_messages_travel_while_matrices_are_updated() -> None:
    """Three rounds of FSDP2: messages 0, 1 and 3 go to the owners, 2, 4 and 5 come back."""
    for log in run(2, one_step, "rows"):
        assert [x for x in log if x != "update"] == [
            *("send 0", "vector", "send 1", "wait 0"),  # the second round leaves before the first
            *("send 2", "send 3", "wait 1"),  # is updated, which goes back while the third comes
            *("wait 2", "send 4", "wait 3"),
            *("wait 4", "send 5", "wait 5"),
        ]
        # Each update follows the sending of the next round, and its own way back follows it.
        first = log.index("update")
        assert log.index("send 1") < first < log.index("send 2")
        assert log.index("send 3") < log.index("update", log.index("wait 1")) < log.index("wait 2")


def test_copies_send_the_results_alone_and_do_not_wait_for_them() -> None:
    for log in run(2, one_step, "ddp"):
        sends = [i for i, x in enumerate(log) if x.startswith("send")]
        waits = [i for i, x in enumerate(log) if x.startswith("wait")]
        assert len(sends) == len(waits) > 2
        for after, wait in zip(sends[1:], waits, strict=False):
            assert wait < after  # one at a time, and between sending and waiting …
            assert "update" in log[sends[0] : after]  # … there is something to do
        assert log.count("update") >= 3


def held(layout: str) -> tuple[int, int]:
    """The most numbers of whole gradients that live during an update, and of the largest round."""
    start = weights(SHAPES)
    params, optimizer, lay = shared("muon", start, layout, foreach=False)
    live: list[weakref.ref[torch.Tensor]] = []
    most = 0
    new_empty = torch.Tensor.new_empty

    def spying(X: torch.Tensor, size: Any, **how: Any) -> torch.Tensor:
        made = new_empty(X, size, **how)
        live.append(weakref.ref(made))
        return made

    def spy_(batch: Batch) -> None:
        nonlocal most
        gc.collect()
        whole = [x for ref in live if (x := ref()) is not None and x.ndim == 2]
        most = max(most, sum(x.numel() for x in whole))
        advance_(batch)

    for k in range(2):
        for p, g in zip(params, gradients(start, k), strict=True):
            p.grad = lay(g)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(pipeline, "BUCKET", BUCKET)
            if k:  # the first step makes the state as well
                monkeypatch.setattr(torch.Tensor, "new_empty", spying)
                monkeypatch.setattr("deva_optim.optimizer.advance_", spy_)
            optimizer.step()
    return most, max(BUCKET, *(2 * math.prod(shape) for shape in SHAPES))


def test_no_rank_holds_more_than_a_bucket() -> None:
    for most, bucket in run(2, held, "rows"):
        assert 0 < most <= 2 * bucket  # gradients and weights


def stored() -> list[int]:
    """Numbers in the storages of all tensors during each update, on twenty rounds of one matrix."""
    start = weights(20 * ((24, 24),))
    params, optimizer, lay = shared("muon", start, "rows", foreach=False)
    found = []

    def spy_(batch: Batch) -> None:
        gc.collect()
        tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor and not x.is_meta]
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        found.append(sum(storages.values()))
        advance_(batch)

    for k in range(2):
        for p, g in zip(params, gradients(start, k), strict=True):
            p.grad = lay(g)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(pipeline, "BUCKET", BUCKET)
            if k:  # the first step makes the state as well
                monkeypatch.setattr("deva_optim.optimizer.advance_", spy_)
            optimizer.step()
    return found


def test_what_was_sent_back_is_freed() -> None:
    for found in run(2, stored):
        assert len(found) == 10
        # The second round is the first that has one before it and one after it.
        assert max(found) == found[1]


def on_two_meshes() -> list[torch.Tensor]:
    """Parameters of one optimizer on meshes of their own: rounds of both take turns."""
    start = weights(SHAPES)
    meshes = [mesh("rows"), mesh("hybrid")]
    kinds = ["rows", "hybrid"]
    lays = [(meshes[i % 2], kinds[i % 2]) for i in range(len(start))]
    params = [torch.nn.Parameter(placed(x, *how)) for x, how in zip(start, lays, strict=True)]
    optimizer = build("deva", params, foreach=False)
    pipeline.BUCKET = BUCKET
    for step in range(5):
        for p, g, how in zip(params, gradients(start, step), lays, strict=True):
            p.grad = placed(g, *how)
        optimizer.step()
    return [p.full_tensor().detach() for p in params]


def test_rounds_of_several_meshes_take_turns() -> None:
    start = weights(SHAPES)
    params = [torch.nn.Parameter(x.clone()) for x in start]
    optimizer = build("deva", params, foreach=False)
    for step in range(5):
        for p, g in zip(params, gradients(start, step), strict=True):
            p.grad = g
        optimizer.step()
    for found in run(4, on_two_meshes):
        agree(found, [p.detach() for p in params])
