"""One step of a batch, from top to bottom: every method passes through `advance_`.

    X ← (1 − ηλ) X − η · s · restore(Γ ⊙ direction(project(D)))

    G, M      B×…×n×m        gradient and its EMA
    D         B×…×n×m        what the momentum shows the direction: M, or with Nesterov a look ahead
    L, R      B×…×n×n, m×m   EMAs of G Gᵀ and Gᵀ G
    Q_L, Q_R  as L, R        their eigenbases; None stands for the identity
    X_        B×…×n×m        X in the basis, Q_Lᵀ X Q_R
    V, Γ, κ                  running averages, variance adaptation and its bias correction
    O, U      B×…×n×m        direction and update

The numbers beside the lines are those of “One step of DeVA-S∞” in docs/maths.md. Functions that end
in an underscore change the state of the batch they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from types import FunctionType
from typing import TypeVar

import torch
from torch import Tensor

from .bases import (
    BASES,
    SIDES,
    eigenbasis_,
    first_bases,
    inverse_root_,
    project,
    rayleigh,
    refresh_,
    restore,
)
from .batch import LARGE, Batch, Item, gather, scatter
from .codes import CODES, PRECISION
from .directions import CONSTANTS, SOFT, fast_dtype, polar, settled_sign, soft_in_basis
from .linalg import (
    Columns,
    Number,
    Quotient,
    Term,
    add_,
    add_gram_,
    average_,
    both,
    frobenius,
    host_sees,
    inverse_norm,
    matrix_norms,
    mirror_,
    over,
    scalar_dtype,
    scaled,
    value,
)
from .measures import basis_drift, msign_error, update_ratio
from .methods import covariance_period
from .notices import warn_caller
from .units import UNSET
from .variance import (
    ADAM,
    Adaptation,
    Evidence,
    bias_correction,
    column_squares,
    ema_mass,
    inverse_root,
)

_T = TypeVar("_T", Tensor, Number)


def advance_(b: Batch) -> None:
    """Take one step of a batch: weights, averages and bases."""
    basis = b.method.basis
    has_roots = basis is not None and basis.includes_gradient
    if basis is not None:
        if b.items[0].waiting or b.nonzero is not None:
            start_(b)
        if has_roots:
            renew_roots_(b)
        elif basis.tracked and b.fresh is not None:
            accumulate_(b, where=b.fresh)  # 2  the first gradient chooses the basis
            choose_bases_(b, b.fresh)
    # On an accelerator any gradient may be zero, and b.finite says so to the graph.
    known = b.nonzero is None or b.finite is not None
    steady = b.fresh is None and known and b.record is None
    U, kappa = compiled(b) if steady and b.group["compile"] else computed(b)
    write_(b, U, kappa)  # 5
    if b.group["ema_rate"] is not None and "weight_avg" in b.names:
        average_weights_(b)
    if basis is not None and not has_roots:
        track_bases_(b)  # 6
    b.write_back()


def computed(b: Batch) -> tuple[Term, Number]:
    """The update and κ; the averages take in the gradient."""
    if b.method.lean:
        return lean_(b)  # 1, 3–5
    M, D = momentum_(b)  # 1
    rooted = b.method.basis is not None and b.method.basis.includes_gradient
    return rooted_(b, M, D) if rooted else update_(b, M, D)


def compiled(b: Batch) -> tuple[Term, Number]:
    """What `computed` returns, by one graph of torch.compile for each shape.

    The learning rate and the weight decay are no part of it, and counts of steps come as tensors,
    so that nothing is compiled again when they change. β and ε are constants of it.
    """
    b.count()
    backend = "inductor" if b.group["compile"] is True else b.group["compile"]
    return _graph(backend, b.method.name, b.G.shape, b.dtype, b.G.device)(b)


@cache
def _graph(backend: str, *key: object) -> Callable[[Batch], tuple[Term, Number]]:
    """What is compiled for a key, as long as torch compiles it: one function eight times at most.

    So each key has a function of its own.
    """
    for function in CONSTANTS:  # not where they are defined: that would import half of torch
        torch.compiler.assume_constant_result(function)  # type: ignore[no-untyped-call]
    own = FunctionType(computed.__code__.replace(), globals())
    graph: Callable[[Batch], tuple[Term, Number]]
    graph = torch.compile(own, fullgraph=True, dynamic=False, backend=backend)

    def run(b: Batch) -> tuple[Term, Number]:
        nonlocal graph
        try:
            return graph(b)
        except Exception as error:  # raised before anything is computed
            if not type(error).__name__.endswith("LimitHit"):  # its name depends on the version
                raise
        warn_caller(
            f"the update of {b.method.name} for tensors of shape {tuple(b.G.shape)} was compiled "
            "for eight values of betas or eps, and is no longer compiled; keep them constant, or "
            "leave compile out",
        )
        graph = computed
        return computed(b)

    return run


# 1  The momentum, and what it shows the direction -------------------------------------------------


def momentum_(b: Batch) -> tuple[Tensor, Tensor]:
    """M ← β₁ M + (1 − β₁) G, in the coordinates that M is kept in; returns M and D."""
    beta1, beta2, _ = b.betas
    M, G = b.state["exp_avg"], gradient_in_basis(b) if b.method.rotated else b.G
    if b.method.momentum == "lion":
        D = M.lerp(G, 1 - beta1)
        M.lerp_(G, b.weight(beta2, b.gate))
        return M, D
    M.lerp_(G, b.weight(beta1, b.gate))
    if b.method.momentum == "ema" and b.group["nesterov"]:
        return M, G.lerp(M, beta1)
    return M, M


def gradient_in_basis(b: Batch) -> Tensor:
    """G_ = Q_Lᵀ G Q_R, computed once a step."""
    if b.projected is None:
        b.projected = project(b.G, b.Q_L, b.Q_R)
    return b.projected


# 3–5  The update ----------------------------------------------------------------------------------


def update_(b: Batch, M: Tensor, D: Tensor) -> tuple[Term, Number]:
    """restore(Γ ⊙ direction(D_)) and κ; where Γ whitens, restore(direction(Γ ⊙ D_)) and 1."""
    method, adaptation = b.method, b.method.adaptation
    turned = b.Q_L is not None or b.Q_R is not None
    M_, D_ = M, D
    if turned and not method.rotated:
        D_ = project(D, b.Q_L, b.Q_R)
        M_ = D_ if D is M or adaptation is None else project(M, b.Q_L, b.Q_R)
    U: Term
    kappa: Number = 1.0
    if adaptation is None:
        U = direction(b, D_)
    elif method.whitens:
        gamma, _ = gamma_of(b, adaptation, None, observe_(b, adaptation, M_))
        U = direction(b, value(gamma).mul_(D_))  # a factor such as κ is lost in the direction
    elif method.direction == "sign" and D_ is M_:
        # Γ is |M| over the noise, and sign(M) |M| is M: no sign needs to be taken.
        U, kappa = gamma_of(b, adaptation, M_, observe_(b, adaptation, M_))
        _record_gamma(b, U, kappa)
    else:
        U, kappa = _adapted_direction_(b, adaptation, M_, D_)
    return (restore(value(U), b.Q_L, b.Q_R) if turned else U), kappa


def _adapted_direction_(
    b: Batch, adaptation: Adaptation, M_: Tensor, D_: Tensor
) -> tuple[Tensor, Number]:
    """Γ ⊙ direction(D_) and κ. V takes in M_ first: the direction may use up its memory."""
    of_direction = adaptation.source == "direction"
    measured = () if of_direction else observe_(b, adaptation, M_)
    signal = M_.abs() if b.method.direction == "sign" else None
    O = value(direction(b, D_))
    del M_, D_  # Freed here: Γ is allocated next.
    if of_direction:
        measured = observe_(b, adaptation, O)
    gamma, kappa = gamma_of(b, adaptation, signal, measured)
    gamma = value(gamma)
    _record_gamma(b, gamma, kappa)
    return O.mul_(gamma), kappa


def _record_gamma(b: Batch, gamma: Tensor | Quotient, kappa: Number) -> None:
    if b.record is not None:
        written = gamma.over / gamma.under if isinstance(gamma, Quotient) else gamma
        trust = (written.abs() * kappa).expand(b.G.shape)
        b.record |= {"gamma_norm": matrix_norms(trust), "gamma_mean": trust.mean((-2, -1))}


def direction(b: Batch, D: Tensor) -> Term:
    """The direction of D; its memory is used up if D is not the momentum itself."""
    sign = torch.sign if b.method.basis is None else settled_sign
    if b.method.direction == "sign":
        return sign(D)
    if b.group["sign_stabilize"]:
        D = sign(D)
    kind, dtype = b.group["msign"], b.group["msign_dtype"] or fast_dtype(D)
    steps = b.group["ns_steps"] * (b.group["ns_coefficients"],) if kind == "newton-schulz" else None
    O = polar(D, kind, dtype=dtype, scratch=D is not b.state["exp_avg"], steps=steps)
    if b.record is not None:
        b.record["msign_error"] = msign_error(O)
    return O


def observe_(b: Batch, adaptation: Adaptation, X: Tensor) -> tuple[Term, ...]:
    """What is measured of X (or of the gradient in its place), also taken into the averages."""
    measured = adaptation.measure(gradient_in_basis(b) if adaptation.source == "gradient" else X)
    weight = b.weight(b.betas[1], b.gate)
    for name, term in zip(adaptation.averages, measured, strict=True):
        average_(b.state[name], term, weight)
    return measured


def gamma_of(
    b: Batch, adaptation: Adaptation, signal: Tensor | None, measured: tuple[Term, ...]
) -> tuple[Tensor | Quotient, Number]:
    """Γ and κ, from the running averages."""
    beta1, beta2, _ = b.betas
    moments = tuple([b.state[name] for name in adaptation.averages])
    w: Number = 1.0
    kappa: Number = 1.0
    if adaptation.kappa is not None:
        w = b.counted(adaptation.mass, beta1, beta2)
        kappa = b.counted(bias_correction, adaptation, beta1, beta2)
    mean = None if b.mean is None else b.broadcast(b.mean)
    evidence = Evidence(signal, measured, moments, w, b.group["eps"], b.unit, mean)
    return adaptation.gamma(evidence), kappa


def lean_(b: Batch) -> tuple[Term, Number]:
    """restore(msign(Γ ⊙ D_)) with Γ = 1 / √(r cᵀ) and a basis on the short side.

    Rotating the rows of a gradient leaves the norms of its columns alone: c is measured of G as it
    is, and the soft sign is taken without a projection. In the names here matrices are wide.
    """
    adaptation, tall = b.method.adaptation, b.part.shape[-2] > b.part.shape[-1]
    assert adaptation is not None
    M, G, Q = b.state["exp_avg"], b.G, b.Q_L
    M.lerp_(G, b.weight(b.betas[0], b.gate))
    if tall:
        M, G, Q = M.mT, G.mT, b.Q_R
    r, c, weight = b.state["variance_short"], b.state["variance_long"], b.weight(b.betas[1], b.gate)
    if Q is None:
        for average, squares in zip((r, c), adaptation.measure(G), strict=True):
            average_(average, squares, weight)
    else:  # r is that of the covariance, which changes after the update
        average_(c, column_squares(G), weight)
    # r is known to a few roundings of its mean, and has no part of what rounding makes of M.
    kept = b.items[0].state["exp_avg"].dtype
    of_M = PRECISION if kept in CODES else torch.finfo(kept).eps
    eps = max(b.group["eps"], 8 * torch.finfo(b.dtype).eps, of_M**2)
    ahead = b.betas[0] if b.group["nesterov"] else 1.0
    size: Number = 1.0
    kind = b.group["msign"]
    if kind in SOFT and b.group["msign_dtype"] in (None, b.dtype):
        B = Columns(M, G, ahead, inverse_root(c, eps))
        U, size = soft_in_basis(B, Q, inverse_root(r, eps), kind)
        if b.record is not None:
            b.record["msign_error"] = msign_error(U, size)
    else:
        D = M if ahead == 1 else G.lerp(M, ahead)
        gamma = value(adaptation.gamma(Evidence(None, (), (r, c), 1.0, eps)))
        U = value(restore(value(direction(b, gamma.mul_(project(D, Q, None)))), Q, None))
    return (U.mT if tall else U), size


def rooted_(b: Batch, M: Tensor, D: Tensor) -> tuple[Term, Number]:
    """Shampoo: L^(−1/4) D R^(−1/4), given the size of Adam's update if a second moment is kept."""
    U = restore(D, b.state.get("root_left"), b.state.get("root_right"))  # the roots are symmetric
    if b.method.adaptation is None:
        return U, 1.0
    A, kappa = gamma_of(b, ADAM, M, observe_(b, ADAM, M))
    U = value(U)
    return U * (frobenius(value(A)) * inverse_norm(U)), kappa


