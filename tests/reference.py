"""Naive float64 references of every optimizer, written from the formulas and not from `src`.

Each method is a generator that reads as its algorithm: one matrix X, its gradients one after
another, and X after each step. Speed, memory and in-place work are of no concern here.

    X, G      parameter and gradient, n x m          D        what the direction is taken of
    M         EMA (beta1) of G, parameter coords     U        the update before lr and scale
    V         EMA (beta2), the second moment         Gamma    variance adaptation
    L, R      EMAs (beta3) of G G^T and G^T G        r, c     row and column norms, n x 1 and 1 x m
    Q_L, Q_R  orthonormal eigenbases of L and R      o        settings
    t         steps of the parameter                 k        gradients since the first non-zero one

A method whose step has its full length however small its momentum is (Muon, AdaMuon, DeVA-S-inf,
SPlus) rests at a gradient of zero: its state stays, and only weight decay moves X.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_parts import (
    Array,
    Kronecker,
    Settings,
    Variant,
    adam_update,
    best_soft_sign,
    decayed,
    inverse_root,
    kappa,
    looked_ahead,
    msign,
    ratio,
    refreshed,
    settled_sign,
    spectral_scale,
    symmetric_power,
    with_norm,
)

# Elementwise methods: X of any shape


def adamw(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of AdamW."""
    beta1, beta2 = o.betas[:2]
    M, V = np.zeros_like(X), np.zeros_like(X)
    for t, G in enumerate(grads, start=1):
        M = beta1 * M + (1 - beta1) * G
        V = beta2 * V + (1 - beta2) * G**2
        X = decayed(X, adam_update(M, V, t, o), o)
        yield X


