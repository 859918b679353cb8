"""The variance adaptation Γ: how far to trust the direction, from nothing but running averages.

    M, G, O  …×n×m         momentum, gradient and direction, all in the basis
    r, c     …×n×1, …×1×m  row and column norms of M (or of G); of lean, mean squares of G
    V        …×n×m         EMA of what is measured: G², M², r cᵀ or O²
    s, w     scalars       the mass of M and of V: what they would hold, had every gradient been 1

With a constant gradient M grows as s and V as w, so that a factor κ of the masses alone is the
exact bias correction: κ Γ ≡ 1 at every step. Each part (source, correction, ε) has its one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from .linalg import Number, Product, Quotient, Square, Term, compact, host_sees

Shape = tuple[int, ...]

_STRIP: Final = 1024  # columns whose squares are written down at a time


class Evidence(NamedTuple):
    """What Γ is computed from."""

    signal: Tensor | None  # |M|, for those that compare it with the noise
    measured: tuple[Term, ...]
    moments: tuple[Tensor, ...]  # the running averages of what is measured
    w: Number  # shaped to multiply the moments
    eps: float
    unit: Number = 1.0  # what the gradient, M and the square root of V are measured in
    mean: Tensor | None = None  # of V over the whole parameter, if V is a part of it


class Adaptation(NamedTuple):
    """κ Γ as pure functions over a batch of matrices.

    Attributes:
        source: What is measured: the momentum, the gradient, or the direction itself.
        averages: The names of the running averages that it keeps.
        measure: source → what each running average averages.
        mass: t, β₁, β₂ → w.
        kappa: s, w → κ; None where κ is 1 at every step.
        gamma: Evidence → Γ before the bias correction, …×n×m or broadcast to it. Given M for the
            signal |M|, an elementwise adaptation returns Γ ⊙ sign(M), bit for bit.
        formula: Γ as the table of methods shows it.
        waits: Whether its count of steps starts at the first gradient that is not zero.
        whole_mean: Whether ε is relative to the mean of V over the whole parameter.
    """

    source: Literal["momentum", "gradient", "direction"]
    averages: tuple[str, ...]
    measure: Callable[[Tensor], tuple[Term, ...]]
    mass: Callable[[Number, float, float], Number]
    kappa: Callable[[Number, Number], Number] | None
    gamma: Callable[[Evidence], Tensor | Quotient]
    formula: str
    waits: bool = False
    whole_mean: bool = False

    def moments(self, shape: Shape) -> dict[str, Shape]:
        """The running averages of matrices of a shape …, n, m: name of the state → its shape."""
        return {name: MOMENTS[name](shape) for name in self.averages}


def bias_correction(t: Number, adaptation: Adaptation, beta1: float, beta2: float) -> Number:
    """κ after t steps."""
    assert adaptation.kappa is not None
    return adaptation.kappa(ema_mass(t, beta1), adaptation.mass(t, beta1, beta2))


# What the filters hold after t steps of a gradient that is constantly one ----------------------


def ema_mass(t: Number, beta: float, x: float = 1.0) -> Number:
    """EMA with decay β of x, x², …, xᵗ; for x = 1 that is 1 − βᵗ."""
    if x == 1.0:
        return 1 - beta**t
    if abs(x - beta) < 1e-9:
        return (1 - beta) * t * beta**t
    return (1 - beta) * x * (x**t - beta**t) / (x - beta)


def gradient_mass(t: Number, beta1: float, beta2: float) -> Number:
    """EMA of 1: what is measured comes from the gradient."""
    return ema_mass(t, beta2)


def momentum_mass(t: Number, beta1: float, beta2: float) -> Number:
    """u_t = β₂ u + (1−β₂) s_t in closed form, where s_t = 1 − β₁ᵗ."""
    return ema_mass(t, beta2) - ema_mass(t, beta2, beta1)


def squared_momentum_mass(t: Number, beta1: float, beta2: float) -> Number:
    """w_t = β₂ w + (1−β₂) s_t² in closed form."""
    return ema_mass(t, beta2) - 2 * ema_mass(t, beta2, beta1) + ema_mass(t, beta2, beta1 * beta1)


# What is measured ------------------------------------------------------------------------------


def square(X: Tensor) -> tuple[Square]:
    """X², entry by entry."""
    return (Square(X),)


def row_squares(X: Tensor) -> tuple[Tensor]:
    """The mean of X² over each row."""
    return (X.square().mean(-1, keepdim=True),)


def side_norms(X: Tensor) -> tuple[Tensor, Tensor]:
    """r and c: the norms of the rows and of the columns of X."""
    squares = X.square()  # torch's own norm of columns is five times slower on a CPU
    return squares.sum(-1, keepdim=True).sqrt_(), squares.sum(-2, keepdim=True).sqrt_()


def column_squares(X: Tensor) -> Tensor:
    """The mean of X² over each column; …×1×m. Of a long X by strips, which saves memory."""
    if X.shape[-1] <= _STRIP or not host_sees(X.device):
        return X.square().mean(-2, keepdim=True)
    strips = torch.split(X, _STRIP, -1)
    return torch.cat([strip.square().mean(-2, keepdim=True) for strip in strips], -1)


def side_squares(X: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of X² over each row and over each column."""
    return column_squares(X.mT).mT, column_squares(X)