def write_(b: Batch, U: Term, kappa: Number) -> None:
    """X ← (1 − ηλ) X − η s κ U for every parameter of the batch."""
    rate = learning_rate(b.items[0], b.part.shape, b.dtype)
    factor = rate * b.method.scale(U, b.part.shape) * kappa
    shrink: Number = rate * b.group["weight_decay"]
    if b.record is not None:
        written = U.over / U.under if isinstance(U, Quotient) else U
        b.record["update_ratio"] = update_ratio(written, b.weights(), factor)
    if b.decays is not None:
        shrink = b.broadcast(b.decays).to(b.dtype) * shrink
    count = len(b.items)
    if b.gate is not None:
        U, factors = scaled(U, factor, where=b.broadcast(b.gate)), [1.0] * count
    elif not isinstance(factor, Tensor):
        factors = [factor] * count
    elif factor.numel() == count and host_sees(factor.device):  # spares a pass over U
        factors = factor.flatten().tolist()
    else:
        U, factors = scaled(U, factor), [1.0] * count
    U = U if count == 1 else value(U)
    for i, item in enumerate(b.items):
        X = item.param if b.plain else b.part.slice(item.param)
        wide = X.to(b.dtype) if b.plain else b.part.cut(X).to(b.dtype)
        mine = U[i : i + 1] if isinstance(U, Tensor) else U
        lost = shrink[i : i + 1] if isinstance(shrink, Tensor) and shrink.ndim else shrink
        add_(wide.unsqueeze(0), mine, keep=1 - lost, weight=-factors[i])
        if wide.data_ptr() != X.data_ptr():  # a copy: in half precision, or not laid out for it
            X.copy_(item.stored(b.part.unfold(wide, item.param), b.index))


