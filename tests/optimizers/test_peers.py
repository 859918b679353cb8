"""Our optimizers against other people's, installed from PyPI: torch.optim and pytorch_optimizer.

Both sides start from the same weights and are given the same random gradients. Wherever a peer
defines something differently, the test says so in words and takes the difference away; what is left
is rounding. Since the gradients do not depend on the weights, no step makes up for the last one.

Some peers decay after the update, Y ← d (Y − ηU) with d = 1 − ηλ, where ours decay before it,
X ← d X − ηU. Multiply the second by d, and it is the first for Y = d X. So such a peer starts from
d X, and ours times d is compared with it at every step.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import pytorch_optimizer as po
import torch
from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting
from pytorch_optimizer.optimizer.utils.matrix import zero_power_via_newton_schulz_5
from pytorch_optimizer.optimizer.utils.partition import PreConditionerType
from torch import Tensor
from torch.optim import Optimizer

import deva_optim as do

MATRICES = ((5, 5), (5, 5), (4, 7), (7, 4))  # ours update the two of one shape as one batch
TENSORS = (*MATRICES, (6,), (2, 3, 4))

# The tolerances of trajectories, of which every step has a rounding of its own: weights are below
# 4, steps are of 0.1 at the most and as good as independent, so that 30 roundings make √30 of one.
# A weight is rounded by 4 · eps / 2 at each of a hundred steps: √100 of that, and a margin of 4.
HUNDRED = 4 * 10 * 4 / 2
# The quintics magnify an error of the momentum up to 3.4⁵ ≈ 500 times; the margin is 4.
QUINTICS = 4 * 30**0.5 * 0.1 * 500 * 2**-53
# A root is off by 2⁻⁵³ times the condition of L, R or S, some hundreds, and a basis by 2⁻⁵³ over
# the gaps. Eigenvalues repel one another: the smallest of 600 gaps is 1/√600 of the mean one, a
# hundredth of the norm. Both are below 1000; the margin is 16.
GAPS = 16 * 30**0.5 * 0.1 * 1000 * 2**-53


def twins(
    *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[Tensor]]:
    """Random weights, and a copy of them."""
    ours = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    return ours, scaled(ours, [1] * len(ours))


def scaled(weights: list[Tensor], factors: list[float]) -> list[Tensor]:
    """New weights: each of these times its factor."""
    return [(w.detach() * d).requires_grad_() for w, d in zip(weights, factors, strict=True)]


def noise(weights: list[Tensor]) -> list[Tensor]:
    """A random gradient for each weight."""
    return [torch.randn_like(w) for w in weights]


def step(optimizer: Optimizer, weights: list[Tensor], gradients: list[Tensor]) -> None:
    """One step with copies of the gradients: a peer may write into those that it is given."""
    for w, G in zip(weights, gradients, strict=True):
        w.grad = G.clone()
    optimizer.step()


def agree(ours: list[Tensor], theirs: list[Tensor], *, to: float) -> None:
    """Assert that no entry, all of which are of order 1, differs by more than this."""
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=to)


def walk(
    mine: Optimizer, ours: list[Tensor], peer: Optimizer, theirs: list[Tensor], *, to: float
) -> None:
    """Assert that two optimizers agree along a hundred steps."""
    for t in range(1, 101):
        gradients = noise(ours)
        step(mine, ours, gradients)
        step(peer, theirs, gradients)
        if t == 1 or t % 10 == 0:
            agree(ours, theirs, to=to)


@contextmanager
def without_cast(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """While it lasts, the cast of this name leaves a tensor in the precision that it has."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, name, lambda x, *args, **kwargs: x.clone())
        yield


def share_long_sides(
    mine: Optimizer, ours: list[Tensor], peer: Optimizer, theirs: list[Tensor], key: str
) -> None:
    """Give the peer our first basis on the long side of every rectangle.

    The covariance of a single gradient is singular there, and the basis of its null space
    arbitrary. On squares and on short sides the two find the same basis by themselves.
    """
    for w, v in zip(ours, theirs, strict=True):
        if w.ndim == 2 and w.shape[0] != w.shape[1]:
            i, side = (0, "left") if w.shape[0] > w.shape[1] else (1, "right")
            if f"basis_{side}" in mine.state[w]:
                peer.state[v][key][i] = mine.state[w][f"basis_{side}"].clone()


