"""SOAP: Adam in an eigenbasis."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ..optimizer import BaseOptimizer
from ..options import NonFinite, Ranks, Rest, Sides, StateDType, documented


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
        state_dtype: dtype of V. None is float32, and float64 for float64 parameters. M keeps that
            precision whatever is given: V would not shrink steps along its rounding errors.
            `"int8"` keeps V of weights with two dimensions or more as codes of one byte, with a
            scale for each block of 256, and bases in bfloat16.

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