def decay_(e: Item) -> None:
    """X ← (1 − ηλ) X: all that happens to a parameter that rests."""
    dtype = e.reading.dtype
    for i, part in enumerate(e.parts):
        X = part.slice(e.param)
        rate = learning_rate(e, part.shape, dtype)
        X.copy_(e.stored(X.to(dtype) * (1 - rate * e.reading.group["weight_decay"]), i))


def learning_rate(e: Item, shape: tuple[int, ...], dtype: torch.dtype) -> Number:
    """η, times what the method makes of the shape."""
    group = e.reading.group
    lr: Number = group["lr"]
    lr = lr * group["lr_factor"] if "lr_factor" in group else lr
    lr = lr.reshape(()).to(dtype) if isinstance(lr, Tensor) else lr
    return lr if e.reading.method.rate is None else lr * e.reading.method.rate(shape)


def average_weights_(b: Batch) -> None:
    """A ← A + (1 − ρ) / (1 − ρᵗ) (X − A), what `averaged` shows, if the t-th step counts.

    For a constant ρ that is the EMA with its bias correction. Whatever becomes of ρ, it stays an
    average.
    """
    steps = torch.stack([e.state["step"] for e in b.items])
    t, rate = steps.to(scalar_dtype(steps.device)).clamp_min_(1), b.group["ema_rate"]
    weight = (1 - rate) / ema_mass(t, rate)
    if not all(e.counted is True for e in b.items):
        counts = [torch.as_tensor(e.counted, device=b.G.device) for e in b.items]
        weight = weight * torch.stack(counts)
    b.state["weight_avg"].lerp_(b.weights(), b.broadcast(weight))