# torch.optim ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr": 3e-2, "betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.3, "maximize": True},
        {"lr": 1e-2, "betas": (0.0, 0.5), "eps": 0.1, "weight_decay": 0.0},
    ],
    ids=["defaults", "nothing-default", "no-momentum"],
)
def test_adamw_is_torchs(settings, dtype):
    """AdamW of torch: the same definition and the same defaults; only the roundings differ."""
    ours, theirs = twins(*TENSORS, dtype=dtype)
    mine, peer = do.AdamW(ours, **settings), torch.optim.AdamW(theirs, **settings)
    walk(mine, ours, peer, theirs, to=HUNDRED * torch.finfo(dtype).eps)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has a Muon from 2.9 on")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"nesterov": False},
        {"adjust_lr_fn": "original"},
        {"adjust_lr_fn": None, "ns_steps": 3},
        {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 7, "eps": 1e-7},
    ],
    ids=str,
)
def test_muon_is_torchs(monkeypatch, given):
    """Muon of torch: the same arguments, and the same defaults but for the scale.

    - It scales by √max(1, n/m) unless told to match the RMS of AdamW, as ours does.
    - It iterates in bfloat16, ours in the precision of the weights: its cast is taken out.
    - It normalises by max(‖M‖, 1e-7), ours by ‖M‖, which is far above that here.
    """
    ours, theirs = twins(*MATRICES)
    settings = {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.2, **given}
    mine = do.Muon(ours, **settings)
    peer = torch.optim.Muon(theirs, **{"adjust_lr_fn": "match_rms_adamw", **settings})
    for _ in range(30):
        gradients = noise(ours)
        step(mine, ours, gradients)
        with without_cast(monkeypatch, "bfloat16"):
            step(peer, theirs, gradients)
        agree(ours, theirs, to=QUINTICS)


# pytorch_optimizer, elementwise -----------------------------------------------------------------


@pytest.mark.parametrize("maximize", [False, True])
def test_lion_is_pytorch_optimizers(maximize):
    """Lion of pytorch_optimizer: the same definition; both decay first, by ηλ."""
    ours, theirs = twins(*TENSORS)
    settings = {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.2, "maximize": maximize}
    mine, peer = do.Lion(ours, **settings), po.Lion(theirs, **settings)
    walk(mine, ours, peer, theirs, to=0)  # one product and one sum, rounded alike


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_signum_is_pytorch_optimizers(momentum, maximize):
    """SignSGD of pytorch_optimizer: the same definition; both decay first, by ηλ."""
    ours, theirs = twins(*TENSORS)
    settings = {"lr": 0.03, "momentum": momentum, "weight_decay": 0.2, "maximize": maximize}
    mine, peer = do.Signum(ours, **settings), po.SignSGD(theirs, **settings)
    walk(mine, ours, peer, theirs, to=0)  # one product and one sum, rounded alike


def test_signum_with_nesterov_is_pytorch_optimizers_lion():
    """Lion of pytorch_optimizer, because its SignSGD has no Nesterov.

    β M + (1 − β) G with the new M is β² M + (1 − β²) G with the old one: Lion with betas (β², β).
    """
    ours, theirs = twins(*TENSORS)
    mine = do.Signum(ours, lr=0.03, momentum=0.8, weight_decay=0.2, nesterov=True)
    peer = po.Lion(theirs, lr=0.03, betas=(0.8**2, 0.8), weight_decay=0.2)
    walk(mine, ours, peer, theirs, to=0)  # one product and one sum, rounded alike


# pytorch_optimizer, matrices --------------------------------------------------------------------


@pytest.mark.parametrize("sign_stabilize", [False, True])
def test_adamuon_is_pytorch_optimizers(monkeypatch, sign_stabilize):
    """AdaMuon of pytorch_optimizer.

    - It takes the matrix sign of M. To take that of sign(M) it is fed sign(M), without momentum.
    - It iterates in bfloat16, ours in the precision of the weights: it is asked for float64.
    - It divides by √(V / (1 − β₂ᵗ)) + ε, ours by √V + ε. The rescaling takes out the factor
      between them if our ε is its ε times √(1 − β₂ᵗ).
    - It rescales by ‖U‖ + ε, ours by ‖U‖: that ε is taken out.
    - It normalises by max(‖M‖, 1e-7), ours by ‖M‖, which is far above that here.
    - It has no Nesterov.
    """
    monkeypatch.setattr(
        "pytorch_optimizer.optimizer.muon.adamuon.zero_power_via_newton_schulz_5",
        partial(zero_power_via_newton_schulz_5, dtype=torch.float64),
    )
    monkeypatch.setattr(po.AdaMuon, "_update_norm", staticmethod(lambda U, eps: U.norm()))
    ours, theirs = twins(*MATRICES)
    settings, eps, (beta1, beta2) = {"lr": 0.1, "weight_decay": 0.2}, 1e-2, (0.8, 0.9)
    mine = do.AdaMuon(ours, betas=(beta1, beta2), sign_stabilize=sign_stabilize, **settings)
    betas = (0.0 if sign_stabilize else beta1, beta2)
    peer = po.AdaMuon([{"params": theirs, "use_muon": True}], betas=betas, eps=eps, **settings)
    for t in range(1, 31):
        gradients = noise(ours)
        mine.param_groups[0]["eps"] = eps * math.sqrt(1 - beta2**t)
        step(mine, ours, gradients)
        signs = [mine.state[w]["exp_avg"].sign() for w in ours]
        step(peer, theirs, signs if sign_stabilize else gradients)
        agree(ours, theirs, to=QUINTICS)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("max_dim", [10, 6])
