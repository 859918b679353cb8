"""The paper's trace quadratic f(X) = ½ tr(Xᵀ H X), its gradient seen through rows of a factor of H.

H is block-diagonal, three blocks of 3 × 3, each turned by a random rotation. The blocks are alike
(homogeneous) if each has eigenvalues of all magnitudes, and heterogeneous if each has its own: the
paper's text says so, and its displayed lists have the names swapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from .run.ranks import ALONE, Ranks
from .run.settings import TASKS

# Name → the eigenvalues of each block.
SIZES: Final[Mapping[str, list[list[float]]]] = TASKS["quadratic"].models


class Point(nn.Module):
    """The matrix X that is looked for."""

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(X)

    def forward(self, A: Tensor) -> Tensor:  # (rows, 9) → (rows, 9)
        """A X."""
        return A @ self.weight


def hessian(size: str, seed: int) -> Tensor:  # → (9, 9)
    """H, with a rotation of its own for each block: the eigenvectors of B Bᵀ, B Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for eigenvalues in SIZES[size]:
        B = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        Q = torch.linalg.eigh(B @ B.mT).eigenvectors
        blocks.append(Q * torch.tensor(eigenvalues, dtype=torch.float64) @ Q.mT)
    H: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return H


class Sampled:
    """Quadratics at once, B of them, their gradients means over n rows of A that are drawn anew.

    X, G  B×9×9    where they are, and sampled gradients
    H, A  …×9×9    H = Aᵀ A; a sample is a row of A
    """

    def __init__(self, H: Tensor, A: Tensor, *, n: int, seed: int) -> None:
        self.H, self.A, self.n = H, A, n
        self.generator = torch.Generator().manual_seed(seed)

    def start(self, *shape: int) -> Tensor:
        """X, Gaussian."""
        return torch.randn(shape, generator=self.generator, dtype=self.H.dtype)

    def value(self, X: Tensor) -> Tensor:
        """f(X) = ½ tr(Xᵀ H X), B; the least value is 0."""
        return 0.5 * (self.A @ X).square().sum((-2, -1))

    def sample(self, X: Tensor, *, squared: bool = True) -> Tensor:
        """The gradient of 9/n · ½ ‖A_n X‖_F², or of the same norm not squared, for n rows of A."""
        rows = torch.randint(9, (len(X), self.n, 1), generator=self.generator).expand(-1, -1, 9)
        A_n = self.A.expand(len(X), 9, 9).gather(1, rows)
        residual = A_n @ X
        G: Tensor = 9 / self.n * A_n.mT @ residual
        if squared:
            return G
        size: Tensor = torch.linalg.matrix_norm(residual, keepdim=True)
        return G / (2 * size)


class Quadratic:
    """The quadratic as a task, some rows of its factor at a time."""

    unit = "samples"

    def __init__(self, size: str, *, seed: int, batch: int) -> None:
        self.seed, self.units = seed, batch
        upper = torch.linalg.cholesky(hessian(size, seed)).mT
        self.factor: Tensor = upper.float()  # A with H = Aᵀ A, (9, 9)

    def model(self) -> nn.Module:
        """X, Gaussian."""
        generator = torch.Generator().manual_seed(self.seed)
        return Point(torch.randn(9, 9, generator=generator))

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Some rows of A, drawn with replacement, (batch, 9)."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        rows = torch.randint(9, (self.units,), generator=generator)
        return (self.factor[rows],)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """An unbiased sample of f: ½ · 9 · the mean of ‖aᵢᵀ X‖²."""
        rows = batch[0].to(next(model.parameters()).device)
        AX: Tensor = model(rows)
        return 4.5 * AX.square().sum(-1).mean()

    @torch.no_grad()
    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """f itself."""
        rows, count = ranks.rows(self.factor.to(next(model.parameters()).device))
        AX = model(rows)[:count]
        (loss,) = ranks.total(0.5 * AX.square().sum().item())
        return {"loss": loss}
