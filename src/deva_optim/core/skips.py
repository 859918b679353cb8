"""Which steps were left out because of a gradient that was not finite, counted and warned about."""

from __future__ import annotations

import warnings
from collections import Counter

import torch
from torch import Tensor


class SkipLog:
    """Counts skipped steps; on an accelerator without ever making the host wait.

    There the counts stay on the device and are copied to pinned memory in the background, so that
    the warning comes a step or so late.
    """

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()  # what the host knows of
        self._on_device: dict[tuple[str, ...], Tensor] = {}
        self.copies: dict[tuple[str, ...], Tensor] = {}  # of these, as they arrive on the host

    @property
    def total(self) -> int:
        """How many steps of single parameters were skipped; waits for the device."""
        waiting = {name for names in self._on_device for name in names}
        seen = sum(count for name, count in self._seen.items() if name not in waiting)
        return seen + sum(int(counts.sum()) for counts in self._on_device.values())

    def of(self, name: str) -> int:
        """How many steps of this parameter were skipped; waits for the device."""
        on_device = [
            int(counts[names.index(name)])
            for names, counts in self._on_device.items()
            if name in names
        ]
        return sum(on_device) if on_device else self._seen[name]

    def add(self, names: list[str]) -> None:
        """Count one skipped step for each name."""
        for name in names:
            self._see(name, self._seen[name] + 1)

    def add_on_device(self, names: list[str], finite: Tensor) -> None:
        """Count a skipped step wherever `finite` is false, without looking at it here."""
        key = tuple(names)
        if key not in self._on_device:
            self._on_device[key] = torch.zeros_like(finite, dtype=torch.int64)
            if finite.device.type in ("cuda", "xpu", "cpu"):  # where such a copy does not wait
                pinned = finite.device.type != "cpu"
                self.copies[key] = torch.zeros(len(key), dtype=torch.int64, pin_memory=pinned)
        self._on_device[key] += ~finite
        if key in self.copies:
            self.copies[key].copy_(self._on_device[key], non_blocking=True)

    def report(self) -> set[str]:
        """Warn about what has reached the host since the last report, and name it."""
        news = set()
        for names, counts in self.copies.items():
            for name, count in zip(names, counts.tolist(), strict=True):
                if count > self._seen[name]:
                    news.add(name)
                self._see(name, count)
        return news

    def _see(self, name: str, count: int) -> None:
        before, self._seen[name] = self._seen[name], count
        if count.bit_length() > before.bit_length():  # the 1st, 2nd, 4th, 8th … time
            warnings.warn(
                f"the gradient of {name} was not finite: its step was skipped, weights and state "
                f"unchanged ({count} so far). Look for an overflow in the loss; nonfinite='raise' "
                "stops at the first one.",
                RuntimeWarning,
                stacklevel=2,
            )
