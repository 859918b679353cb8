"""The update of a stack: momentum, basis, direction and adaptation put together.

Functions that end in an underscore change the state of the stack they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import bases
from .adaptations import ADAM, Adaptation, Evidence, Number, ema_mass
from .directions import frobenius, inverse_norm, msign, settled_sign

if TYPE_CHECKING:
    from .stack import Stack


def composed_(stack: Stack) -> tuple[Tensor, Number]:
    """restore(Γ ⊙ direction(project(D))) and κ; D is what the momentum shows the direction."""
    method, M = stack.method, stack.read("exp_avg")
    D = method.momentum(stack)
    Q_L, Q_R = _bases(stack)
    M_ = bases.project(M, Q_L, Q_R)
    D_ = M_ if D is M else bases.project(D, Q_L, Q_R)
    if method.adaptation is None:
        return bases.restore(_direction(stack, D_), Q_L, Q_R), 1.0
    if method.direction == "sign" and D is M:  # sign(m) |m| is m: no sign needs to be taken
        U, kappa = adapt_(stack, method.adaptation, M_, M_, M_)
    else:
        O = _direction(stack, D_)
        signal = M_.abs() if method.direction == "sign" else M_  # which a spectral Γ has no use for
        gamma, kappa = adapt_(stack, method.adaptation, signal, M_, O)
        U = gamma.mul_(O)
    return bases.restore(U, Q_L, Q_R), kappa


def adapt_(
    stack: Stack, adaptation: Adaptation, signal: Tensor, M: Tensor, O: Tensor
) -> tuple[Tensor, Number]:
    """Γ and κ, after the running averages have taken in what this step measures."""
    beta1, beta2, _ = stack.betas
    measured = adaptation.measure(_source(stack, adaptation, M, O))
    names = tuple(adaptation.moments(stack.part.shape))
    moments = tuple(stack.read(name) for name in names)
    for V, x in zip(moments, measured, strict=True):
        V.lerp_(x, stack.weight(beta2, stack.gate))
    stack.commit(*names)
    t = stack.t
    s, w = ema_mass(t, beta1), adaptation.mass(t, beta1, beta2)
    evidence = Evidence(signal, measured, moments, stack.shaped(w), stack.group["eps"])
    return adaptation.gamma(evidence), stack.shaped(adaptation.kappa(s, w))


def shampoo_(stack: Stack) -> tuple[Tensor, Number]:
    """L^(−1/4) M R^(−1/4), grafted to the size of Adam's update where a second moment is kept."""
    M, D = stack.read("exp_avg"), stack.method.momentum(stack)
    P_L, P_R = (stack.read(k) if stack.has(k) else None for k in ("root_left", "root_right"))
    U = bases.restore(D, P_L, P_R)  # the roots are symmetric
    if stack.method.adaptation is None:
        return U, 1.0
    A, kappa = adapt_(stack, ADAM, M, M, M)
    return U * (frobenius(A) * inverse_norm(U)), kappa


# How the momentum takes in a gradient, and what it shows the direction --------------------------


def plain_ema_(stack: Stack) -> Tensor:
    """M ← β₁ M + (1 − β₁) G; the direction sees M."""
    M = stack.read("exp_avg").lerp_(stack.G, stack.weight(stack.betas[0], stack.gate))
    stack.commit("exp_avg")
    return M


def ema_(stack: Stack) -> Tensor:
    """The same; with Nesterov the direction sees β₁ M + (1 − β₁) G."""
    M = plain_ema_(stack)
    return stack.G.lerp(M, stack.betas[0]) if stack.group["nesterov"] else M


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


def _bases(stack: Stack) -> tuple[Tensor | None, Tensor | None]:
    left, right = (stack.read(k) if stack.has(k) else None for k in ("basis_left", "basis_right"))
    return left, right


def _direction(stack: Stack, D: Tensor) -> Tensor:
    sign = torch.sign if stack.method.basis is None else settled_sign
    if stack.method.direction == "sign":
        return sign(D)
    stabilize = stack.group["sign_stabilize"]
    return msign(sign(D) if stabilize else D, stack.group["msign"])


def _source(stack: Stack, adaptation: Adaptation, M: Tensor, O: Tensor) -> Tensor:
    if adaptation.source == "momentum":
        return M
    return O if adaptation.source == "direction" else bases.project(stack.G, *_bases(stack))
