"""What a step asks of the gradients before it changes anything: are they finite, do they speak.

One number answers both, the squared norm of a gradient. Every quantity of a step is bounded by it
(an entry of G Gᵀ, a product of row and column norms, a square), so where it is finite nothing
overflows later.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .skips import SkipLog
from .stack import Entry, compute_dtype


def host_sees(device: torch.device) -> bool:
    """Whether the host may look at a value without waiting for the device."""
    return device.type == "cpu"


def screen(entries: list[Entry], log: SkipLog) -> list[Entry]:
    """The entries that take part in this step, their counts of steps brought up to date.

    On the CPU an entry whose gradient is not finite is left out. On an accelerator it stays, with a
    flag that turns every change into none.
    """
    log.report()
    batches = [
        (batch, squared_norms([e.grad for e in batch], compute_dtype(batch[0].grad)))
        for batch in _batches(entries)
    ]
    for batch, squares in batches:
        _raise_if_asked(batch, squares)
    kept = []
    for batch, squares in batches:
        if host_sees(squares.device):
            kept += _screen_on_host(batch, squares, log)
        else:
            kept += _screen_on_device(batch, squares, log)
    return kept


def screen_known(entries: list[Entry], squares: Tensor, log: SkipLog) -> list[Entry]:
    """The same where the host has the squared norms already."""
    log.report()
    _raise_if_asked(entries, squares)
    return _screen_on_host(entries, squares, log)


def _batches(entries: list[Entry]) -> Iterator[list[Entry]]:
    """The entries by device, precision, and whether leading zero gradients count as steps."""
    kinds: dict[tuple[object, ...], list[Entry]] = {}
    for e in entries:
        kinds.setdefault((e.grad.device, compute_dtype(e.grad), e.method.waits), []).append(e)
    yield from kinds.values()


def squared_norms(grads: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The squared norm of each gradient, all of one device."""
    return torch.stack(list(torch._foreach_norm(grads, 2, dtype=dtype))).square()


def _raise_if_asked(batch: list[Entry], squares: Tensor) -> None:
    if all(e.group["nonfinite"] != "raise" for e in batch):
        return
    for e, finite in zip(batch, squares.isfinite().tolist(), strict=True):
        if e.group["nonfinite"] == "raise" and not finite:
            raise FloatingPointError(
                f"the gradient of {e.name} is not finite; nothing has been changed. Use "
                "nonfinite='skip' to leave such steps out."
            )


def _screen_on_host(batch: list[Entry], squares: Tensor, log: SkipLog) -> list[Entry]:
    finite, speaks = squares.isfinite().tolist(), (squares > 0).tolist()
    log.add([e.name for e, ok in zip(batch, finite, strict=True) if not ok])
    kept = []
    for e, ok, says in zip(batch, finite, speaks, strict=True):
        if ok:
            kept.append(e)
            skips = _advance_clock(e, says)
            e.counted = not skips and bool(says or not e.method.waits or e.state["step"] > 0)
    if counted := [e.state["step"] for e in kept if e.counted]:
        torch._foreach_add_(counted, 1)
    return kept


def _screen_on_device(batch: list[Entry], squares: Tensor, log: SkipLog) -> list[Entry]:
    finite, speaks = squares.isfinite(), squares > 0
    log.add_on_device([e.name for e in batch], finite)
    steps = [e.state["step"] for e in batch]
    counted = finite & (speaks | (torch.stack(steps) > 0)) if batch[0].method.waits else finite
    # Only a first decomposition needs an answer here, and it waits for the device in any case.
    says = (finite & speaks).tolist() if any(e.waiting for e in batch) else [True] * len(batch)
    for e, ok, counts, said in zip(batch, finite, counted, says, strict=True):
        skips = _advance_clock(e, said)
        e.finite, e.counted = ok, torch.zeros_like(counts) if skips else counts
    for e in batch:
        e.state["step"].add_(e.counted)
    return batch


def _advance_clock(e: Entry, speaks: bool) -> bool:
    """Whether this gradient only chooses the basis; if not, the clock of a chosen basis runs."""
    if e.method.basis is None:
        return False
    first = speaks and e.clock < 0
    skips = first and e.group["skip_first"]
    if first:
        e.clock = -1 - e.clock  # its phase
    if e.clock >= 0 and not skips:
        e.clock += 1
    e.state["clock"].fill_(e.clock)
    return skips