# 2, 6  Covariances and bases ----------------------------------------------------------------------
#
# A gradient that is exactly zero says nothing about the covariances: the basis of a matrix starts
# with its first gradient that is not.


def start_(b: Batch) -> None:
    """Find the matrices whose basis starts with this gradient, and those whose step counts.

    Needed while a parameter has matrices without a basis, which makes the host wait for the device
    as the first decomposition does in any case, and where a matrix of several has no gradient.
    """
    every = torch.ones(b.G.shape[:-2], dtype=torch.bool, device=b.G.device)
    nonzero = every if b.nonzero is None else b.nonzero
    counts = nonzero if b.method.rests else every
    if b.items[0].waiting and {"covariance_left", "covariance_right"} & b.names.keys():
        begun = torch.stack([_begun(e, b.index) for e in b.items])
        b.fresh = both(nonzero & ~begun.to(nonzero.device), b.finite)
        for item, fresh in zip(b.items, b.fresh, strict=True):
            item.state["waiting"].sub_(int(fresh.sum()))
        if b.group["skip_first"]:
            counts = counts & ~b.fresh
            b.gate = both(b.taken, ~b.fresh)
            b.decays = both(b.finite, ~b.fresh)
    key = "idle" + b.items[0].reading.suffixes[b.index]
    for counted, e in zip(counts, b.items, strict=True):
        if (idle := e.state.get(key)) is not None:
            took_part = counted if e.finite is None else counted & e.finite
            idle.add_(e.counted).sub_(took_part.to(idle.dtype))


