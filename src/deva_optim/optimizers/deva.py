"""DeVA, the optimizer to start with, and the two methods of its paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ..core.directions import MsignKind
from ..optimizer import BaseOptimizer
from ..options import NonFinite, Ranks, Rest, Sides, StateDType, Variant, documented


@documented
class DeVA(BaseOptimizer):
    """Lean DeVA-S∞ for hidden matrices and AdamW for the rest, in one optimizer.

        X ← (1 − ηλ) X − η · 0.2 √max(n, m) · Q msign(Qᵀ M / √(r cᵀ))   hidden matrices, n ≤ m
        x ← (1 − ηλ) x − η m̂ / (√v̂ + ε)                                 everything else

    Q is the eigenbasis of the short side, r the variance along its columns, c that of the columns
    of the gradient, and msign is firm. It costs about what Muon does, and keeps what AdamW does.
    `variant="whitened"` keeps the variance of every entry and both bases of a square;
    `variant="default"` is the paper's Γ ⊙ msign(M′), and `DeVASinf` has all of its settings.

    The rest are embeddings, output heads, positional tables, biases, norms and scalars. DeVA tells
    them apart by their modules, so pass the model (see `param_groups`). Biases, norms and scalars
    are not decayed. The update of a matrix has the RMS of AdamW's, so that a good learning rate
    for AdamW is a good one to start from.

    Args:
        params: A model, its parameters, its named parameters, or parameter groups. Groups without a
            `role` are routed as a model is, and may be split for it.
        eps: ε, relative to the means of r and c, and at least 1e-6 in float32; added to the root
            for AdamW.

    >>> model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10))
    >>> optimizer = DeVA(model, lr=1e-3)
    >>> loss = model(torch.tensor([1, 2])).square().mean()
    >>> loss.backward()
    >>> optimizer.step()

    References:
        Song et al., *Decoupling Variance and Scale-Invariant Updates in Adaptive Gradient
        Descent*, ICML 2026.
    """

    by_model = True

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] | tuple[float, float, float] = (0.8, 0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        nesterov: bool = True,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        refresh_every: int = 10,
        covariance_every: int | None = None,
        stagger: bool = True,
        variant: Variant = "lean",
        sign_stabilize: bool = False,
        msign: MsignKind = "firm",
        msign_dtype: torch.dtype | None = None,
        sides: Sides = "short",
        max_dim: int = 10_000,
        skip_first: bool = False,
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
        super().__init__(params, "deva-sinf", locals())


@documented
class DeVASinf(BaseOptimizer):
    """DeVA-S∞: the matrix sign of the momentum, adapted to its variance in the eigenbasis.

        M ← β₁ M + (1 − β₁) G,   M′ = Q_Lᵀ M Q_R,   r, c = row and column norms of M′
        V ← β₂ V + (1 − β₂) r cᵀ,   Γ = κ √(r cᵀ / (V + ε V̄))
        X ← (1 − ηλ) X − η · 0.2 √max(n, m) · Q_L (Γ ⊙ msign(M′)) Q_Rᵀ
        L ← β₃ L + (1 − β₃) G Gᵀ,   R ← β₃ R + (1 − β₃) Gᵀ G

    Q_L and Q_R are the eigenvectors of L and R, renewed every `refresh_every` steps by one power
    iteration and QR. κ is the exact bias correction: with a constant gradient Γ = 1 at every step,
    and DeVA-S∞ moves as Muon does. Multiplying all gradients by a constant changes nothing.

    Every parameter that is a matrix, or a batch or a flattened convolution of them, gets this
    method, embeddings and heads included; everything else gets DeVA-ℓ∞. `DeVA` routes a model.

    Args:
        betas: Decay β₁ of M, β₂ of V and β₃ of the covariances; the last is 0.95 unless given.

    >>> weight = nn.Parameter(torch.zeros(2, 2))
    >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, -0.5]])
    >>> DeVASinf([weight], lr=0.1, msign="svd").step()  # the first step is Muon's
    >>> (weight / (0.1 * 0.2 * 2**0.5)).round(decimals=4) + 0.0
    tensor([[-1.,  0.],
            [ 0.,  1.]], grad_fn=<AddBackward0>)

    References:
        Song et al., *Decoupling Variance and Scale-Invariant Updates in Adaptive Gradient
        Descent*, ICML 2026, Algorithm 2.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] | tuple[float, float, float] = (0.95, 0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        refresh_every: int = 10,
        covariance_every: int | None = None,
        stagger: bool = True,
        variant: Variant = "default",
        sign_stabilize: bool = False,
        msign: MsignKind = "newton-schulz",
        msign_dtype: torch.dtype | None = None,
        sides: Sides = "both",
        max_dim: int = 10_000,
        skip_first: bool = False,
        rest: Rest = "deva-linf",
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
        super().__init__(params, "deva-sinf", locals())


@documented
class DeVALinf(BaseOptimizer):
    """DeVA-ℓ∞: the sign of the momentum, adapted to the variance of the momentum itself.

        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) m²
        x ← (1 − ηλ) x − η γ ⊙ sign(m),   γ = κ |m| / √(v + ε v̄)

    Adam averages g² where this averages m². κ is the exact bias correction: with a constant
    gradient γ = 1 at every step, and DeVA-ℓ∞ moves as Signum does.

    Args:
        betas: Decay of m and of v.
        eps: ε, relative to the mean of v.
        nesterov: Take the sign of β₁ m + (1 − β₁) g in place of that of m.

    >>> weight = nn.Parameter(torch.ones(3))
    >>> weight.grad = torch.tensor([1.0, -2.0, 0.0])
    >>> DeVALinf([weight], lr=0.5, eps=0.0, weight_decay=0.0).step()  # the first step is Signum's
    >>> weight.detach().round(decimals=4)
    tensor([0.5000, 1.5000, 1.0000])

    References:
        Song et al., *Decoupling Variance and Scale-Invariant Updates in Adaptive Gradient
        Descent*, ICML 2026, Algorithm 1.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        rest_lr: float | Tensor | None = None,
        rest_weight_decay: float | None = None,
        embedding_lr: float | Tensor | None = None,
        head_lr: float | Tensor | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: StateDType = None,
        stochastic_rounding: bool = True,
        ema_rate: float | None = None,
    ) -> None:
        super().__init__(params, "deva-linf", locals())
