"""The baselines with a matrix sign: Muon, AdaMuon and NorMuon."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ..core.directions import JORDAN, MsignKind
from ..optimizer import BaseOptimizer
from ..options import NonFinite, Ranks, Rest, StateDType, documented


@documented
class Muon(BaseOptimizer):
    """Muon: the matrix sign of the momentum, with the RMS of AdamW's update.

        M ← β₁ M + (1 − β₁) G
        X ← (1 − ηλ) X − η · 0.2 √max(n, m) · msign(M)

    The arguments are those of `torch.optim.Muon` and mean the same. The scale is the one that is
    called `"match_rms_adamw"` there, so that a learning rate for AdamW carries over; torch's is
    `"original"` unless told otherwise. The products are computed in float32 on a CPU, where torch
    takes bfloat16, and a gradient needs no ε to be normalised.

    Args:
        eps: ε of the method for the rest.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, -0.5]])
    >>> Muon([weight], lr=1 / (0.2 * 2**0.5), msign="svd").step()
    >>> weight.detach() + 0.0
    tensor([[-1.,  0.],
            [ 0.,  1.]])

    References:
        Jordan et al., *Muon: An optimizer for hidden layers in neural networks*, 2024.
        Liu et al., *Muon is Scalable for LLM Training*, 2025.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = JORDAN,
        eps: float = 1e-8,
        ns_steps: int = 5,
        adjust_lr_fn: Literal["match_rms_adamw", "original"] | None = "match_rms_adamw",
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        msign: MsignKind = "newton-schulz",
        msign_dtype: torch.dtype | None = None,
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
        variant = {"variant": "default" if adjust_lr_fn == "match_rms_adamw" else "original"}
        super().__init__(params, "muon", {**locals(), **variant})


@documented
class AdaMuon(BaseOptimizer):
    """AdaMuon: Muon's direction, divided entry by entry by its own running size.

        M ← β₁ M + (1 − β₁) G,   O = msign(sign(M))
        V ← β₂ V + (1 − β₂) O²,   U = O / (√V + ε)
        X ← (1 − ηλ) X − η · 0.2 √(n m) / ‖U‖ · U

    Args:
        betas: Decay of M and of V.
        eps: ε, added to the root.
        sign_stabilize: Take the matrix sign of sign(M), as the paper does; False takes that of M.

    >>> weight = torch.nn.Parameter(torch.zeros(4, 6))
    >>> weight.grad = torch.arange(24.0).view(4, 6).sin()
    >>> AdaMuon([weight], lr=1.0).step()
    >>> round(weight.square().mean().sqrt().item(), 4)
    0.2

    References:
        Si et al., *AdaMuon: Adaptive Muon Optimizer*, 2025.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        sign_stabilize: bool = True,
        msign: MsignKind = "newton-schulz",
        msign_dtype: torch.dtype | None = None,
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
        super().__init__(params, "adamuon", locals())


@documented
class NorMuon(BaseOptimizer):
    """NorMuon: Muon's direction, every row of it divided by its own running size.

        M ← β₁ M + (1 − β₁) G,   O = msign(M)
        v ← β₂ v + (1 − β₂) mean of O² over each row,   U = O / (√v + ε)
        X ← (1 − ηλ) X − η · 0.2 √(n m) / ‖U‖ · U

    A row belongs to an output of the layer. AdaMuon does the same entry by entry.

    Args:
        betas: Decay of M and of v.
        eps: ε, added to the root.

    >>> weight = torch.nn.Parameter(torch.zeros(4, 6))
    >>> weight.grad = torch.arange(24.0).view(4, 6).sin()
    >>> NorMuon([weight], lr=1.0).step()
    >>> round(weight.square().mean().sqrt().item(), 4)
    0.2

    References:
        Li et al., *NorMuon: Making Muon more efficient and scalable*, 2025.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        msign: MsignKind = "newton-schulz",
        msign_dtype: torch.dtype | None = None,
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
        super().__init__(params, "normuon", locals())