def _begun(e: Item, index: int) -> Tensor:
    """Which matrices of a part had a gradient before this one."""
    return e.exponents(index) != UNSET if e.begun is None else e.begun[index]


def accumulate_(b: Batch, where: Tensor | None = None, members: list[int] | None = None) -> None:
    """L ← β₃ L + (1 − β₃) G Gᵀ, and R likewise, on the sides that have one; of all or of some.

    A covariance that takes in every k-th gradient alone has the decay β₃ᵏ.
    """
    beta, gate = b.betas[2] ** covariance_period(b.method, b.group), both(b.taken, where)
    G = b.G if where is None else torch.where(b.broadcast(where), b.G, 0)
    keep = 1 - b.weight(beta, gate)
    everyone = list(range(len(b.items)))
    for key, A in (("covariance_left", G), ("covariance_right", G.mT)):
        for some in _together(b, key, everyone if members is None else members):
            with b.some(key, some) as L:
                add_gram_(L, _take(some, A), keep=_take(some, keep), weight=1 - beta)


def choose_bases_(b: Batch, fresh: Tensor) -> None:
    """Q_L and Q_R of the matrices that start with this gradient, from the gradient itself."""
    if b.method.lean:
        choose_by_iteration_(b, fresh)
        return
    left, right = "basis_left" in b.names, "basis_right" in b.names
    for member, *matrix in fresh.nonzero().tolist():
        at = (member, *matrix)
        for key, Q in zip(BASES, first_bases(b.G[at], left=left, right=right), strict=True):
            if Q is not None:
                b.state[key][at] = Q
    for key in BASES:
        if key in b.names:
            scatter(b.state[key], b.tensors(key))