def signum(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of Signum."""
    beta1 = o.betas[0]
    M = np.zeros_like(X)
    for G in grads:
        M = beta1 * M + (1 - beta1) * G
        X = decayed(X, np.sign(looked_ahead(M, G, o)), o)
        yield X


def lion(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of Lion."""
    beta1, beta2 = o.betas[:2]
    M = np.zeros_like(X)
    for G in grads:
        X = decayed(X, np.sign(beta1 * M + (1 - beta1) * G), o)
        M = beta2 * M + (1 - beta2) * G
        yield X


def deva_linf(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of DeVA-l-infinity."""
    beta1, beta2 = o.betas[:2]
    M, V, t = np.zeros_like(X), np.zeros_like(X), 0
    for G in grads:
        t += bool(t or G.any())  # kappa waits through leading zeros, where Gamma is 0 anyway
        M = beta1 * M + (1 - beta1) * G
        V = beta2 * V + (1 - beta2) * M**2
        Gamma = kappa(max(t, 1), beta1, beta2) * ratio(np.abs(M), np.sqrt(V + o.eps * V.mean()))
        X = decayed(X, Gamma * np.sign(looked_ahead(M, G, o)), o)
        yield X


# Matrix methods: X is n x m


def muon(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of Muon."""
    beta1 = o.betas[0]
    M = np.zeros_like(X)
    for G in grads:
        if not G.any():
            X = decayed(X, G, o)
            yield X
            continue
        M = beta1 * M + (1 - beta1) * G
        scale = max(1.0, X.shape[0] / X.shape[1]) ** 0.5
        scale = scale if o.adjust_lr_fn == "original" else spectral_scale(X)
        X = decayed(X, msign(looked_ahead(M, G, o), o.msign), o, scale)
        yield X


def adamuon(
    X: Array, grads: Sequence[Array], o: Settings, by_rows: bool = False
) -> Iterator[Array]:
    """Yield X after each step of AdaMuon; `by_rows`, of NorMuon, which has one number a row."""
    beta1, beta2 = o.betas[:2]
    M, V = np.zeros_like(X), np.zeros_like(X)
    for G in grads:
        if not G.any():
            X = decayed(X, G, o)
            yield X
            continue
        M = beta1 * M + (1 - beta1) * G
        D = looked_ahead(M, G, o)
        O_t = msign(D if o.sign_stabilize is False or by_rows else np.sign(D), o.msign)
        squares = np.array([[np.mean(row**2)] * len(row) for row in O_t]) if by_rows else O_t**2
        V = beta2 * V + (1 - beta2) * squares
        U = ratio(O_t, np.sqrt(V) + o.eps)
        X = decayed(X, with_norm(U, 0.2 * float(np.sqrt(X.size))), o)
        yield X


def soap(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of SOAP."""
    beta1, beta2, _ = o.betas
    M, V, t, basis = np.zeros_like(X), np.zeros_like(X), 0, Kronecker(X, o)
    for G in grads:
        if basis.begin(G):
            yield X
            continue
        t += 1
        M = beta1 * M + (1 - beta1) * G
        V = beta2 * V + (1 - beta2) * basis.project(G) ** 2
        X = decayed(X, basis.restore(adam_update(basis.project(M), V, t, o)), o)
        basis.follow(G)
        yield X


def deva_sinf(
    X: Array, grads: Sequence[Array], o: Settings, variant: Variant = "default"
) -> Iterator[Array]:
    """Yield X after each step of DeVA-S-infinity."""
    beta1, beta2, _ = o.betas
    M, V, V_r, V_c = (np.zeros_like(A) for A in (X, X, X[:, :1], X[:1, :]))
    basis = Kronecker(X, o)
    for G in grads:
        if not G.any() or basis.begin(G):
            X = X if G.any() else decayed(X, G, o)
            yield X
            continue
        t = max(basis.k - o.skip_first, 1)  # as in DeVA-l-infinity
        M = beta1 * M + (1 - beta1) * G
        A = basis.project(G if variant == "instantaneous" else M)
        r = np.sqrt((A**2).sum(axis=1, keepdims=True))
        c = np.sqrt((A**2).sum(axis=0, keepdims=True))
        V = beta2 * V + (1 - beta2) * r @ c
        V_r = beta2 * V_r + (1 - beta2) * r
        V_c = beta2 * V_c + (1 - beta2) * c
        V_all = V_r @ V_c if variant == "factored" else V + o.eps * V.mean()
        Gamma = kappa(t, beta1, beta2, variant) * np.sqrt(ratio(r @ c, V_all))
        D = basis.project(looked_ahead(M, G, o))
        D = settled_sign(D) if o.sign_stabilize else D
        X = decayed(X, basis.restore(Gamma * msign(D, o.msign)), o, spectral_scale(X))
        basis.follow(G)
        yield X


def whitened(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of the whitened variant of DeVA-S-infinity."""
    beta1, beta2, _ = o.betas
    M, V, basis = np.zeros_like(X), np.zeros_like(X), Kronecker(X, o)
    for G in grads:
        if not G.any() or basis.begin(G):
            X = X if G.any() else decayed(X, G, o)
            yield X
            continue
        M = beta1 * M + (1 - beta1) * G
        V = beta2 * V + (1 - beta2) * basis.project(G) ** 2
        D = basis.project(looked_ahead(M, G, o))
        U = msign(ratio(D, np.sqrt(V + o.eps * V.mean())), o.msign)
        X = decayed(X, basis.restore(U), o, spectral_scale(X))
        basis.follow(G)
        yield X


def lean(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of the lean variant of DeVA-S-infinity."""
    if X.shape[0] > X.shape[1]:
        yield from (Y.T for Y in lean(X.T, [G.T for G in grads], o))
        return
    beta1, beta2, beta3 = o.betas
    beta3 **= o.covariance_every
    M, L, Q, k = np.zeros_like(X), np.zeros((len(X), len(X))), np.eye(len(X)), 0
    r, c = np.zeros(len(X)), np.zeros(X.shape[1])
    has_basis = o.max_dim is None or len(X) <= o.max_dim
    for G in grads:
        if not G.any():
            X = decayed(X, G, o)
            yield X
            continue
        k += 1
        if k == 1 and has_basis:
            L = (1 - beta3) * G @ G.T
            Q = refreshed(L, refreshed(L, Q))
            r = np.diag(Q.T @ L @ Q)
        if k == 1 and o.skip_first:
            yield X
            continue
        M = beta1 * M + (1 - beta1) * G
        c = beta2 * c + (1 - beta2) * (G**2).mean(axis=0)
        r = r if has_basis else beta2 * r + (1 - beta2) * (G**2).mean(axis=1)
        B = looked_ahead(M, G, o) / np.sqrt(c / c.mean() + o.eps)
        W = np.diag(1 / np.sqrt(r / r.mean() + o.eps)) @ Q.T
        soft = o.msign == "soft" or o.msign == "firm"
        U = Q @ (best_soft_sign(W @ B, o.msign) if soft else msign(W @ B, o.msign))
        X = decayed(X, U, o, spectral_scale(X))
        if k > 1 and has_basis:
            if (k - o.skip_first) % o.covariance_every == 0:
                L = beta3 * L + (1 - beta3) * G @ G.T
            if (k - o.skip_first) % o.refresh_every == 0:
                Q = refreshed(L, Q)
            r = np.diag(Q.T @ L @ Q)
        yield X


def shampoo(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X after each step of Shampoo."""
    beta1, beta2, beta3 = o.betas
    M, V, basis = np.zeros_like(X), np.zeros_like(X), Kronecker(X, o)
    P = [np.eye(size) for size in X.shape]  # P_L, P_R
    for t, G in enumerate(grads, start=1):
        M = beta1 * M + (1 - beta1) * G
        V = beta2 * V + (1 - beta2) * G**2
        basis.accumulate(G, beta3)
        k = basis.count(G)
        if k and (k == 1 or k % o.refresh_every == 0):
            for i in basis.own:
                P[i] = inverse_root(basis.C[i] / (1 - beta3**t), o.eps, 1 / (2 * len(basis.own)))
        U = P[0] @ looked_ahead(M, G, o) @ P[1]
        if o.graft == "adam":
            U = with_norm(U, float(np.linalg.norm(adam_update(M, V, t, o))))
        X = decayed(X, U, o)
        yield X


def splus(X: Array, grads: Sequence[Array], o: Settings) -> Iterator[Array]:
    """Yield X, not averaged, after each step of SPlus."""
    beta1, beta_cov = o.betas[:2]
    M, basis = np.zeros_like(X), Kronecker(X, o)
    scaled = replace(o, lr=o.lr * 2 / sum(X.shape))  # the decay is scaled as well
    for G in grads:
        if not G.any():
            X = decayed(X, G, scaled)
            yield X
            continue
        M = beta1 * M + (1 - beta1) * G
        D = basis.project(looked_ahead(M, G, o))
        U = settled_sign(D) if basis.k and basis.own else np.sign(D)
        X = decayed(X, basis.restore(U), scaled)
        basis.accumulate(G, beta_cov)
        k = basis.count(G)
        if k and (k == 1 or k % o.refresh_every == 0):
            basis.decompose()
        yield X


# What the tests call

Method = Callable[[Array, Sequence[Array], Settings], Iterator[Array]]

ELEMENTWISE: dict[str, Method] = {
    "adamw": adamw,
    "signum": signum,
    "lion": lion,
    "deva-linf": deva_linf,
}
MATRIX: dict[str, Method] = {
    "muon": muon,
    "muon-original": muon,
    "adamuon": adamuon,
    "normuon": partial(adamuon, by_rows=True),
    "soap": soap,
    "deva-sinf": deva_sinf,
    "deva-sinf-factored": partial(deva_sinf, variant="factored"),
    "deva-sinf-instantaneous": partial(deva_sinf, variant="instantaneous"),
    "deva-sinf-whitened": whitened,
    "deva-sinf-lean": lean,
    "shampoo": shampoo,
    "splus": splus,
}


def trajectory(
    method: str, X: npt.ArrayLike, grads: Sequence[npt.ArrayLike], **settings: Any
) -> list[Array]:
    """Return the parameter after each step, in float64; `settings` are those of `Settings`."""
    X = np.asarray(X, dtype=np.float64)
    Gs = [np.asarray(G, dtype=np.float64) for G in grads]
    o = Settings(**settings)
    if method in ELEMENTWISE:
        return list(ELEMENTWISE[method](X, Gs, o))
    steps = [np.empty_like(X) for _ in Gs]
    Q_L, Q_R = o.first_bases or (None, None)
    for b in np.ndindex(X.shape[:-2]):
        first_bases = (None if Q_L is None else Q_L[b], None if Q_R is None else Q_R[b])
        alone = replace(o, first_bases=first_bases)
        for step, X_b in zip(steps, MATRIX[method](X[b], [G[b] for G in Gs], alone), strict=True):
            step[b] = X_b
    return steps


def averaged(X: npt.ArrayLike, grads: Sequence[npt.ArrayLike], **settings: Any) -> Array:
    """Return SPlus's averaged weights after the last step."""
    rho = Settings(**settings).ema_rate
    steps = trajectory("splus", X, grads, **settings)
    A = np.zeros_like(steps[0])
    for X_t in steps:
        A = rho * A + (1 - rho) * X_t
    return np.asarray(A / (1 - rho ** len(steps)))


def kronecker_update(G: Array, samples: Sequence[Array]) -> Array:
    """Return E[L^(1/2) x R^(1/2)]^(-1/2) (L x R)^(1/4) vec(msign(G)) in full, as an n x m matrix.

    L = G G^T and R = G^T G, x is the Kronecker product and E the mean over `samples`, which share
    the eigenbases of G (Theorem "Coordinate-wise DeVA-S-infinity", without its minus sign).
    Powers act on the range. Row-major vec gives (A x B) vec(X) = vec(A X B^T).
    """
    H_mean = np.zeros((G.size, G.size))
    for S in samples:
        H = np.kron(symmetric_power(S @ S.T, 1 / 2), symmetric_power(S.T @ S, 1 / 2))
        H_mean += H / len(samples)
    H_root = symmetric_power(np.asarray(np.kron(G @ G.T, G.T @ G), dtype=np.float64), 1 / 4)
    update = symmetric_power(H_mean, -1 / 2) @ H_root @ msign(G, "svd").reshape(-1)
    return np.asarray(update.reshape(G.shape))
