"""Memory of a step: the state that stays, by formula and measured, and the peak that goes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile, record_function

from .shapes import Shape, matrices

_RUN: Final = "deva bench: run"  # the names of events in a trace: a mark of ours, and torch's
_MEMORY: Final = "[memory]"

Sides = Literal["both", "short", "one"]


@dataclass(frozen=True)
class State:
    """What a method keeps of an n×m matrix.

    Attributes:
        moments: How many averages of n·m numbers.
        ends: How many averages of n + m numbers.
        squares: How many square matrices for each side that has a basis.
        sides: The sides that have one; the short ones of a square are both, `"one"` is one of them.
        moment_bytes: Bytes of a number in a moment; everything else has 4.
        counters: Bytes of what a parameter counts.
        matrix_counters: Bytes of what each matrix in a stack counts.
        units: What has an exponent of its own, of 8 bytes: each matrix, a parameter, or nothing.
        rows: How many averages of n numbers.
    """

    moments: int
    ends: int = 0
    squares: int = 0
    sides: Sides = "both"
    moment_bytes: int = 4
    counters: int = 0
    matrix_counters: int = 0
    units: Literal["matrix", "parameter"] | None = None
    rows: int = 0

    @property
    def formula(self) -> str:
        """The numbers kept of an n×m matrix, s being its short side."""
        sides = "(n²+m²)" if self.sides == "both" else "s²"
        sizes = (
            (self.moments, "nm"),
            (self.ends, "(n+m)"),
            (self.rows, "n"),
            (self.squares, sides),
        )
        terms = [f"{count if count > 1 else ''}{size}" for count, size in sizes if count]
        small = "" if self.moment_bytes == 4 else f", nm in {self.moment_bytes} bytes"
        return " + ".join(terms) + small

    def bytes(self, shapes: Iterable[Shape]) -> int:
        """The bytes of the state of parameters of these shapes, counters included."""
        return sum(self._parameter(shape) for shape in shapes)

    def _parameter(self, shape: Shape) -> int:
        parts = matrices(shape)
        stacked = self.matrix_counters * len(parts) if len(shape) == 3 else 0
        units = {"matrix": len(parts), "parameter": 1, None: 0}[self.units]
        counters = self.counters + stacked + 8 * units
        return counters + sum(self._matrix(n, m) for n, m in parts)

    def _matrix(self, n: int, m: int) -> int:
        both = self.sides == "both" or (self.sides == "short" and n == m)
        squares = n * n + m * m if both else min(n, m) ** 2
        averages = self.moments * n * m + self.ends * (n + m) + self.rows * n
        return self.moment_bytes * averages + 4 * self.squares * squares


def state_bytes(optimizer: Optimizer) -> int:
    """The bytes of all tensors in the state of an optimizer, each counted once."""
    found = {(x.data_ptr(), x.nbytes) for x in _tensors(list(optimizer.state.values()))}
    return sum(size for _, size in found)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def peak_bytes(run: Callable[[], object], times: int = 1, device: str = "cpu") -> int:
    """The most bytes that a run of `run` had allocated at once, beyond those there before it.

    On the CPU it is what torch's allocator was asked for, temporaries inside operators included,
    but not the workspace that BLAS and LAPACK allocate for themselves.
    """
    if torch.device(device).type == "cuda":
        return max(_peak_on_cuda(run, device) for _ in range(times))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as trace:
        for _ in range(times):
            with record_function(_RUN):
                run()
    now = before = peak = 0
    for allocated in _allocations(trace):
        if allocated is None:
            before = now
        else:
            now += allocated
            peak = max(peak, now - before)
    return peak


def _peak_on_cuda(run: Callable[[], object], device: str) -> int:
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


def _allocations(trace: profile) -> list[int | None]:
    """Bytes allocated (above zero) and freed (below) in the order of time; None begins a run.

    What was allocated before the trace has no part in it, even if it is freed meanwhile.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    told = sorted((e for e in events if e["name"] in (_RUN, _MEMORY)), key=lambda e: float(e["ts"]))
    return [int(e["args"]["Bytes"]) if e["name"] == _MEMORY else None for e in told]


def available_bytes() -> int | None:
    """The memory that is free for a program, where the system says it."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return None
    fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