def choose_by_iteration_(b: Batch, fresh: Tensor) -> None:
    """Q of the matrices that start with this gradient, from axes turned twice towards it.

    That takes no decomposition, which would cost a large matrix as much as many steps.
    """
    everyone = list(range(len(b.items)))
    where = None if bool(fresh.all()) else fresh
    for _ in range(2):
        renew_(b, "basis", refresh_, everyone, where)
    b.Q_L, b.Q_R = _bases_of(b, everyone)
    measure_along_bases_(b, everyone)
    b.state["variance_short"] = _gathered(b, "variance_short", everyone)


def measure_along_bases_(b: Batch, members: list[int]) -> None:
    """r ← diag(Qᵀ L Q), for the next step."""
    for side in SIDES:
        for some in _together(b, f"basis_{side}", members):
            L, Q = (_gathered(b, f"{name}_{side}", some) for name in ("covariance", "basis"))
            kept = b.tensors("variance_short")
            torch._foreach_copy_([kept[i] for i in some], list(rayleigh(L, Q).unbind()))


def track_bases_(b: Batch) -> None:
    """Take the gradient into the covariances, and renew the bases that are due.

    The gradient that chose a basis is in its covariances already. SPlus, whose first step has the
    identity, chooses a basis here.
    """
    tracked = b.method.basis is not None and b.method.basis.tracked
    known = ~b.fresh if tracked and b.fresh is not None else None
    taken_in, due = _at(b, covariance_period(b.method, b.group)), _due(b)
    if known is not None:
        older = known.reshape(len(b.items), -1).any(1).tolist()
        taken_in, due = ([i for i in some if older[i]] for some in (taken_in, due))
    if taken_in:
        accumulate_(b, known, taken_in)
    if b.record is not None:
        b.record |= _drifts(b)
    if not tracked and b.fresh is not None:
        choose_bases_(b, b.fresh)
    if due and tracked:
        refresh_bases_(b, due, known)
    elif due:
        renew_(b, "basis", eigenbasis_, due)
    if b.method.lean and (taken_in or due):
        measure_along_bases_(b, sorted({*taken_in, *due}))


def refresh_bases_(b: Batch, due: list[int], known: Tensor | None) -> None:
    """Turn the bases of some members towards their covariances, and what is kept in them along."""
    kept, mask = [], both(b.taken, known)
    if b.method.rotated and (b.Q_L is not None or b.Q_R is not None):  # M turns with its basis
        for some in _together(b, "exp_avg", due):
            M = _take(some, b.state["exp_avg"])
            kept.append((some, value(restore(M, *_bases_of(b, some)))))
    short = min(b.part.shape[-2:])
    rank: Number = torch.inf
    sizes = [b.state[key].shape[-1] for key in BASES if key in b.names]
    if max(sizes, default=short) > short:
        rank = b.counted(_ranks, short, covariance_period(b.method, b.group))
    renew_(b, "basis", refresh_, due, known, rank=rank)
    for some, M in kept:
        new, old = project(M, *_bases_of(b, some)), _take(some, b.state["exp_avg"])
        new = new if mask is None else torch.where(over(_take(some, mask), new), new, old)
        b.state["exp_avg"][some] = new


