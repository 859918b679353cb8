"""The elementwise baselines: AdamW, Signum and Lion."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ..optimizer import BaseOptimizer
from ..options import NonFinite, StateDType, documented


@documented
class AdamW(BaseOptimizer):
    """AdamW: the momentum, divided by the root of the average squared gradient.

        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²
        x ← (1 − ηλ) x − η m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    It computes the same numbers as `torch.optim.AdamW`, with the code that the other methods use.

    Args:
        betas: Decay of m and of v.
        eps: ε, added to the root.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> weight.grad = torch.tensor([1.0, -2.0, 0.0])
    >>> AdamW([weight], lr=0.1, weight_decay=0.0).step()
    >>> weight.detach()
    tensor([0.9000, 1.1000, 1.0000])

    References:
        Loshchilov and Hutter, *Decoupled Weight Decay Regularization*, 2019.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | str = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        rest_lr: float | Tensor | None = None,
        rest_weight_decay: float | None = None,
        embedding_lr: float | Tensor | None = None,
        head_lr: float | Tensor | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: StateDType = None,
        stochastic_rounding: bool = True,
        ema_rate: float | None = None,
    ) -> None:
        super().__init__(params, "adamw", locals())


@documented
class Signum(BaseOptimizer):
    """Signum: the sign of the momentum and nothing else.

        m ← β₁ m + (1 − β₁) g
        x ← (1 − ηλ) x − η sign(m)

    With a momentum of zero it is SignSGD.

    Args:
        momentum: Decay β₁ of m.
        nesterov: Take the sign of β₁ m + (1 − β₁) g in place of that of m.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> weight.grad = torch.tensor([1.0, -2.0, 0.0])
    >>> Signum([weight], lr=0.5).step()
    >>> weight.tolist()
    [0.5, 1.5, 1.0]

    References:
        Bernstein et al., *signSGD: Compressed Optimisation for Non-Convex Problems*, 2018.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
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
        super().__init__(params, "signum", locals())


@documented
class Lion(BaseOptimizer):
    """Lion: the sign of a mean of the momentum and the gradient, the momentum decaying slowly.

        x ← (1 − ηλ) x − η sign(β₁ m + (1 − β₁) g)
        m ← β₂ m + (1 − β₂) g

    Args:
        lr: Learning rate η, a float or a 0-D tensor; three to ten times below AdamW's.
        betas: Weight of m in the direction, and decay of m.
        weight_decay: Decoupled weight decay λ; three to ten times above AdamW's.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> weight.grad = torch.tensor([1.0, -2.0, 0.0])
    >>> Lion([weight], lr=0.5).step()
    >>> weight.tolist()
    [0.5, 1.5, 1.0]

    References:
        Chen et al., *Symbolic Discovery of Optimization Algorithms*, 2023.
    """

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
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
        super().__init__(params, "lion", locals())
