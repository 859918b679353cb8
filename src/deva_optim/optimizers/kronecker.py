"""The baselines with two covariances: SOAP, Shampoo and SPlus.

Each applies its method to every parameter that is a matrix, or a batch or a flattened convolution
of them, and an elementwise method to the rest. Pass `param_groups(model)` to keep embeddings and
output heads out of the matrices.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..averages import averaged
from ..local import Ranks
from ..optimizer import BaseOptimizer
from ..validation import NonFinite, Rest, Sides, check_choice


class SOAP(BaseOptimizer):
    """SOAP: Adam in the eigenbasis of Shampoo's covariances.

        M ← β₁ M + (1 − β₁) G,   M′ = Q_Lᵀ M Q_R,   G′ = Q_Lᵀ G Q_R
        V ← β₂ V + (1 − β₂) G′²
        X ← (1 − ηλ) X − η · Q_L (M̂′ / (√V̂ + ε)) Q_Rᵀ
        L ← β₃ L + (1 − β₃) G Gᵀ,   R ← β₃ R + (1 − β₃) Gᵀ G

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor.
        betas: Decay of M, of V and (0.95 unless given) of the covariances.
        eps: ε, added to the root.
        weight_decay: Decoupled weight decay λ.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise equal shapes go together.
        refresh_every: Steps between two refreshes of a basis.
        stagger: Give every parameter steps of its own for it; False has all refreshes at once.
        sides: `"both"`, or `"short"` for a basis on the shorter side of a rectangle alone.
        max_dim: A side longer than this keeps the identity for a basis.
        skip_first: Let the first gradient choose the bases and do nothing else. On by default, as
            in the authors' code: in its own basis a gradient is diagonal, and Adam would make full
            steps of the rounding errors beside the diagonal.
        rest: The method for what is not a matrix: `"adamw"`, `"deva-linf"`, …
        rest_betas: Its betas.
        nonfinite: `"skip"` or `"raise"`, see `Muon`.
        state_dtype: dtype of V; float32 (float64 for float64 parameters) unless given. M keeps full
            precision, because its rounding would be divided by a variance that knows nothing of it.
        process_group, wire_dtype: See `DeVA`.

    >>> weight = torch.nn.Parameter(torch.ones(4, 6))
    >>> optimizer = SOAP([weight], lr=0.1)
    >>> for _ in range(20):
    ...     weight.grad = weight.detach().clone()
    ...     optimizer.step()
    >>> bool(weight.square().mean() < 1)
    True

    References:
        Vyas et al., *SOAP: Improving and Stabilizing Shampoo using Adam*, 2024.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] | tuple[float, float, float] = (0.95, 0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        refresh_every: int = 10,
        stagger: bool = True,
        sides: Sides = "both",
        max_dim: int = 10_000,
        skip_first: bool = True,
        rest: Rest = "adamw",
        rest_betas: tuple[float, float] = (0.9, 0.99),
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "method": "soap",
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "refresh_every": refresh_every,
            "stagger": stagger,
            "sides": sides,
            "max_dim": max_dim,
            "skip_first": skip_first,
            "rest": rest,
            "rest_betas": rest_betas,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, process_group, wire_dtype)