def test_soap_is_pytorch_optimizers(monkeypatch, max_dim, maximize):
    """SOAP of pytorch_optimizer.

    - The first gradient only chooses the bases there: our `skip_first`, the default.
    - It sorts the bases at every refresh, and V with them; ours puts the columns back. The order
      of the columns changes nothing.
    - It computes the QR in float32, ours in the precision of the weights: its cast is taken out.
    - It adds 1e-30 I to the first covariances, which is below rounding.
    - It divides by √V + ε and corrects for the bias after that: our ε is its ε / √(1 − β₂ᵗ).
    - It decays after the update: ours times d is compared, see above.
    - Long sides are given the same first basis, see `share_long_sides`.
    """
    lr, decay, eps, betas = 0.03, 0.2, 1e-2, (0.8, 0.9, 0.7)
    ours, _ = twins(*MATRICES)
    shrinks = [1 - lr * decay] * len(ours)
    theirs = scaled(ours, shrinks)
    settings = {"lr": lr, "weight_decay": decay, "maximize": maximize}
    mine = do.SOAP(ours, betas=betas, refresh_every=4, stagger=False, max_dim=max_dim, **settings)
    peer = po.SOAP(
        theirs,
        betas=betas[:2],
        shampoo_beta=betas[2],
        eps=eps,
        precondition_frequency=4,
        max_precondition_dim=max_dim,
        **settings,
    )
    for t in range(31):  # the first is the one that is skipped
        gradients = noise(ours)
        mine.param_groups[0]["eps"] = eps / math.sqrt(1 - betas[1] ** max(t, 1))
        step(mine, ours, gradients)
        with without_cast(monkeypatch, "to"):
            step(peer, theirs, gradients)
        if t == 0:
            share_long_sides(mine, ours, peer, theirs, "Q")
        agree(scaled(ours, shrinks), theirs, to=GAPS)


def test_splus_is_pytorch_optimizers(monkeypatch):
    """SPlus of pytorch_optimizer, its averaged weights included.

    - It decays after the update: ours times d is compared, see above. It averages the weights
      that it has before the decay, Y − ηU = X: these are compared as they are.
    - It decomposes in float32, ours in the precision of the weights: its cast is taken out.
    - It adds 1e-30 I to the covariances, which is below rounding.
    - It takes the bare sign; ours gives rounding noise the sign zero, of which there is none here.
    - Long sides are given the same first basis, see `share_long_sides`.
    """
    lr, decay = 0.3, 0.2
    ours, _ = twins(*MATRICES, (6,))
    rates = [lr * (2 / sum(w.shape) if w.ndim == 2 else 1e-3) for w in ours]
    shrinks = [1 - rate * decay for rate in rates]
    theirs = scaled(ours, shrinks)
    settings = {"lr": lr, "weight_decay": decay, "betas": (0.8, 0.9), "ema_rate": 0.9}
    mine = do.SPlus(ours, refresh_every=4, stagger=False, **settings)
    peer = po.SPlus(theirs, inverse_steps=4, **settings)
    for t in range(1, 31):
        gradients = noise(ours)
        step(mine, ours, gradients)
        with without_cast(monkeypatch, "float"):
            step(peer, theirs, gradients)
        if t == 1:
            share_long_sides(mine, ours, peer, theirs, "q_sides")
        agree(scaled(ours, shrinks), theirs, to=GAPS)
        peer.eval()
        with mine.averaged():
            agree(ours, theirs, to=GAPS)
        peer.train()


