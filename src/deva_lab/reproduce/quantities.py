"""What the paper's theory measures: pure functions, no state.

    G, S      …×n×m         gradient, or any matrix that a norm is taken of
    O         …×n×m         its direction, msign(S) = U Vᵀ for S = U Σ Vᵀ
    Γ, γ      …×n×m         variance adaptation, positive; `gamma`
    L_m       …×n×m         smoothness along each coordinate; `L_m`
    r         –             min(n, m)

Matrices come in batches …×n×m; every function returns a number for each, shape ….
"""

from __future__ import annotations

import torch
from torch import Tensor

from deva_optim.core.directions import msign
from deva_optim.core.linalg import matrix_norms
from deva_optim.core.variance import side_norms

# Norms and what belongs to them (definition of the γ-weighted dual norm and its examples) --------


def nuclear_norm(S: Tensor) -> Tensor:
    """‖S‖₁, the sum of the singular values.

    >>> nuclear_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
    tensor(7.)
    """
    norm: Tensor = torch.linalg.svdvals(S).sum(-1)
    return norm


def linf_dual_norm(S: Tensor, gamma: Tensor) -> Tensor:
    """‖S‖_{*,γ} = Σ γ |S|: the γ-weighted dual of the ℓ∞ norm.

    >>> linf_dual_norm(torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 0.5]]))
    tensor(4.)
    """
    return (gamma * S.abs()).sum((-2, -1))


def schatten_dual_norm(S: Tensor, gamma: Tensor) -> Tensor:
    """‖S‖_{*,Γ} = ‖Γ ⊙ S‖₁: the Γ-weighted dual of the Schatten-∞ norm.

    >>> schatten_dual_norm(torch.eye(2), torch.full((2, 2), 0.5))
    tensor(1.)
    """
    return nuclear_norm(gamma * S)


def weighted_frobenius(S: Tensor, gamma: Tensor) -> Tensor:
    """‖S‖_{F,Γ} = ‖Γ ⊙ S‖_F, the norm of the noise in the matrix theorem.

    >>> weighted_frobenius(torch.tensor([[3.0, 4.0]]), torch.full((1, 2), 2.0))
    tensor(10.)
    """
    return _frobenius(gamma * S)


def nuclear_rank(S: Tensor) -> Tensor:
    """‖S‖₁² / ‖S‖_F²: between 1 and r, as if so many singular values were equal; 0 for a zero S.

    >>> nuclear_rank(torch.stack([torch.eye(3), torch.ones(3, 3)])).round()
    tensor([3., 1.])
    """
    return _ratio(nuclear_norm(S), _frobenius(S)).square()


# The two terms of the convergence theorems ------------------------------------------------------


def psi(G: Tensor, gamma: Tensor) -> Tensor:
    """ψ = ⟨G, msign(G)⟩_Γ = Σ Γ ⊙ G ⊙ msign(G), with an exact msign.

    What a small step of −Γ ⊙ msign(G) gains. It may be negative: see `psi_floor`.

    >>> psi(torch.tensor([[4.0, 1.0], [7.0, 4.0]]), torch.tensor([[1.0, 18.0], [1.0, 1.0]]))
    tensor(-0.2000)
    """
    return (gamma * G * msign(G, "svd")).sum((-2, -1))


def psi_floor(G: Tensor, gamma: Tensor) -> Tensor:
    """‖G‖₁ [min Γ − ½ (max Γ − min Γ) (√(r/ρ) − 1)], a bound of ψ from below; ρ the nuclear rank.

    It takes the place of the paper's min(Γ) ‖G‖₁, which does not hold, and agrees with it where
    all singular values are equal or all entries of Γ are (see docs/decisions.md).

    >>> S = torch.tensor([[4.0, 1.0], [7.0, 4.0]])
    >>> gamma = torch.tensor([[1.0, 18.0], [1.0, 1.0]])
    >>> psi_floor(S, gamma) <= psi(S, gamma)
    tensor(True)
    """
    low, high = gamma.amin((-2, -1)), gamma.amax((-2, -1))
    # Σ |G ⊙ O| ≤ √r ‖G‖_F and Σ G ⊙ O = ‖G‖₁, so the negative entries add up to `wrong` at most.
    wrong = (min(G.shape[-2:]) ** 0.5 * _frobenius(G) - nuclear_norm(G)) / 2
    floor: Tensor = low * nuclear_norm(G) - (high - low) * wrong
    return floor


def smoothness(L_m: Tensor, gamma: Tensor) -> Tensor:
    """‖L_m‖_{1,Γ²} = Σ L_m Γ², the smoothness term of both theorems for one Γ.

    >>> smoothness(torch.full((2, 2), 3.0), torch.full((2, 2), 0.5))
    tensor(3.)
    """
    return (L_m * gamma.square()).sum((-2, -1))


def spectral_smoothness(L_m: Tensor, gamma: Tensor) -> Tensor:
    """min(Σᵢ maxⱼ, Σⱼ maxᵢ) of L_m Γ²: a smaller term that the matrix theorem holds with.

    The squares of the entries of msign(G) add up to at most one in every row and column, so that
    Σ L_m Γ² msign(G)² is at most this, up to max(n, m) times less than `smoothness`.

    >>> spectral_smoothness(torch.full((2, 5), 3.0), torch.ones(2, 5))
    tensor(6.)
    """
    A = L_m * gamma.square()
    return torch.minimum(A.amax(-1).sum(-1), A.amax(-2).sum(-1))


# Signal to noise --------------------------------------------------------------------------------


def linf_snr(g: Tensor, second_moment: Tensor) -> Tensor:
    """(g² / E[g²])^½ entry by entry: γ of DeVA-ℓ∞, before ε and κ; 0/0 is 0.

    >>> linf_snr(torch.tensor([3.0, 0.0]), torch.tensor([9.0, 0.0]))
    tensor([1., 0.])
    """
    return _ratio(g.abs(), second_moment.sqrt())


def spectral_snr(G_: Tensor, second_moment: Tensor) -> Tensor:
    """(σᵢσⱼ / E[σᵢσⱼ])^½: Γ of DeVA-S∞, before ε and κ; 0/0 is 0.

    Args:
        G_: The gradient in the eigenbases, whose row and column norms stand for σᵢ and σⱼ.
        second_moment: E[r cᵀ].

    >>> spectral_snr(torch.eye(2), torch.full((2, 2), 4.0))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    r, c = side_norms(G_)
    return _ratio(r * c, second_moment).sqrt()


def _frobenius(S: Tensor) -> Tensor:
    return matrix_norms(S).to(S.dtype)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is."""
    return torch.where(b > 0, a / b, 0)
