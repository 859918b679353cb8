"""The update of a stack: momentum, basis, direction and adaptation put together.

Functions that end in an underscore change the state of the stack they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import bases
from .directions import fast_dtype, frobenius, inverse_norm, polar, settled_sign
from .linalg import Number, Quotient, Term, average_, value
from .variance import ADAM, Adaptation, Evidence, bias_correction

if TYPE_CHECKING:
    from .batch import Stack


def composed_(stack: Stack) -> tuple[Term, Number]:
    """restore(Γ ⊙ direction(project(D))) and κ; D is what the momentum shows the direction."""
    method = stack.method
    M, D = stack.read("exp_avg"), method.momentum(stack)
    U: Term
    kappa: Number = 1.0
    if method.adaptation is None:
        U = direction_of(stack, in_basis(stack, D))
    elif method.direction == "sign" and D is M:  # sign(m) |m| is m: no sign needs to be taken
        M_ = in_basis(stack, M)
        U, kappa = gamma(stack, method.adaptation, M_, observe_(stack, method.adaptation, M_))
    else:
        U, kappa = _adapted_direction_(stack, method.adaptation, M, D)
    return _restored(stack, U), kappa


def adapted_first_(stack: Stack) -> tuple[Term, Number]:
    """restore(direction(Γ ⊙ project(D))) and 1; a factor such as κ is lost in the direction."""
    adaptation = stack.method.adaptation
    assert adaptation is not None
    M, D = stack.read("exp_avg"), stack.method.momentum(stack)
    M_ = in_basis(stack, M)
    D_ = M_ if D is M else in_basis(stack, D)
    trust, _ = gamma(stack, adaptation, None, observe_(stack, adaptation, M_))
    return _restored(stack, direction_of(stack, value(trust).mul_(D_))), 1.0


def in_basis(stack: Stack, X: Tensor) -> Tensor:
    """X, in the coordinates that M is kept in, in those of the basis."""
    return X if stack.method.rotated else bases.project(X, *stack.bases)


def _restored(stack: Stack, U: Term) -> Term:
    Q_L, Q_R = stack.bases
    return U if Q_L is None and Q_R is None else bases.restore(value(U), Q_L, Q_R)


def _adapted_direction_(
    stack: Stack, adaptation: Adaptation, M: Tensor, D: Tensor
) -> tuple[Tensor, Number]:
    """Γ ⊙ direction(project(D)) and κ."""
    M_ = in_basis(stack, M)
    D_ = M_ if D is M else in_basis(stack, D)
    measured: tuple[Term, ...] = ()
    if adaptation.source != "direction":
        measured = observe_(stack, adaptation, M_)
    signal = M_.abs() if stack.method.direction == "sign" else None
    O = value(direction_of(stack, D_))
    del M_, D_  # Γ has use for their memory
    if adaptation.source == "direction":
        measured = observe_(stack, adaptation, O)
    trust, kappa = gamma(stack, adaptation, signal, measured)
    return value(trust).mul_(O), kappa


def observe_(stack: Stack, adaptation: Adaptation, X: Tensor) -> tuple[Term, ...]:
    """What is measured of X (or of the gradient in its place), also taken into the averages."""
    if adaptation.source == "gradient":
        X = stack.projected
    measured = adaptation.measure(X)
    names = tuple(adaptation.moments(stack.part.shape))
    weight = stack.weight(stack.betas[1], stack.gate)
    for name, term in zip(names, measured, strict=True):
        average_(stack.read(name), term, weight)
    stack.commit(*names)
    return measured


def gamma(
    stack: Stack, adaptation: Adaptation, signal: Tensor | None, measured: tuple[Term, ...]
) -> tuple[Tensor | Quotient, Number]:
    """Γ and κ, from the running averages."""
    beta1, beta2, _ = stack.betas
    moments = tuple(stack.read(name) for name in adaptation.moments(stack.part.shape))
    w = stack.counted(adaptation.mass, beta1, beta2)
    kappa = stack.counted(bias_correction, adaptation, beta1, beta2)
    mean = None if stack.mean is None else stack.broadcast(stack.mean)
    evidence = Evidence(signal, measured, moments, w, stack.group["eps"], stack.unit, mean)
    return adaptation.gamma(evidence), kappa


def shampoo_(stack: Stack) -> tuple[Term, Number]:
    """L^(−1/4) M R^(−1/4), grafted to the size of Adam's update where a second moment is kept."""
    M, D = stack.read("exp_avg"), stack.method.momentum(stack)
    P_L, P_R = (stack.read(k) if stack.has(k) else None for k in ("root_left", "root_right"))
    U = bases.restore(D, P_L, P_R)  # the roots are symmetric
    if stack.method.adaptation is None:
        return U, 1.0
    A, kappa = gamma(stack, ADAM, M, observe_(stack, ADAM, M))
    U = value(U)
    return U * (frobenius(value(A)) * inverse_norm(U)), kappa


# How the momentum takes in a gradient, and what it shows the direction --------------------------


def plain_ema_(stack: Stack) -> Tensor:
    """M ← β₁ M + (1 − β₁) G, in the coordinates that M is kept in; the direction sees M."""
    M = stack.read("exp_avg")
    M.lerp_(gradient_beside_momentum(stack), stack.weight(stack.betas[0], stack.gate))
    stack.commit("exp_avg")
    return M


def ema_(stack: Stack) -> Tensor:
    """The same; with Nesterov the direction sees β₁ M + (1 − β₁) G."""
    M = plain_ema_(stack)
    return looked_ahead(stack, M) if stack.group["nesterov"] else M


def looked_ahead(stack: Stack, M: Tensor) -> Tensor:
    """β₁ M + (1 − β₁) G, in the coordinates of M."""
    return gradient_beside_momentum(stack).lerp(M, stack.betas[0])


def gradient_beside_momentum(stack: Stack) -> Tensor:
    """G, in the coordinates that M is kept in."""
    return stack.projected if stack.method.rotated else stack.G


def lion_(stack: Stack) -> Tensor:
    """The direction sees β₁ M + (1 − β₁) G, then M ← β₂ M + (1 − β₂) G."""
    beta1, beta2, _ = stack.betas
    M = stack.read("exp_avg")
    D = M.lerp(stack.G, 1 - beta1)
    M.lerp_(stack.G, stack.weight(beta2, stack.gate))
    stack.commit("exp_avg")
    return D


# What multiplies the learning rate --------------------------------------------------------------


def unit_rate(shape: tuple[int, ...]) -> float:
    """1: the learning rate is what the user gave."""
    return 1.0


def mean_side_rate(shape: tuple[int, ...]) -> float:
    """2 / (n + m), SPlus's rate for a matrix."""
    return 2.0 / (shape[-2] + shape[-1])


def vector_rate(shape: tuple[int, ...]) -> float:
    """0.001, SPlus's rate for what is not a matrix."""
    return 1e-3


def direction_of(stack: Stack, D: Tensor) -> Term:
    """The direction of D; its memory is used up if D is not the momentum itself."""
    sign = torch.sign if stack.method.basis is None else settled_sign
    if stack.method.direction == "sign":
        return sign(D)
    if stack.group["sign_stabilize"]:
        D = sign(D)
    dtype = stack.group["msign_dtype"] or fast_dtype(D)
    return polar(D, stack.group["msign"], dtype=dtype, scratch=D is not stack.read("exp_avg"))
