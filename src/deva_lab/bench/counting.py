"""What can be counted of a step: FLOPs, memory, and what it would ask of an accelerator."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from deva_optim.optimizer import BaseOptimizer

from ..machine import wait
from ..render import aligned
from .subjects import SUBJECTS, Shape, ShapeSet

aten = torch.ops.aten

PRODUCTS: Final = ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_")

# FLOPs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flops:
    """Floating-point operations: of matrix products, and of decompositions by formula."""

    products: float
    decompositions: float

    @property
    def total(self) -> float:
        """All that was counted; work on single entries is not."""
        return self.products + self.decompositions


def _of_matrices(flops: Callable[[int, int], int]) -> Callable[..., int]:
    """The FLOPs of decomposing a batch of m×n matrices, n being their short side."""

    def count(A: torch.Size, *args: Any, **kwargs: Any) -> int:
        n, m = sorted(A[-2:])
        return A[:-2].numel() * flops(n, m)

    return count


def _triangular(A: torch.Size, X: torch.Size, *args: Any, **kwargs: Any) -> int:
    return int(X[:-2].numel() * A[-1] ** 2 * X[-1 if kwargs.get("left", True) else -2])


def _added(X: torch.Size, A: torch.Size, B: torch.Size, *args: Any, **kwargs: Any) -> int:
    """X + A B in place, for a matrix or a batch of them."""
    return 2 * A.numel() * B[-1]


def _reflections(n: int, m: int) -> int:
    return 2 * m * n * n - 2 * n**3 // 3


# What torch's counter leaves out: products in place, and everything of LAPACK. The formulas are
# those of Golub & Van Loan for all that torch asks for: a QR is its reflections and Q formed of
# them (5.2), an eigenproblem has vectors (8.3), a thin SVD both of its factors (8.6).
_DECOMPOSITIONS: Final[dict[Any, Any]] = {
    aten.linalg_qr: _of_matrices(lambda n, m: 2 * _reflections(n, m)),
    aten.geqrf: _of_matrices(_reflections),
    aten.linalg_householder_product: _of_matrices(_reflections),
    aten._linalg_eigh: _of_matrices(lambda n, _: 9 * n**3),
    aten._linalg_svd: _of_matrices(lambda n, m: 6 * m * n * n + 20 * n**3),
    aten.linalg_cholesky_ex: _of_matrices(lambda n, _: n**3 // 3),
    aten.linalg_solve_triangular: _triangular,
}
_MORE: Final = {aten.addmm_: _added, aten.baddbmm_: _added, **_DECOMPOSITIONS}


def count_flops(run: Callable[[], object]) -> Flops:
    """The FLOPs of what `run` does; compiled code is run as it was written, to be seen.

    >>> A = torch.ones(2, 3)
    >>> count_flops(lambda: A @ A.mT)
    Flops(products=24, decompositions=0)
    """
    eager = torch.compiler.set_stance("force_eager")
    with eager, FlopCounterMode(display=False, custom_mapping=_MORE) as counter:
        run()
    counts = counter.get_flop_counts().get("Global", {})
    decompositions = sum(n for op, n in counts.items() if op in _DECOMPOSITIONS)
    return Flops(sum(counts.values()) - decompositions, decompositions)


def products_seconds(
    step: Callable[[], object], count: int, device: str = "cpu"
) -> tuple[float, float]:
    """The seconds of `count` steps that are spent in matrix products, and those of all of them."""
    cuda = torch.device(device).type == "cuda"
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]
    with profile(activities=activities, acc_events=True) as trace:
        for _ in range(count):
            with record_function("python"):  # what is outside of operators
                step()
        wait(device)
    products = total = 0.0
    for event in trace.key_averages():
        seconds = (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6
        total += seconds
        products += seconds * (event.key.removeprefix("aten::") in PRODUCTS)
    return products, total


# Memory -------------------------------------------------------------------------------------------

_RUN: Final = "deva bench: run"  # a mark of ours in a trace


def state_bytes(optimizer: Optimizer) -> int:
    """The bytes of all tensors in the state of an optimizer, each counted once."""
    found = {(x.data_ptr(), x.nbytes) for x in _tensors(list(optimizer.state.values()))}
    return sum(size for _, size in found)


def _tensors(*values: object) -> Iterator[Tensor]:
    return (x for x in tree_leaves(values) if isinstance(x, Tensor))


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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    # What was allocated before the trace has no part in it, even if it is freed meanwhile.
    now = before = peak = 0
    for event in sorted(events, key=lambda event: float(event.get("ts", 0))):
        if event["name"] == _RUN:
            before = now
        elif event["name"] == "[memory]":
            now += int(event["args"]["Bytes"])  # below zero where they are freed
            peak = max(peak, now - before)
    return peak


def _peak_on_cuda(run: Callable[[], object], device: str) -> int:
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


# On the meta device, where tensors have shapes and no values --------------------------------------

LAUNCHED: Final = ("adamw", "deva-linf", "muon", "deva", "deva-short", "deva-both", "soap")
KEPT: Final = ("deva", "deva-soft", "deva-both", "muon", "soap", "adamw")
REFRESH_EVERY: Final = 10
_META: Final = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]


def _on_meta(name: str, shapes: Sequence[Shape]) -> BaseOptimizer:
    """A subject that is ours, about to take its first step."""
    params = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
    optimizer = SUBJECTS[name].build(params, REFRESH_EVERY)
    assert isinstance(optimizer, BaseOptimizer)
    for p in params:
        p.grad = torch.empty_like(p)
    return optimizer


def state_table(found: ShapeSet) -> str:
    """GiB of state that methods keep for a model, by what their state is kept in."""
    head = f"{found.name}: {len(found.shapes)} parameters, {4 * found.numel / 2**30:.1f} GiB"
    dtypes = (None, torch.bfloat16, "int8")
    rows = [
        (name, *(f"{kept(name, found.shapes, dtype) / 2**30:.1f}" for dtype in dtypes))
        for name in KEPT
    ]
    return f"{head} in float32\n{aligned(('subject', 'float32', 'bfloat16', 'int8'), rows)}\n"


def kept(name: str, shapes: Sequence[Shape], dtype: torch.dtype | str | None) -> int:
    """The bytes that a subject keeps for parameters of these shapes."""
    optimizer = _on_meta(name, shapes)
    for group in optimizer.param_groups:
        group["state_dtype"] = dtype
    optimizer.items()
    return sum(x.nbytes for state in optimizer.state.values() for x in state.values())


def launches_table(found: ShapeSet) -> str:
    """Kernels launched and bytes moved in a step of some methods."""
    head = f"{found.name}: {len(found.shapes)} parameters, {found.numel:,} numbers"
    rows = []
    for name in LAUNCHED:
        count, moved = launches(name, found.shapes)
        rows.append((name, f"{count:.0f}", f"{moved / (4 * found.numel):.1f}"))
    return f"{head}\n{aligned(('subject', 'launches', 'bytes / weights'), rows)}\n"


def launches(name: str, shapes: Sequence[Shape]) -> tuple[float, float]:
    """Launches and bytes of a step, averaged over the steps from one refresh to the next."""
    _teach_geqrf()
    optimizer = _on_meta(name, shapes)
    optimizer.telemetry_every = 0
    for item in optimizer.items():  # what the first step would have done to the state
        for i in range(len(item.parts)):
            item.exponents(i).zero_()
        if "clock" in item.state:
            item.state["clock"].copy_(-1 - item.state["clock"])
            item.state["waiting"].zero_()
    with Launches() as found:
        for _ in range(REFRESH_EVERY):
            optimizer.step()
    return found.count / REFRESH_EVERY, found.bytes / REFRESH_EVERY


@cache
def _teach_geqrf() -> None:
    """Tell the meta device the shapes of LAPACK's geqrf, which torch does not."""

    def geqrf(A: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(A), A.new_empty(*A.shape[:-2], min(A.shape[-2:]))

    _META.impl("geqrf", geqrf)  # type: ignore[no-untyped-call]


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that would launch a kernel, and the bytes that they touch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; views and allocations launch nothing."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.name():
            tensors = {id(x): x for x in _tensors(args, kwargs, result)}.values()
            if any(x.is_meta for x in tensors):
                self.count += 1
                self.bytes += sum(x.nbytes for x in tensors)
        return result
