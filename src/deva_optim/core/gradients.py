"""What a step asks of the gradients before it changes anything: finite? non-zero?

One number answers both, the norm of a gradient, taken so that it neither underflows nor overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import units
from .batch import Entry
from .skips import SkipLog
from .units import compute_dtype, fit_, norms


def screen(entries: list[Entry], log: SkipLog) -> list[Entry]:
    """The entries that take part in this step, their units and counts of steps brought up to date.

    On the CPU an entry whose gradient is not finite is left out. On an accelerator it stays, with a
    flag that turns every change into none.
    """
    news = log.report()
    kinds: dict[tuple[object, ...], list[Entry]] = {}
    for e in entries:
        kinds.setdefault((e.grad.device, compute_dtype(e.grad)), []).append(e)
    batches = [
        (batch, norms([e.grad for e in batch], compute_dtype(batch[0].grad)))
        for batch in kinds.values()
    ]
    for batch, sizes in batches:
        _raise_if_asked(batch, sizes)
    kept = []
    for batch, sizes in batches:
        if units.host_sees(sizes.device):
            kept += _screen_on_host(batch, sizes, log)
        else:
            kept += _screen_on_device(batch, sizes, log, news)
    return kept


def screen_known(entries: list[Entry], sizes: Tensor, log: SkipLog) -> list[Entry]:
    """The same where the host has the norms already; units are left as they are."""
    log.report()
    _raise_if_asked(entries, sizes)
    return _screen_on_host(entries, sizes, log, fit=False)


def _raise_if_asked(batch: list[Entry], sizes: Tensor) -> None:
    if all(e.group["nonfinite"] != "raise" for e in batch):
        return
    for e, finite in zip(batch, sizes.isfinite().tolist(), strict=True):
        if e.group["nonfinite"] == "raise" and not finite:
            raise FloatingPointError(
                f"the gradient of {e.name} is not finite; nothing has been changed. Use "
                "nonfinite='skip' to leave such steps out."
            )


def _screen_on_host(
    batch: list[Entry], sizes: Tensor, log: SkipLog, *, fit: bool = True
) -> list[Entry]:
    kept, skipped = [], []
    for e, size in zip(batch, sizes.tolist(), strict=True):
        if not math.isfinite(size):
            skipped.append(e.name)
            continue
        kept.append(e)
        e.size = size
        nonzero = size >= torch.finfo(compute_dtype(e.param)).tiny
        if fit:
            fit_(e)
        e.rests = e.method.rests and not nonzero
        skips = not e.rests and _advance_clock(e, nonzero)
        starts = nonzero or not e.method.waits or e.state["step"] > 0
        e.counted = bool(starts and not skips and not e.rests)
    log.add(skipped)
    if counted := [e.state["step"] for e in kept if e.counted]:
        torch._foreach_add_(counted, 1)
    return kept


def _screen_on_device(
    batch: list[Entry], sizes: Tensor, log: SkipLog, news: set[str]
) -> list[Entry]:
    for e, size in zip(batch, sizes, strict=True):
        e.size, e.finite, e.asks = size, size.isfinite(), e.name in news
        fit_(e)
    finite = torch.stack([e.finite for e in batch])  # type: ignore[misc]
    log.add_on_device([e.name for e in batch], finite)
    # Only a first decomposition needs an answer here, and it waits for the device in any case.
    for e in batch:
        assert e.finite is not None
        assert isinstance(e.size, Tensor)
        nonzero = e.size >= torch.finfo(compute_dtype(e.param)).tiny
        said = bool(e.finite & nonzero) if e.waiting else True
        skips = _advance_clock(e, said)
        counted = e.finite
        if e.method.rests:
            counted = counted & nonzero
        elif e.method.waits:
            counted = counted & (nonzero | (e.state["step"] > 0))
        e.counted = torch.zeros_like(counted) if skips else counted
        e.state["step"].add_(e.counted)
    return batch


def _advance_clock(e: Entry, nonzero: bool) -> bool:
    """Whether this gradient only chooses the basis; if not, the clock of a chosen basis runs."""
    if e.method.basis is None:
        return False
    first = nonzero and e.clock < 0
    skips = first and e.group["skip_first"]
    if first:
        e.clock = -1 - e.clock  # its phase
    if e.clock >= 0 and not skips:
        e.clock += 1
    e.state["clock"].fill_(e.clock)
    return skips
