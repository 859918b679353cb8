"""The baselines that keep covariances: Shampoo, SOAP and SPlus."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ..optimizer import BaseOptimizer
from ..options import NonFinite, Ranks, Rest, Sides, StateDType, documented


@documented
class Shampoo(BaseOptimizer):
    """Shampoo: the momentum between the inverse fourth roots of its covariances.

        M ← β₁ M + (1 − β₁) G
        L ← β₃ L + (1 − β₃) G Gᵀ,   R ← β₃ R + (1 − β₃) Gᵀ G
        U = (L̂ + εI)^(−1/4) M (R̂ + εI)^(−1/4)
        X ← (1 − ηλ) X − η · ‖A‖ / ‖U‖ · U,   A the update of Adam

    Args:
        betas: Decay of M, of Adam's second moment and of the covariances; the last is 0.95 unless
            given.
        eps: ε, added to the eigenvalues of L and R.
        nesterov: Precondition β₁ M + (1 − β₁) G in place of M.
        refresh_every: Steps between two computations of the roots.
        stagger: Compute the roots of different parameters at different steps; False computes all of
            them at the same step.
        sides: `"both"`, or `"short"` for the shorter side of a rectangle alone, with the root −1/2.
        max_dim: A side that is longer than this is left out.

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
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] | tuple[float, float, float] = (0.9, 0.99, 0.95),
        eps: float = 1e-12,
        weight_decay: float = 0.1,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        refresh_every: int = 10,
        stagger: bool = True,
        graft: Literal["adam", "none"] = "adam",
        sides: Sides = "both",
        max_dim: int = 10_000,
        rest: Rest = "adamw",
        rest_betas: tuple[float, float] = (0.9, 0.99),
        rest_lr: float | Tensor | None = None,
        rest_weight_decay: float | None = None,
        embedding_lr: float | Tensor | None = None,
        head_lr: float | Tensor | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: StateDType = None,
        stochastic_rounding: bool = True,
        ema_rate: float | None = None,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        variant = {"variant": "ungrafted" if graft == "none" else "default"}
        super().__init__(params, "shampoo", {**locals(), **variant})


@documented
class SOAP(BaseOptimizer):
    """SOAP: Adam in the eigenbasis of Shampoo's covariances.

        M ← β₁ M + (1 − β₁) G,   M′ = Q_Lᵀ M Q_R,   G′ = Q_Lᵀ G Q_R
        V ← β₂ V + (1 − β₂) G′²
        X ← (1 − ηλ) X − η · Q_L (M̂′ / (√V̂ + ε)) Q_Rᵀ
        L ← β₃ L + (1 − β₃) G Gᵀ,   R ← β₃ R + (1 − β₃) Gᵀ G

    Args:
        eps: ε, added to the root.
        skip_first: Let the first gradient choose the bases and do nothing else, as in the authors'
            code: in its own basis a gradient is diagonal, and Adam would make full steps of the
            rounding errors beside the diagonal.

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
        params: nn.Module | ParamsT,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] | tuple[float, float, float] = (0.95, 0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        refresh_every: int = 10,
        stagger: bool = True,
        sides: Sides = "both",
        max_dim: int = 10_000,
        skip_first: bool = True,
        rest: Rest = "adamw",
        rest_betas: tuple[float, float] = (0.9, 0.99),
        rest_lr: float | Tensor | None = None,
        rest_weight_decay: float | None = None,
        embedding_lr: float | Tensor | None = None,
        head_lr: float | Tensor | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: StateDType = None,
        stochastic_rounding: bool = True,
        ema_rate: float | None = None,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(params, "soap", locals())


@documented
class SPlus(BaseOptimizer):
    """SPlus: the sign of the momentum in the eigenbasis, judged by the average of its iterates.

        M ← β₁ M + (1 − β₁) G
        X ← (1 − ηsλ) X − ηs · Q_L sign(Q_Lᵀ M Q_R) Q_Rᵀ,   s = 2 / (n + m)
        L ← β₂ L + (1 − β₂) G Gᵀ,   R ← β₂ R + (1 − β₂) Gᵀ G,   A ← ρ A + (1 − ρ) X

    What is not a matrix moves by the sign of its momentum, with s = 0.001. Evaluate and save the
    averaged weights A: `with optimizer.averaged(): …`

    Args:
        lr: Learning rate η, a float or a 0-D tensor; about a hundred times AdamW's.
        betas: Decay of M and of the covariances.
        refresh_every: Steps between two eigendecompositions.

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
        params: nn.Module | ParamsT,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-2,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        refresh_every: int = 100,
        stagger: bool = True,
        sides: Sides = "both",
        max_dim: int = 10_000,
        rest_lr: float | Tensor | None = None,
        rest_weight_decay: float | None = None,
        embedding_lr: float | Tensor | None = None,
        head_lr: float | Tensor | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: StateDType = None,
        stochastic_rounding: bool = True,
        ema_rate: float | None = 0.999,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        vectors = {"rest": "splus-vector", "rest_betas": betas}
        super().__init__(params, "splus", {**locals(), **vectors})