def norm_products(X: Tensor) -> tuple[Product]:
    """r cᵀ."""
    return (Product(*side_norms(X)),)


# κ ---------------------------------------------------------------------------------------------


def _root_ratio(s: Number, w: Number) -> Number:
    return w**0.5 / s


def _ratio(s: Number, w: Number) -> Number:
    return w / s


def _root(s: Number, w: Number) -> Number:
    return w**0.5


# Γ ---------------------------------------------------------------------------------------------


def _adam(x: Evidence) -> Quotient:
    (V,) = x.moments
    assert x.signal is not None
    noise = V.sqrt().add_(x.eps * x.w**0.5 / x.unit)  # v̂ = v / w, and √w goes into κ
    if not x.eps or isinstance(x.unit, Tensor):  # then ε may be nothing beside what has underflown
        noise = _beyond_underflow(noise)
    return Quotient(x.signal, noise)  # |m| / (√v + ε √w)


def _linf(x: Evidence) -> Quotient:
    (V,) = x.moments
    assert x.signal is not None
    mean = x.mean
    if mean is None:
        mean = V.mean(tuple(range(1, V.ndim)), keepdim=True) if V.ndim > 1 else V
    return Quotient(x.signal, _with_floor(V, x.eps, mean).sqrt_())  # |m| / √(v + ε v̄)


def _spectral(x: Evidence) -> Tensor:
    (rc,), noise = x.measured, _noise(x).sqrt_()  # r / V alone may be too large for a float
    assert isinstance(rc, Product)
    return torch.div(rc.left.sqrt(), noise, out=noise).mul_(rc.right.sqrt())  # √(r cᵀ / (V + ε V̄))


def _whitening(x: Evidence) -> Tensor:
    return _noise(x).rsqrt_()  # 1 / √(V + ε V̄)


def _factored(x: Evidence) -> Tensor:
    (r, c), (V_r, V_c) = x.measured, x.moments
    assert isinstance(r, Tensor)
    assert isinstance(c, Tensor)
    return (r / _positive(V_r)).sqrt_() * (c / _positive(V_c)).sqrt_()  # √(r cᵀ / (V_r V_cᵀ))


def _lean(x: Evidence) -> Tensor:
    r, c = x.moments
    return inverse_root(r, x.eps) * inverse_root(c, x.eps)  # 1 / √((r/r̄ + ε) (c/c̄ + ε)ᵀ)


