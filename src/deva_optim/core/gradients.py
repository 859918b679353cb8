"""What a step asks of the gradients before it changes anything: finite? non-zero? in which units?

One number answers all three, the norm of a gradient, taken so that it neither underflows nor
overflows. On the CPU the host knows it. On an accelerator the host does not wait for it: an item
whose gradient is not finite stays, with a flag that turns every change of the step into none.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from . import linalg
from .batch import Item
from .linalg import Number, constants, matrix_norms, norms
from .notices import warn_caller
from .units import LARGEST_SIZE, UNSET, as_units, exponents_of, is_scaled, rescale_


def check_gradient(grad: Tensor, name: str) -> None:
    """Raise an error if a gradient is of a kind that no method here can take."""
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"the gradient of {name} is sparse ({grad.layout}), which is not supported; "
            "use sparse=False in the embedding or grad.to_dense()"
        )
    if grad.is_complex():
        raise RuntimeError(f"the gradient of {name} is complex, which is not supported")


def not_finite(name: str) -> FloatingPointError:
    """The error of `nonfinite="raise"`, which comes before anything is changed."""
    return FloatingPointError(
        f"the gradient of {name} is not finite; nothing has been changed. "
        "Use nonfinite='skip' to leave such steps out."
    )


def screen(
    items: list[Item], skips: SkipLog, known: Tensor | None = None
) -> tuple[list[Item], list[Item]]:
    """The items that are updated in this step, and those that rest: weight decay alone moves them.

    Their units and counts of steps are brought up to date. Where the host knows the norms already,
    as ranks do, units are left as they are.
    """
    too_large = skips.report() if skips.copies else set()
    found: list[tuple[list[Item], Tensor]] = []  # items, and the norms of their gradients
    if known is not None:
        found.append((items, known))
    else:
        alike: dict[tuple[torch.dtype, torch.device], list[Item]] = {}
        for e in items:
            dtype = torch.float64 if e.grad.dtype == torch.float64 else torch.float32
            alike.setdefault((dtype, e.grad.device), []).append(e)
        for (dtype, _), some in alike.items():
            found.append((some, norms([e.grad for e in some], dtype)))
    for some, size in found:
        for i, e in enumerate(some):
            if e.reading.group["nonfinite"] == "raise" and not math.isfinite(size[i]):
                raise not_finite(e.reading.name)
    updated: list[Item] = []
    resting: list[Item] = []
    for some, size in found:
        if known is not None or linalg.host_sees(size.device):
            _screen_on_host(some, size, skips, updated, resting, units=known is None)
        else:
            _screen_on_device(some, size, skips, too_large)
            updated += some
    return updated, resting


def _screen_on_host(
    items: list[Item],
    sizes: Tensor,
    skips: SkipLog,
    updated: list[Item],
    resting: list[Item],
    *,
    units: bool,
) -> None:
    counts, skipped = [], []
    for e, size in zip(items, sizes.tolist(), strict=True):
        if not math.isfinite(size):
            skipped.append(e.reading.name)
            continue
        e.size, method = size, e.reading.method
        nonzero = size >= torch.finfo(e.reading.dtype).tiny
        if units:
            choose_units_(e)
        if "rounding" in e.state:
            _count_rounding(e)
        if method.rests and not nonzero:
            resting.append(e)
            continue
        updated.append(e)
        skipped_first = method.basis is not None and _advance_clock(e, nonzero)
        starts = nonzero or not method.waits or e.state["step"] > 0
        e.counted = bool(starts and not skipped_first)
        if e.counted:
            counts.append(e.state["step"])
    if skipped:
        skips.add(skipped)
    if counts:
        torch._foreach_add_(counts, 1)


def _screen_on_device(
    items: list[Item], sizes: Tensor, skips: SkipLog, too_large: set[str]
) -> None:
    """All answers at once, since each question about a single item would be a kernel of its own."""
    if linalg.is_captured(sizes.device):
        raise RuntimeError(
            "a step cannot be captured in a CUDA graph, which would repeat what the host decides "
            "in each step: the bases that are renewed, the rates, the rounding; call "
            "optimizer.step() outside of it"
        )
    # An item is settled if it is one matrix, or none, whose units are not in question. From its
    # limit on a gradient is too large for them, or not finite.
    settled, limits = [], []
    for e in items:
        e.overflowed = e.reading.name in too_large
        asked = not e.reading.is_one or e.overflowed or e.waiting
        unit = UNSET if asked else int(e.state["exponent"])
        settled.append(unit != UNSET)
        limits.append(LARGEST_SIZE[e.reading.range] * 2.0**unit if unit != UNSET else math.inf)
    usable = sizes < _one_or_all(limits, sizes)
    nonzero = sizes >= _one_or_all([torch.finfo(e.reading.dtype).tiny for e in items], sizes)
    for i, e in enumerate(items):
        e.size, e.finite = sizes[i], usable[i]
        if settled[i]:
            exponent = e.state["exponent"]
            e.begun, e.nonzero, e.scaled = [exponent != UNSET], [nonzero[i]], int(exponent) != 0
        else:
            choose_units_(e)
        if "rounding" in e.state:
            _count_rounding(e)
    if not all(settled):
        usable = torch.stack([e.finite for e in items])  # type: ignore[misc]
    skips.add_on_device([e.reading.name for e in items], usable)
    steps = [e.state["step"] for e in items]
    counts = usable & nonzero
    begun = usable
    if any(e.reading.method.waits and not e.reading.method.rests for e in items):
        begun = usable & (nonzero | (torch.stack(steps) > 0))
    taken = []
    # Only a first decomposition needs an answer here, and it waits for the device in any case.
    for i, e in enumerate(items):
        method = e.reading.method
        known = bool(counts[i]) if e.waiting else True
        skipped_first = method.basis is not None and _advance_clock(e, known)
        counted = (counts if method.rests else begun if method.waits else usable)[i]
        taken.append(torch.zeros_like(counted) if skipped_first else counted)
        e.counted = taken[-1]
    torch._foreach_add_(steps, list(torch.stack(taken).to(steps[0].dtype).unbind()))


def _one_or_all(numbers: list[float], like: Tensor) -> Number:
    """Numbers that are all the same as one of them, others as a tensor."""
    if len(set(numbers)) == 1:
        return numbers[0]
    return constants(tuple(numbers), like.dtype, like.device)


def _advance_clock(e: Item, nonzero: bool) -> bool:
    """Whether this gradient only chooses the basis; if not, the clock of a chosen basis runs."""
    first = nonzero and e.clock < 0
    skipped_first = first and bool(e.reading.group["skip_first"])
    if first:
        e.clock = -1 - e.clock  # its phase
    if e.clock >= 0 and not skipped_first:
        e.clock += 1
    e.state["clock"].fill_(e.clock)
    return skipped_first


def _count_rounding(e: Item) -> None:
    """Count the roundings of a weight in half precision, so that each has noise of its own."""
    if e.reading.group["stochastic_rounding"]:
        e.rounding = int(e.state["rounding"])
        e.state["rounding"].add_(1)


# Units ------------------------------------------------------------------------------------------


def choose_units_(e: Item) -> None:
    """Choose the units of an item's matrices by their gradient, and find those that have none.

    On an accelerator units are chosen while the host waits for it in any case, at a first step.
    After that a gradient that is too large for them counts as not finite; when the host has heard
    of it, it waits once more and raises them.
    """
    reading, on_host = e.reading, isinstance(e.size, float)
    tiny, largest = torch.finfo(reading.dtype).tiny, LARGEST_SIZE[reading.range]
    if isinstance(e.size, float) and reading.is_one:
        unit = e.state["exponent"].item()
        if tiny <= e.size < largest * 2.0**unit:  # nearly always
            e.scaled = unit != 0
            return
    e.begun, e.nonzero, e.scaled = [], [], False
    for i in range(len(e.parts)):
        old, sizes = e.exponents(i), _sizes(e, i)
        new = old
        starts = on_host or e.waiting > 0 or {UNSET}.issuperset(old.flatten().tolist())
        if on_host or ((starts or e.overflowed) and bool(e.finite)):
            seen = sizes.cpu()
            held = seen < largest * torch.exp2(old.to(seen))
            held |= (old == UNSET) & (not starts)  # a reloaded run knows of no overflow, either
            new = torch.where(held, old, exponents_of(seen, reading.dtype, reading.range))
            if not torch.equal(old, new) and bool((old != UNSET).any()):  # else there is no state
                suffix, adaptation = reading.suffixes[i], reading.method.adaptation
                variance = adaptation is None or adaptation.source != "direction"
                change = (old - new).to(e.param.device)
                rescale_(e.state, e.parts[i], suffix, change, variance=variance)
                e.renews |= f"root_left{suffix}" in e.state or f"root_right{suffix}" in e.state
        e.begun.append(old != UNSET)
        e.nonzero.append(None if on_host and bool((sizes >= tiny).all()) else sizes >= tiny)
        e.scaled |= is_scaled(new)
        if not on_host:
            assert e.finite is not None
            unit = as_units(new, sizes) if e.scaled else 1.0
            e.finite = e.finite & (sizes < largest * unit).all()
        old.copy_(new)


def _sizes(e: Item, index: int) -> Tensor:
    """The sizes of the gradients of the matrices of a part, in the shape of its exponents."""
    if not e.reading.is_one:
        return matrix_norms(e.parts[index].fold(e.grad))
    if isinstance(e.size, Tensor):
        return e.size
    return torch.tensor(e.size, dtype=torch.float64, device="cpu")


# Steps that are left out -------------------------------------------------------------------------


class SkipLog:
    """Counts skipped steps; on an accelerator without ever making the host wait.

    There each name has a count on the device. All of them are copied to pinned memory in the
    background, so that the warning comes a step or so late.
    """

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()  # what the host knows of
        self._on_host: Counter[str] = Counter()
        self._on_device: dict[torch.device, Tensor] = {}
        self._places: dict[torch.device, dict[str, int]] = {}  # of each name in these
        self.copies: dict[torch.device, Tensor] = {}  # of these, as they arrive on the host

    @property
    def total(self) -> int:
        """How many steps of single parameters were skipped; waits for the device."""
        on_device = sum(int(counts.sum()) for counts in self._on_device.values())
        return on_device + sum(self._on_host.values())

    def of(self, name: str) -> int:
        """How many steps of this parameter were skipped; waits for the device."""
        on_device = [
            int(self._on_device[device][places[name]])
            for device, places in self._places.items()
            if name in places
        ]
        return sum(on_device) + self._on_host[name]

    def add(self, names: list[str]) -> None:
        """Count one skipped step for each name."""
        self._on_host.update(names)
        for name in names:
            self._see(name, self._seen[name] + 1)

    def add_on_device(self, names: list[str], finite: Tensor) -> None:
        """Count a skipped step wherever `finite` is false, without looking at it here."""
        device = finite.device
        places = self._places.setdefault(device, {})
        for name in names:
            places.setdefault(name, len(places))
        counts = self._on_device.get(device)
        if counts is None or len(counts) < len(places):
            counts = self._on_device[device] = self._extended(counts, len(places), device)
        if list(places) == names:
            counts += ~finite
        else:  # some have no gradient in this step
            each = counts.unbind()
            skipped = (~finite).to(counts.dtype).unbind()
            torch._foreach_add_([each[places[name]] for name in names], skipped)
        if device in self.copies:
            self.copies[device].copy_(counts, non_blocking=True)

    def _extended(self, counts: Tensor | None, size: int, device: torch.device) -> Tensor:
        """The counts with room for new names, and memory of the host for a copy of them."""
        if device.type in ("cuda", "xpu", "cpu"):  # where such a copy does not wait
            pinned = device.type != "cpu"
            copy = torch.zeros(size, dtype=torch.int64, device="cpu", pin_memory=pinned)
            self.copies[device] = copy
        longer = torch.zeros(size, dtype=torch.int64, device=device)
        if counts is not None:
            longer[: len(counts)] = counts
        return longer

    def report(self) -> set[str]:
        """Warn about what has reached the host since the last report, and name it."""
        known = Counter(self._on_host)
        for device, counts in self.copies.items():
            for name, count in zip(self._places[device], counts.tolist(), strict=True):
                known[name] += count
        news = {name for name, count in known.items() if count > self._seen[name]}
        for name in sorted(news):
            self._see(name, known[name])
        return news

    def _see(self, name: str, count: int) -> None:
        before, self._seen[name] = self._seen[name], count
        if count.bit_length() > before.bit_length():  # the 1st, 2nd, 4th, 8th … time
            warn_caller(
                f"the gradient of {name} was not finite, or on an accelerator too large for its "
                f"units: its step was skipped, weights and state unchanged ({count} so far). Look "
                "for an overflow in the loss; nonfinite='raise' stops at the first one.",
                RuntimeWarning,
            )
