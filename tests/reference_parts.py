"""What the references of `reference.py` are made of: settings, directions, κ and eigenbases.

Naive float64, written from the formulas and not from `src`; the legend is that of `reference.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Variant = Literal["default", "factored", "instantaneous"]
MSign = Literal["svd", "newton-schulz", "polar-express", "soft", "firm"]

EPS64 = float(np.finfo(np.float64).eps)

NEWTON_SCHULZ = [(3.4445, -4.7750, 2.0315)] * 5
POLAR_EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]
# The safety factor leaves room for rounding above 1; the last step need not leave any.
POLAR_EXPRESS[:-1] = [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in POLAR_EXPRESS[:-1]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of every method; a method reads those it has and ignores the others.

    `betas` are the method's own, in its own order. `sign_stabilize=None` is the method's default:
    on for AdaMuon, off for DeVA. `first_bases` replaces the first eigendecomposition, because the
    null space of a singular covariance is arbitrary.
    """

    lr: float
    betas: tuple[float, ...]
    eps: float = 1e-8
    weight_decay: float = 0.0
    nesterov: bool = False
    refresh_every: int = 10
    covariance_every: int = 1
    sign_stabilize: bool | None = None
    msign: MSign = "svd"
    sides: Literal["both", "short"] = "both"
    max_dim: int | None = None
    skip_first: bool = False
    graft: Literal["adam", "none"] = "adam"
    ema_rate: float = 0.999
    adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    first_bases: tuple[Array | None, Array | None] | None = None


# Building blocks


def ratio(a: Array, b: Array) -> Array:
    """Return a / b, where 0/0 is 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=a != 0)


def with_norm(U: Array, norm: float) -> Array:
    """Return U scaled to a Frobenius norm; a zero stays zero."""
    return U * (norm / float(np.linalg.norm(U))) if U.any() else U


def decayed(X: Array, U: Array, o: Settings, s: float = 1.0) -> Array:
    """Return (1 - lr weight_decay) X - lr s U."""
    return (1 - o.lr * o.weight_decay) * X - o.lr * s * U


def looked_ahead(M: Array, G: Array, o: Settings) -> Array:
    """Return D: the momentum, or with Nesterov beta1 M + (1 - beta1) G."""
    return o.betas[0] * M + (1 - o.betas[0]) * G if o.nesterov else M


def adam_update(M: Array, V: Array, t: int, o: Settings) -> Array:
    """Return Adam's bias-corrected M / (sqrt(V) + eps)."""
    M_hat = M / (1 - o.betas[0] ** t)
    V_hat = V / (1 - o.betas[1] ** t)
    return ratio(M_hat, np.sqrt(V_hat) + o.eps)


def settled_sign(A: Array) -> Array:
    """Return sign(A), and 0 for the entries that are no more than rounding noise."""
    noise = 8 * np.sqrt(max(A.shape)) * EPS64 * np.abs(A).max()
    return np.where(np.abs(A) <= noise, 0.0, np.sign(A))


def spectral_scale(X: Array) -> float:
    """Return 0.2 sqrt(max(n, m)), which gives an orthogonal update the RMS of Adam's."""
    return 0.2 * float(np.sqrt(max(X.shape)))


def msign(A: Array, kind: MSign) -> Array:
    """Return the polar factor of an n x m matrix, exact for "svd"; zero for zero.

    "soft" is what the steps for [A, c I] make of A, c^2 being the mean of A's squared singular
    values, at the norm of a polar factor. In "firm" c is no more than a 32nd of the norm of A.
    """
    if not A.any():
        return np.zeros_like(A)
    if kind == "svd":
        U, sigma, Vt = np.linalg.svd(A, full_matrices=False)
        kept = sigma > max(A.shape) * EPS64 * sigma[0]
        return np.asarray(U[:, kept] @ Vt[kept])
    if kind == "newton-schulz":
        return quintic_msign(A / np.linalg.norm(A), NEWTON_SCHULZ)
    if kind == "polar-express":
        return quintic_msign(A / (1.01 * np.linalg.norm(A)), POLAR_EXPRESS)
    if A.shape[0] > A.shape[1]:
        return msign(A.T, kind).T
    n, m = A.shape
    c = np.linalg.norm(A) * np.sqrt(softness(n, kind) / n)
    both = np.hstack([A, c * np.eye(n)])
    steps, least = 0, c / np.linalg.norm(both)
    while steps == 0 or least < 0.7:
        steps, least = steps + 1, 3.4445 * least
    lifted = quintic_msign(both / np.linalg.norm(both), steps * NEWTON_SCHULZ[:1])
    return with_norm(lifted[:, :m], float(np.sqrt(n)))


def softness(n: int, kind: MSign) -> float:
    """Return c^2 over the mean of the n squared singular values, whose sum is the squared norm."""
    return min(1.0, n / 32**2) if kind == "firm" else 1.0


def quintic_msign(A: Array, coefficients: Sequence[tuple[float, float, float]]) -> Array:
    """Return A after the steps A <- a A + (b K + c K^2) A with K = A A^T, on the short side."""
    if A.shape[0] > A.shape[1]:
        return quintic_msign(A.T, coefficients).T
    for a, b, c in coefficients:
        K = A @ A.T
        A = a * A + (b * K + c * K @ K) @ A
    return A