class Shampoo(BaseOptimizer):
    """Shampoo: the momentum between the inverse fourth roots of its covariances.

        M ← β₁ M + (1 − β₁) G
        L ← β₃ L + (1 − β₃) G Gᵀ,   R ← β₃ R + (1 − β₃) Gᵀ G
        U = (L̂ + εI)^(−1/4) M (R̂ + εI)^(−1/4)
        X ← (1 − ηλ) X − η · ‖A‖ / ‖U‖ · U,   A the update of Adam

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor.
        betas: Decay of M, of Adam's second moment and (0.95 unless given) of the covariances.
        eps: ε, added to the eigenvalues of L and R.
        weight_decay: Decoupled weight decay λ.
        nesterov: Precondition β₁ M + (1 − β₁) G.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise equal shapes go together.
        refresh_every: Steps between two computations of the roots.
        stagger: Give every parameter steps of its own for it; False has all refreshes at once.
        graft: `"adam"` gives the update the size of Adam's, `"none"` leaves its own.
        sides: `"both"`, or `"short"` for the shorter side of a rectangle alone (root −1/2).
        max_dim: A side longer than this is left out.
        rest: The method for what is not a matrix: `"adamw"`, `"deva-linf"`, …
        rest_betas: Its betas.
        nonfinite: `"skip"` or `"raise"`, see `Muon`.
        state_dtype: dtype of M and V; float32 (float64 for float64 parameters) unless given.
        process_group, wire_dtype: See `DeVA`.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, -0.5]])
    >>> Shampoo([weight], lr=1.0, betas=(0.0, 0.99), graft="none").step()
    >>> weight.detach().round(decimals=3) + 0.0  # one gradient: its matrix sign
    tensor([[-1.,  0.],
            [ 0.,  1.]])

    References:
        Gupta et al., *Shampoo: Preconditioned Stochastic Tensor Optimization*, 2018.
        Agarwal et al., *Disentangling Adaptive Gradient Methods from Learning Rates*, 2020.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] | tuple[float, float, float] = (0.9, 0.99, 0.95),
        eps: float = 1e-12,
        weight_decay: float = 0.1,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        refresh_every: int = 10,
        stagger: bool = True,
        graft: Literal["adam", "none"] = "adam",
        sides: Sides = "both",
        max_dim: int = 10_000,
        rest: Rest = "adamw",
        rest_betas: tuple[float, float] = (0.9, 0.99),
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        check_choice("graft", graft, ("adam", "none"))
        defaults = {
            "method": "shampoo",
            "variant": "default" if graft == "adam" else "ungrafted",
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "refresh_every": refresh_every,
            "stagger": stagger,
            "sides": sides,
            "max_dim": max_dim,
            "rest": rest,
            "rest_betas": rest_betas,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, process_group, wire_dtype)


class SPlus(BaseOptimizer):
    """SPlus: the sign of the momentum in the eigenbasis, judged by the average of its iterates.

        M ← β₁ M + (1 − β₁) G
        X ← (1 − ηsλ) X − ηs · Q_L sign(Q_Lᵀ M Q_R) Q_Rᵀ,   s = 2 / (n + m)
        L ← β₂ L + (1 − β₂) G Gᵀ,   R ← β₂ R + (1 − β₂) Gᵀ G,   A ← ρ A + (1 − ρ) X

    What is not a matrix moves by the sign of its momentum, with s = 0.001. Evaluate and save the
    averaged weights: `with optimizer.averaged(): …`

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor; a hundred times AdamW's.
        betas: Decay of M and of the covariances.
        weight_decay: Decoupled weight decay λ.
        nesterov: Take the sign of β₁ M + (1 − β₁) G.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise equal shapes go together.
        refresh_every: Steps between two eigendecompositions.
        stagger: Give every parameter steps of its own for it; False has all refreshes at once.
        ema_rate: ρ, the decay of the average of the iterates.
        sides: `"both"`, or `"short"` for a basis on the shorter side of a rectangle alone.
        max_dim: A side longer than this keeps the identity for a basis.
        nonfinite: `"skip"` or `"raise"`, see `Muon`.
        state_dtype: dtype of M; float32 (float64 for float64 parameters) unless given.
        process_group, wire_dtype: See `DeVA`.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> optimizer = SPlus([weight], lr=1.0, weight_decay=0.0)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([[3.0, 0.0], [0.0, -0.5]])
    ...     optimizer.step()
    >>> weight.detach() + 0.0
    tensor([[-1.,  0.],
            [ 0.,  1.]])
    >>> with optimizer.averaged():
    ...     weight.detach().round(decimals=3) + 0.0
    tensor([[-0.7500,  0.0000],
            [ 0.0000,  0.7500]])

    References:
        Frans et al., *A Stable Whitening Optimizer for Efficient Neural Network Training*, 2025.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-2,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        refresh_every: int = 100,
        stagger: bool = True,
        ema_rate: float = 0.999,
        sides: Sides = "both",
        max_dim: int = 10_000,
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "method": "splus",
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "refresh_every": refresh_every,
            "stagger": stagger,
            "ema_rate": ema_rate,
            "sides": sides,
            "max_dim": max_dim,
            "rest": "splus-vector",
            "rest_betas": betas,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, process_group, wire_dtype)

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the parameters hold the average of their iterates."""
        return averaged(self, self._blocks("iterate_avg"))
