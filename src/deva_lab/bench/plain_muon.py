"""The yardstick: Muon as torch.optim.Muon computes it, but in the precision of its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

A, B, C = 3.4445, -4.7750, 2.0315  # Jordan's quintic


def newton_schulz(M: Tensor) -> Tensor:
    """Five steps X ← a X + (b K + c K²) X, K = X Xᵀ, from M / ‖M‖, on the short side."""
    tall = M.shape[0] > M.shape[1]
    X = M.mT if tall else M
    X = X / X.norm()
    for _ in range(5):
        K = X @ X.mT
        X = torch.addmm(X, torch.addmm(K, K, K, beta=B, alpha=C), X, beta=A)
    return X.mT if tall else X


class PlainMuon(Optimizer):
    """M ← β M + (1 − β) G, X ← (1 − ηλ) X − η · 0.2 √max(n, m) · msign(M), a matrix at a time."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step; the yardstick has no use for a closure."""
        for group in self.param_groups:
            for X in group["params"]:
                state = self.state[X]
                if not state:
                    state["exp_avg"] = torch.zeros_like(X)
                M = state["exp_avg"].lerp_(X.grad, 1 - group["momentum"])
                X.mul_(1 - group["lr"] * group["weight_decay"])
                X.add_(newton_schulz(M), alpha=-group["lr"] * 0.2 * max(X.shape) ** 0.5)