def _ranks(t: Number, short: int, period: int) -> Number:
    """The largest rank of a covariance after t steps: of the first gradient and those taken in."""
    return (t if period == 1 else t // period + 2) * short


def _bases_of(b: Batch, some: list[int]) -> tuple[Tensor | None, Tensor | None]:
    """Q_L and Q_R of some members, as the parameters have them now."""
    Q_L, Q_R = (_gathered(b, key, some) if key in b.names else None for key in BASES)
    return Q_L, Q_R


def _gathered(b: Batch, key: str, some: list[int]) -> Tensor:
    """A state of some members, stacked, as the parameters have it now."""
    tensors = b.tensors(key)
    return gather([tensors[i] for i in some], b.dtype)


def _due(b: Batch) -> list[int]:
    """The members whose clock says that it is time for a refresh, or whose units have changed."""
    renewed = (i for i, e in enumerate(b.items) if e.renews)
    return sorted({*_at(b, b.group["refresh_every"]), *renewed})


def _at(b: Batch, period: int) -> list[int]:
    """The members whose clock is at a multiple of this period."""
    return [i for i, e in enumerate(b.items) if e.clock > 0 and e.clock % period == 0]


def renew_(
    b: Batch,
    name: str,
    solve_: Callable[..., None],
    members: list[int],
    where: Tensor | None = None,
    mass: Number | None = None,
    **settings: Number,
) -> None:
    """Renew what is made of the covariances, over their mass, on the sides that have it.

    The settings are numbers for each matrix, which are told to `solve_`.
    """
    mask = both(b.taken, where)
    for side in SIDES:
        for some in _together(b, f"{name}_{side}", members):
            with b.some(f"covariance_{side}", some) as C, b.some(f"{name}_{side}", some) as Q:
                L = C if mass is None else C / _take(some, mass)
                solve = partial(solve_, **{key: _take(some, x) for key, x in settings.items()})
                if mask is None:
                    solve(L, Q)
                else:
                    _solve_where_(_take(some, mask), solve, L, Q)


def _solve_where_(mask: Tensor, solve_: Callable[..., None], L: Tensor, Q: Tensor) -> None:
    new = Q.clone()
    solve_(L, new)
    good = both(mask, new.isfinite().all(-1).all(-1))
    Q.copy_(torch.where(good[..., None, None], new, Q))


def renew_roots_(b: Batch) -> None:
    """Shampoo: the gradient takes part in the root that is applied to it."""
    accumulate_(b)
    root = 2 * sum(f"root_{side}" in b.names for side in SIDES)
    mass = b.counted(ema_mass, b.betas[2])  # the covariances start from zero
    # ε in the units of the covariances, which are the squares of those of the gradient
    eps = b.group["eps"] / b.unit / b.unit
    solve_ = partial(inverse_root_, root=root)
    if b.fresh is not None:
        everyone = list(range(len(b.items)))
        renew_(b, "root", solve_, everyone, where=b.fresh, mass=mass, eps=eps)
    renew_(b, "root", solve_, _due(b), mass=mass, eps=eps)
    for key in ("root_left", "root_right"):
        if key in b.names:
            b.state[key] = gather(b.tensors(key), b.dtype)


def _drifts(b: Batch) -> dict[str, Tensor]:
    """How far the covariances have moved from the bases, on the sides that have one."""
    found = {}
    for side, Q in zip(SIDES, (b.Q_L, b.Q_R), strict=True):
        if Q is not None:
            C = gather(b.tensors(f"covariance_{side}"), b.dtype)
            mirror_(C)
            found[f"drift_{side}"] = basis_drift(C, Q)
    return found


def _together(b: Batch, key: str, members: list[int]) -> Iterator[list[int]]:
    """The members in batches: small matrices all at once, large ones one by one, where they are."""
    if not members or key not in b.names:
        return
    if b.items[0].state[b.names[key]].shape[-1] < LARGE:
        yield members
    else:
        yield from ([i] for i in members)


def _take(some: list[int], X: _T) -> _T:
    """What a stacked tensor has for some members; a number is the same for all."""
    if not isinstance(X, Tensor) or X.ndim == 0 or len(some) == len(X):
        return X
    if len(some) == 1:
        return X[some[0] : some[0] + 1]
    return torch.stack([X[i] for i in some])