def inverse_root(v: Tensor, eps: float) -> Tensor:
    """(v / v̄ + ε)^(−½), and zero where that has no value."""
    mean = v.mean((-2, -1), keepdim=True)
    noise = torch.add(v, mean, alpha=eps)
    return torch.div(mean, noise, out=noise).sqrt_().nan_to_num_(0.0, 0.0)


def _direction(x: Evidence) -> Tensor:
    (V,) = x.moments
    return _beyond_underflow(V.sqrt().add_(x.eps)).reciprocal_()  # 1 / (√v + ε)


def _noise(x: Evidence) -> Tensor:
    """V + ε V̄, the mean being that of each matrix."""
    (V,) = x.moments
    mean = V.flatten(-2).mean(-1)[..., None, None]  # faster than over two dimensions
    return _with_floor(V, x.eps, mean)


def _with_floor(V: Tensor, eps: float, mean: Tensor) -> Tensor:
    """V + ε V̄, and infinity where that is too small for a float: what it divides becomes zero."""
    tiny, mean = torch.finfo(V.dtype).tiny, compact(mean)
    noise = V + torch.where(mean < tiny, torch.inf, eps * mean + tiny)
    return noise if eps else noise.masked_fill_(tiny > V, torch.inf)


def _positive(V: Tensor) -> Tensor:
    """V with infinity for its zeros, so that what is divided by them becomes zero."""
    return V.masked_fill(torch.finfo(V.dtype).tiny > V, torch.inf)


def _beyond_underflow(noise: Tensor) -> Tensor:
    """The noise, and infinity where its square is too small for a float: what it divides is zero."""
    return noise.masked_fill(noise < 8 * torch.finfo(noise.dtype).tiny ** 0.5, torch.inf)


MOMENTS: Final[dict[str, Callable[[Shape], Shape]]] = {
    "exp_avg_sq": lambda shape: shape,
    "exp_avg_rows": lambda shape: (*shape[:-1], 1),
    "exp_avg_cols": lambda shape: (*shape[:-2], 1, shape[-1]),
    "variance_short": lambda shape: (*shape[:-2], min(shape[-2:]), 1),
    "variance_long": lambda shape: (*shape[:-2], 1, max(shape[-2:])),
}
"""The running averages that adaptations keep: name of the state → its shape for matrices …, n, m."""

_V: Final = ("exp_avg_sq",)
_V_R: Final = ("exp_avg_rows",)
_V_R_V_C: Final = ("exp_avg_rows", "exp_avg_cols")
_R_C: Final = ("variance_short", "variance_long")

# fmt: off
ADAM          = Adaptation("gradient", _V, square, gradient_mass, _root_ratio, _adam, "|M| / √EMA[G²]")
LINF          = Adaptation("momentum", _V, square, squared_momentum_mass, _root_ratio, _linf, "|M| / √EMA[M²]", waits=True, whole_mean=True)
SPECTRAL      = Adaptation("momentum", _V, norm_products, squared_momentum_mass, _root_ratio, _spectral, "√(r cᵀ / EMA[r cᵀ])", waits=True)
INSTANTANEOUS = Adaptation("gradient", _V, norm_products, gradient_mass, _root, _spectral, "√(r cᵀ / EMA[r cᵀ of G])", waits=True)
FACTORED      = Adaptation("momentum", _V_R_V_C, side_norms, momentum_mass, _ratio, _factored, "√(r cᵀ / EMA[r] EMA[c]ᵀ)", waits=True)
WHITENING     = Adaptation("gradient", _V, square, gradient_mass, None, _whitening, "1 / √EMA[G²]", waits=True)
LEAN          = Adaptation("gradient", _R_C, side_squares, gradient_mass, None, _lean, "1 / √(r cᵀ), r = diag(Qᵀ L Q), c = EMA of the squares of a column of G", waits=True)
ROWS          = Adaptation("direction", _V_R, row_squares, gradient_mass, None, _direction, "1 / √EMA[mean O² of a row]")
DIRECTION     = Adaptation("direction", _V, square, gradient_mass, None, _direction, "1 / √EMA[O²]")
# fmt: on
