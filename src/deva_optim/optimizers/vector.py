"""The elementwise baselines: AdamW, Signum and Lion."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..optimizer import BaseOptimizer
from ..validation import NonFinite


class AdamW(BaseOptimizer):
    r"""AdamW: the sign of the momentum, trusted as far as its signal exceeds its noise.

        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²
        x ← (1 − ηλ) x − η m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    The same numbers as `torch.optim.AdamW`, on the engine of the other methods: a common ground
    for comparisons.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor.
        betas: Decay of m and of v.
        eps: ε, added to the root.
        weight_decay: Decoupled weight decay λ.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise small ones go together.
        nonfinite: What a NaN or infinity in a gradient does: `"skip"` leaves out the step of that
            parameter, `"raise"` raises before anything is changed.
        state_dtype: dtype of m and v; float32 (float64 for float64 parameters) unless given.

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
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "method": "adamw",
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults)


class Signum(BaseOptimizer):
    """Signum: the sign of the momentum and nothing else.

        m ← β₁ m + (1 − β₁) g
        x ← (1 − ηλ) x − η sign(m)

    With a momentum of zero it is SignSGD.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor.
        momentum: Decay β₁ of m.
        weight_decay: Decoupled weight decay λ.
        nesterov: Take the sign of β₁ m + (1 − β₁) g.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise small ones go together.
        nonfinite: `"skip"` or `"raise"`, see `AdamW`.
        state_dtype: dtype of m; float32 (float64 for float64 parameters) unless given.

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
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "method": "signum",
            "lr": lr,
            "betas": (momentum, 0.0),
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults)


class Lion(BaseOptimizer):
    """Lion: the sign of a momentum that looks further back than the one it shows.

        x ← (1 − ηλ) x − η sign(β₁ m + (1 − β₁) g)
        m ← β₂ m + (1 − β₂) g

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate η, a float or a 0-D tensor; three to ten times below AdamW's.
        betas: Weight of m in the direction, and decay of m.
        weight_decay: Decoupled weight decay λ; three to ten times above AdamW's.
        maximize: Climb instead of descend.
        foreach: False updates one tensor at a time; otherwise small ones go together.
        nonfinite: `"skip"` or `"raise"`, see `AdamW`.
        state_dtype: dtype of m; float32 (float64 for float64 parameters) unless given.

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
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        nonfinite: NonFinite = "skip",
        state_dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "method": "lion",
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "nonfinite": nonfinite,
            "state_dtype": state_dtype,
        }
        super().__init__(params, defaults)
