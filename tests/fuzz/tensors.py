"""The weights and gradients of a case, drawn from its seeds."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fuzz.case import Grad, Param

LAYOUTS = ("plain", "transposed", "sliced", "expanded")
KINDS = (
    "normal", "none", "zero", "nan", "inf", "-inf", "rank-one", "constant", "zero-rows",
    "zero-columns", "zero-matrix", "one-entry", "spread",
)  # fmt: skip
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_ANY_DTYPE = hasattr(torch.Tensor, "grad_dtype")  # torch before 2.9 has one for both

_generator = torch.Generator()


def weight(spec: Param) -> nn.Parameter:
    """The parameter at the start."""
    X = (
        torch.zeros(spec.shape, dtype=torch.float64)
        if spec.zero
        else _normal(spec.shape, spec.seed)
    )
    return nn.Parameter(laid_out(X.to(spec.dtype), spec.layout))


def gradient(spec: Grad, param: Param, seed: int) -> Tensor | None:
    """The gradient of a parameter in a step with this seed."""
    if spec.kind == "none":
        return None
    dtype = spec.dtype if spec.dtype and _ANY_DTYPE else param.dtype
    G = _pattern(spec.kind, param.shape, (1_000_003 * seed + param.seed) % 2**31)
    if spec.kind != "spread":
        G *= spec.scale / G.abs().amax().clamp_min(torch.finfo(G.dtype).tiny)
    most = torch.finfo(dtype).max
    G = laid_out(G.clamp(-most, most).to(dtype), spec.layout)
    if spec.kind in NOT_FINITE:
        G[tuple(seed % size for size in G.shape)] = NOT_FINITE[spec.kind]
    return G


def _pattern(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A gradient in float64, up to its scale."""
    G = _normal(shape, seed)
    if kind == "zero":
        return G.zero_()
    if kind == "constant":
        return torch.ones_like(G)
    if kind == "one-entry":
        one = torch.zeros_like(G)
        one.view(-1)[seed % one.numel()] = 1.0
        return one
    if kind == "spread":  # from the smallest to the largest numbers of float32, in one gradient
        return G.sign() * 10.0 ** (38 * G.tanh())
    if G.ndim < 2:
        return G
    if kind == "rank-one":
        return G[..., :1] * G[..., :1, :]
    if kind == "zero-rows":
        G[..., ::2, :] = 0
    elif kind == "zero-columns":
        G[..., 1:] = 0
    elif kind == "zero-matrix":  # one of a stack or of a weight that is cut into parts
        G[: max(1, G.shape[0] // 2)] = 0
    return G


def _normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=_generator.manual_seed(seed), dtype=torch.float64)


def laid_out(X: Tensor, layout: str) -> Tensor:
    """X with other strides: transposed, every second entry of a larger tensor, or one for all."""
    if X.ndim == 0 or layout == "plain":
        return X
    if layout == "transposed":
        return X.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced":
        return torch.stack([X, torch.full_like(X, 7.0)], -1)[..., 0]
    if layout == "expanded" and torch.equal(
        X, X.view(-1)[0].expand_as(X)
    ):  # what .sum() hands back
        return X.view(-1)[0].clone().expand(X.shape)
    return X