def best_soft_sign(A: Array, kind: Literal["soft", "firm"]) -> Array:
    """Return (A A^T + c^2 I)^(-1/2) A at the norm of a polar factor, for n <= m, as lean has it.

    The root is that of the fewest best quintics which lift the least singular value that [A, c I]
    can have, over the greatest, to between 0.6 and 1.4.
    """
    n, share = len(A), softness(len(A), kind)
    K = A @ A.T
    K = K + share * np.trace(K) / n * np.eye(n)
    K = K / np.linalg.norm(K)
    F, least, most = np.eye(n), np.sqrt(share / (n + share)), 1.0
    while most == 1.0 or most > 1.4:
        a, b, c = best_quintic(least, most)
        P = a * np.eye(n) + b * K + c * K @ K
        F, K = P @ F, P @ K @ P
        most = 1 + abs(1 - (a * least + b * least**3 + c * least**5))
        least = 2 - most
    return with_norm(F @ A, float(np.sqrt(n)))


def best_quintic(least: float, most: float) -> tuple[float, float, float]:
    """Return a, b, c of the odd quintic that is nearest to 1 between two numbers (Remez)."""
    x = np.array([least, 0.75 * least + 0.25 * most, 0.25 * least + 0.75 * most, most])
    for _ in range(50):
        system = np.stack([x, x**3, x**5, [1, -1, 1, -1]], axis=1)
        a, b, c, _ = np.linalg.solve(system, np.ones(4))
        x[1:3] = np.sqrt(np.sort(np.roots([5 * c, 3 * b, a]).real))
    return float(a), float(b), float(c)


def kappa(t: int, beta1: float, beta2: float, variant: Variant = "default") -> float:
    """Return the bias correction that makes Gamma 1 at step t >= 1 of a constant gradient."""
    s = u = w = instantaneous = 0.0
    for _ in range(t):
        s = beta1 * s + (1 - beta1)  # M = s G
        w = beta2 * w + (1 - beta2) * s**2  # V = w r c^T
        u = beta2 * u + (1 - beta2) * s  # V_r = u r, V_c = u c
        instantaneous = beta2 * instantaneous + (1 - beta2)  # V = instantaneous r c^T, of G
    if variant == "instantaneous":
        return float(np.sqrt(instantaneous))
    return u / s if variant == "factored" else float(np.sqrt(w)) / s


def symmetric_power(C: Array, p: float) -> Array:
    """Return C^p of a positive semi-definite C on its range, and zero on its null space."""
    lam, Q = np.linalg.eigh(C)
    kept = lam > len(C) * EPS64 * lam[-1]
    return np.asarray(Q[:, kept] * lam[kept] ** p @ Q[:, kept].T)


# Bases


def refreshed(C: Array, Q: Array) -> Array:
    """Return the basis after one power iteration and QR, its columns in the order of Q's."""
    rayleigh = np.array([q @ C @ q for q in Q.T])
    order = np.argsort(-rayleigh, kind="stable")  # the leading directions come first in QR
    null = rayleigh <= 4 * EPS64 * np.trace(C)  # of these C would leave nothing but rounding
    Q_new = np.empty_like(Q)
    Q_new[:, order] = np.linalg.qr(np.where(null, Q, C @ Q)[:, order])[0]
    return Q_new


def inverse_root(C: Array, eps: float, p: float) -> Array:
    """Return (C + eps I)^(-p) of a positive semi-definite C, a zero eigenvalue staying zero."""
    lam, Q = np.linalg.eigh(C)
    lam = np.maximum(lam, 0.0) + eps  # rounding may leave an eigenvalue just below zero
    return np.asarray(Q * np.power(lam, -p, out=np.zeros_like(lam), where=lam > 0) @ Q.T)


class Kronecker:
    """The covariances C = [L, R] and bases Q = [Q_L, Q_R]; a side not `own` keeps the identity.

    k counts the gradients from the first that is not zero; it is 0 before.
    """

    def __init__(self, X: Array, o: Settings) -> None:
        longest = max(X.shape) if o.max_dim is None else o.max_dim
        shortest = min(X.shape) if o.sides == "short" else max(X.shape)
        self.own = [i for i in (0, 1) if X.shape[i] <= min(longest, shortest)]
        self.C = [np.zeros((size, size)) for size in X.shape]
        self.Q = [np.eye(size) for size in X.shape]
        self.o, self.k = o, 0

    def count(self, G: Array) -> int:
        """Return k, the gradient G included."""
        self.k += bool(self.k or G.any())
        return self.k

    def accumulate(self, G: Array, beta: float) -> None:
        """Update L = EMA[G G^T] and R = EMA[G^T G]."""
        for i in self.own:
            self.C[i] = beta * self.C[i] + (1 - beta) * (G @ G.T if i == 0 else G.T @ G)

    def decompose(self) -> None:
        """Renew the bases by a full eigendecomposition, or at the first by those given."""
        given = (self.o.first_bases if self.k == 1 else None) or (None, None)
        for i in self.own:
            Q = given[i]
            self.Q[i] = np.linalg.eigh(self.C[i])[1] if Q is None else Q

    def begin(self, G: Array) -> bool:
        """Take the bases of the first gradient; return whether that is all it serves for."""
        if self.count(G) == 1:
            self.accumulate(G, self.o.betas[2])
            self.decompose()
        return self.k == 1 and self.o.skip_first

    def follow(self, G: Array) -> None:
        """Take in G after the update, unless it began the bases, and renew them when due."""
        if self.k > 1:
            self.accumulate(G, self.o.betas[2])
            if (self.k - self.o.skip_first) % self.o.refresh_every == 0:
                for i in self.own:
                    self.Q[i] = refreshed(self.C[i], self.Q[i])

    def project(self, A: Array) -> Array:
        """Return Q_L^T A Q_R."""
        return self.Q[0].T @ A @ self.Q[1]

    def restore(self, A: Array) -> Array:
        """Return Q_L A Q_R^T."""
        return self.Q[0] @ A @ self.Q[1].T