@pytest.mark.parametrize("every", [1, 4])
def test_shampoo_is_pytorch_optimizers(every):
    """Shampoo of pytorch_optimizer.

    - It sums its covariances, S = ε₀ I + Σ G Gᵀ, where ours averages them. With β₃ = 1 − 1/t our
      L is their mean, and our bias correction divides it by c = 1 − β₃ᵗ. So S = t c (L̂ + ε I) if
      ε = ε₀ / (t c); our two roots are (t c)^¼ times as large, which a rate over √(t c) makes up
      for, and a decay times √(t c) for that. This t is the one of the last refresh.
    - Its roots are zero before the first refresh, and it only decays; ours have a root from the
      first step on. Ours rests until then, and starts from where the other will have got to.
    - It does not graft: our graft="none".
    - Its momentum averages preconditioned gradients, ours gradients: both go without.
    """
    lr, decay, eps = 0.3, 0.1, 0.1
    _, theirs = twins(*MATRICES)
    ours = scaled(theirs, [(1 - lr * decay) ** (every - 1)] * len(theirs))
    mine = do.Shampoo(ours, refresh_every=every, stagger=False, graft="none")
    peer = po.Shampoo(
        theirs,
        lr=lr,
        momentum=0.0,
        weight_decay=decay,
        weight_decouple=True,
        preconditioning_compute_steps=every,
        matrix_eps=eps,
    )
    group = mine.param_groups[0]
    group["lr"] = 0.0
    for t in range(1, 31):
        beta3 = 1 - 1 / t
        group["betas"] = (0.0, 0.0, beta3)
        if t % every == 0:
            mass = t * (1 - beta3**t)
            group["eps"] = eps / mass
            group["lr"] = lr / math.sqrt(mass)
            group["weight_decay"] = decay * math.sqrt(mass)
        gradients = noise(ours)
        step(mine, ours, gradients)
        step(peer, theirs, gradients)
        if t >= every:
            agree(ours, theirs, to=GAPS)


@pytest.mark.parametrize(
    ("shapes", "sides", "preconditioned"),
    [
        pytest.param(MATRICES, "both", PreConditionerType.ALL, id="both"),
        pytest.param([(4, 7)], "short", PreConditionerType.INPUT, id="rows"),
        pytest.param([(7, 4)], "short", PreConditionerType.OUTPUT, id="columns"),
    ],
)
def test_grafted_shampoo_is_pytorch_optimizers(shapes, sides, preconditioned):
    """ScalableShampoo of pytorch_optimizer, which grafts and can leave out a side.

    - It grafts the size of RMSProp's update, G / √V. Without momentum ours, Adam's, is that times
      √(1 − β₂ᵗ), for its bias correction: the rate is divided by it, and the decay multiplied.
    - It does not correct the bias of its covariances; a factor of the roots is lost in grafting.
    - It divides by ‖U‖ + 1e-16 when it grafts, ours by ‖U‖: that is below rounding.
    - It starts its covariances from ε₀ I, ours adds ε when it takes a root: both are zero here.
    - Its roots are the identity before the first refresh, ours are taken at the first step: both
      rest until there is a refresh.
    - It is told whether to precondition the first or the last side, ours to take the short one.
    - Its momentum averages updates, ours gradients: both go without.
    """
    lr, decay, beta2, every = 0.1, 0.2, 0.9, 4
    ours, theirs = twins(*shapes)
    mine = do.Shampoo(
        ours, betas=(0.0, beta2, beta2), eps=0.0, refresh_every=every, stagger=False, sides=sides
    )
    peer = po.ScalableShampoo(
        theirs,
        betas=(0.0, beta2),
        weight_decay=decay,
        decoupled_weight_decay=True,
        start_preconditioning_step=1,
        preconditioning_compute_steps=every,
        shape_interpretation=False,
        graft_type=LayerWiseGrafting.RMSPROP,
        pre_conditioner_type=preconditioned,
        nesterov=False,
        diagonal_eps=0.0,
        matrix_eps=0.0,
        use_svd=True,
    )
    for t in range(1, 31):
        rate, correction = lr if t >= every else 0.0, math.sqrt(1 - beta2**t)
        mine.param_groups[0] |= {"lr": rate / correction, "weight_decay": decay * correction}
        peer.param_groups[0]["lr"] = rate
        gradients = noise(ours)
        step(mine, ours, gradients)
        step(peer, theirs, gradients)
        agree(ours, theirs, to=GAPS)
