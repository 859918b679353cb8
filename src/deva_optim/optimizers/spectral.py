"""The spectral baselines: Muon and AdaMuon.

Each applies its method to every parameter that is a matrix, or a batch or a flattened convolution
of them, and an elementwise method to the rest. Pass `param_groups(model)` to keep embeddings and
output heads out of the matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..core.directions import MsignKind
from ..local import Ranks
from ..optimizer import BaseOptimizer
from ..validation import NonFinite, Rest


class Muon(BaseOptimizer):
    """Muon: the matrix sign of the momentum, with the RMS of AdamW's update.

        M ← β₁ M + (1 − β₁) G
        X ← (1 − ηλ) X − η · 0.2 √max(n, m) · msign(M)

    The scale is the one that `torch.optim.Muon` calls `"match_rms_adamw"`, so that a learning rate
    for AdamW carries over.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor.
        weight_decay: Decoupled weight decay λ.
        momentum: Decay β₁ of M.
        nesterov: Take the direction of β₁ M + (1 − β₁) G.
        eps: ε of the elementwise method for the rest.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise equal shapes go together.
        msign: How to compute the matrix sign: `"newton-schulz"`, `"polar-express"`, `"svd"` or, of
            which the smaller singular values stay below one, `"soft"` (see `deva_optim.msign`).
        msign_dtype: dtype of its products; unless given bfloat16 where the GPU has units for it,
            and float32 elsewhere.
        rest: The method for what is not a matrix: `"adamw"`, `"deva-linf"`, …
        rest_betas: Its betas.
        nonfinite: What a NaN or infinity in a gradient does: `"skip"` leaves out the step of that
            parameter, `"raise"` raises before anything is changed.
        state_dtype: dtype of M; float32 (float64 for float64 parameters) unless given.
        process_group, wire_dtype: See `DeVA`.

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
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = False,
        *,
        eps: float = 1e-8,
        maximize: bool = False,
        foreach: bool | None = None,
        msign: MsignKind = "newton-schulz",
        msign_dtype: torch.dtype | None = None,
        rest: Rest = "adamw",
        rest_betas: tuple[float, float] = (0.9, 0.99),
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "method": "muon",
            "lr": lr,
            "betas": (momentum, 0.0),
            "eps": eps,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "msign": msign,
            "msign_dtype": msign_dtype,
            "rest": rest,
            "rest_betas": rest_betas,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, process_group, wire_dtype)


class AdaMuon(BaseOptimizer):
    """AdaMuon: Muon's direction, divided entry by entry by its own running size.

        M ← β₁ M + (1 − β₁) G,   O = msign(sign(M))
        V ← β₂ V + (1 − β₂) O²,   U = O / (√V + ε)
        X ← (1 − ηλ) X − η · 0.2 √(n m) / ‖U‖ · U

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor.
        betas: Decay of M and of V.
        eps: ε, added to the root.
        weight_decay: Decoupled weight decay λ.
        nesterov: Take the direction of β₁ M + (1 − β₁) G.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise equal shapes go together.
        sign_stabilize: Take the matrix sign of sign(M), as the paper does, or of M.
        msign: How to compute the matrix sign: `"newton-schulz"`, `"polar-express"`, `"svd"` or, of
            which the smaller singular values stay below one, `"soft"` (see `deva_optim.msign`).
        msign_dtype: dtype of its products; unless given bfloat16 where the GPU has units for it,
            and float32 elsewhere.
        rest: The method for what is not a matrix: `"adamw"`, `"deva-linf"`, …
        rest_betas: Its betas.
        nonfinite: `"skip"` or `"raise"`, see `Muon`.
        state_dtype: dtype of M and V; float32 (float64 for float64 parameters) unless given.
        process_group, wire_dtype: See `DeVA`.

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
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        sign_stabilize: bool = True,
        msign: MsignKind = "newton-schulz",
        msign_dtype: torch.dtype | None = None,
        rest: Rest = "adamw",
        rest_betas: tuple[float, float] = (0.9, 0.99),
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "method": "adamuon",
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "sign_stabilize": sign_stabilize,
            "msign": msign,
            "msign_dtype": msign_dtype,
            "rest": rest,
            "rest_betas": rest_betas,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults, process_group, wire_dtype)
