"""Arithmetic of a step: FLOPs counted, the machine's peak, and where the time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten

PRODUCTS: Final = ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_")


@dataclass(frozen=True)
class Flops:
    """Floating-point operations: of matrix products, and of decompositions by formula."""

    products: float
    decompositions: float

    @property
    def total(self) -> float:
        """All that was counted; work on single entries is not."""
        return self.products + self.decompositions


def _batch(shape: torch.Size) -> int:
    return shape[:-2].numel()


def _added(
    X: torch.Size, A: torch.Size, B: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    """X + A B in place, for a matrix or a batch of them."""
    return 2 * A.numel() * B[-1]


def _qr(A: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Householder QR of m×n, Q formed: twice 2mn² − ⅔n³ (Golub & Van Loan 5.2)."""
    n, m = sorted(A[-2:])
    return _batch(A) * 2 * (2 * m * n * n - 2 * n**3 // 3)


def _half_qr(A: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """The reflections of a QR of m×n, or Q formed of them: 2mn² − ⅔n³ each."""
    return _qr(A) // 2


def _eigh(A: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Symmetric eigenproblem with vectors: about 9n³ (Golub & Van Loan 8.3)."""
    return int(_batch(A) * 9 * A[-1] ** 3)


def _svd(A: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Thin SVD of m×n with both factors: about 6mn² + 20n³ (Golub & Van Loan 8.6)."""
    n, m = sorted(A[-2:])
    return _batch(A) * (6 * m * n * n + 20 * n**3)


def _cholesky(A: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(_batch(A) * A[-1] ** 3 // 3)


def _triangular(
    A: torch.Size, X: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return int(_batch(X) * A[-1] ** 2 * X[-1 if kwargs.get("left", True) else -2])


# What torch's counter leaves out: products in place, and everything of LAPACK.
_DECOMPOSITIONS: Final[dict[Any, Any]] = {
    aten.linalg_qr: _qr,
    aten.geqrf: _half_qr,
    aten.linalg_householder_product: _half_qr,
    aten._linalg_eigh: _eigh,
    aten._linalg_svd: _svd,
    aten.linalg_cholesky_ex: _cholesky,
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


def peak_flops(n: int, device: str = "cpu", *, trials: int = 7) -> float:
    """FLOP/s of the best of some n×n×n products in float32."""
    A, B, out = (torch.ones(n, n, device=device) for _ in range(3))
    times = []
    for _ in range(trials + 1):
        wait(device)
        start = time.perf_counter()
        torch.mm(A, B, out=out)
        wait(device)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times[1:])


def wait(device: str) -> None:
    """Wait until the device has done what it was told to do."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Profile:
    """Where the time of some steps went.

    Attributes:
        seconds: Of all of them.
        products: Seconds inside matrix products.
        shares: Share of the time by operator, the largest first; "python" is what is outside of
            operators.
    """

    seconds: float
    products: float
    shares: dict[str, float]


def profiled(step: Callable[[], object], count: int, device: str = "cpu") -> Profile:
    """The profile of `count` steps."""
    cuda = torch.device(device).type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as trace:
        for _ in range(count):
            with record_function("python"):
                step()
        wait(device)
    times: defaultdict[str, float] = defaultdict(float)
    for event in trace.key_averages():
        times[_operator(event.key)] += _seconds(event, cuda)
    total = sum(times.values())
    ranked = sorted(times.items(), key=lambda item: -item[1])
    shares = {key: seconds / total for key, seconds in ranked[:12]}
    return Profile(total, sum(times[op] for op in PRODUCTS), shares)


def _operator(key: str) -> str:
    """The name of an operator; torch gives every step of an optimizer a name of its own."""
    return "python" if key.startswith("Optimizer.step#") else key.removeprefix("aten::")


def _seconds(event: Any, cuda: bool) -> float:
    return float(event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6
