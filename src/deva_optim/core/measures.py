"""What a step can be judged by, from what it has computed; telemetry hands it to the user.

Matrices come in batches …×n×m; every function returns a number for each, shape ….
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from .linalg import Number, Term, matrix_norms, strips


def basis_drift(C: Tensor, Q: Tensor) -> Tensor:
    """The share of Qᵀ C Q that is off its diagonal, in the Frobenius norm; 0 for a zero C.

    0 where the columns of Q are the eigenvectors of C; it grows as C moves on after a refresh.

    >>> C = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> basis_drift(C, torch.eye(2)).square()
    tensor(0.2000)
    >>> basis_drift(C, torch.linalg.eigh(C).eigenvectors) < 1e-6
    tensor(True)
    """
    T = Q.mT @ C @ Q
    whole = _frobenius(T)
    T.diagonal(dim1=-2, dim2=-1).zero_()
    return torch.where(whole > 0, _frobenius(T) / whole, 0)


def msign_error(O: Term, size: Number = 1.0) -> Tensor:
    """‖O Oᵀ − I‖_F / √r on the short side: the RMS of σ² − 1 over the singular values of size · O.

    0 for an exact matrix sign; Newton–Schulz has about 0.3. A direction that is missing counts 1.

    >>> msign_error(torch.eye(2, 3)), msign_error(torch.zeros(2, 3))
    (tensor(0.), tensor(1.))
    """
    K: Tensor | None = None
    for X in strips(O):
        K = X @ X.mT if K is None else K.add_(X @ X.mT)
    assert K is not None
    K.mul_(size**2)
    K.diagonal(dim1=-2, dim2=-1).sub_(1)
    error: Tensor = _frobenius(K) / K.shape[-1] ** 0.5
    return error


def update_ratio(U: Term, X: Tensor, factor: Number = 1.0) -> Tensor:
    """‖factor · U‖_F / ‖X‖_F: how much of a weight X an update moves; inf for a zero weight.

    >>> update_ratio(torch.full((2, 2), 0.1), torch.full((2, 2), 10.0))
    tensor(0.0100)
    """
    norms = [matrix_norms(strip, keepdim=True) for strip in strips(U)]
    size = reduce(torch.hypot, norms) * factor
    ratio = torch.where(size > 0, size / matrix_norms(X, keepdim=True), 0)
    return ratio.to(X.dtype)[..., 0, 0]


def _frobenius(S: Tensor) -> Tensor:
    return matrix_norms(S).to(S.dtype)
