"""Every method and variant against the naive float64 loops of `reference`, over 50 steps."""

import numpy as np
import pytest
import torch

import reference
from deva_optim.core import linalg, variance
from helpers import OPTIMIZERS

STEPS = 50
LR = 0.02
DECAY = 0.1

# A step is at most lr · 0.2 √7 long. Its direction has the rounding of products of seven terms,
# some 2 · 7 · 2^-53, in the momentum, the basis and each of five steps of msign, which lift small
# singular values 3.4445⁵ < 500 times; SOAP's and Shampoo's division by ε does less. Over all steps
# that is 2e-12 at the most, on any processor; 1e-13 is usual.
TOLERANCE = STEPS * LR * 0.2 * 7**0.5 * 500 * (7 * 2 * 7) * 2**-53

# The name in `reference`, the optimizer here, and what both are told besides.
CASES = {
    "adamw": ("adamw", "adamw", {}),
    "signum": ("signum", "signum", {}),
    "signum-nesterov": ("signum", "signum", {"nesterov": True}),
    "lion": ("lion", "lion", {}),
    "deva-linf": ("deva-linf", "deva-linf", {}),
    "deva-linf-nesterov": ("deva-linf", "deva-linf", {"nesterov": True}),
    "muon": ("muon", "muon", {}),
    "muon-nesterov": ("muon", "muon", {"nesterov": True}),
    "muon-original": ("muon-original", "muon", {"adjust_lr_fn": "original"}),
    "muon-polar-express": ("muon", "muon", {"msign": "polar-express"}),
    "muon-soft": ("muon", "muon", {"msign": "soft"}),
    "muon-firm": ("muon", "muon", {"msign": "firm"}),
    "adamuon": ("adamuon", "adamuon", {}),
    "adamuon-unsigned": ("adamuon", "adamuon", {"sign_stabilize": False}),
    "normuon": ("normuon", "normuon", {}),
    "normuon-nesterov": ("normuon", "normuon", {"nesterov": True}),
    "soap": ("soap", "soap", {"skip_first": True}),
    "soap-short": ("soap", "soap", {"skip_first": True, "sides": "short"}),
    "deva-sinf": ("deva-sinf", "deva-sinf", {}),
    "deva-sinf-svd": ("deva-sinf", "deva-sinf", {"msign": "svd"}),
    "deva-sinf-polar-express": ("deva-sinf", "deva-sinf", {"msign": "polar-express"}),
    "deva-sinf-soft": ("deva-sinf", "deva-sinf", {"msign": "soft"}),
    "deva-sinf-factored": ("deva-sinf-factored", "deva-sinf-factored", {}),
    "deva-sinf-instantaneous": ("deva-sinf-instantaneous", "deva-sinf-instantaneous", {}),
    "deva-sinf-whitened": ("deva-sinf-whitened", "deva-sinf-whitened", {"nesterov": True}),
    "deva-sinf-whitened-short": (
        "deva-sinf-whitened",
        "deva-sinf-whitened",
        {"sides": "short", "nesterov": False, "msign": "soft"},
    ),
    "deva-sinf-lean": (
        "deva-sinf-lean",
        "deva-sinf-lean",
        {"covariance_every": 1, "nesterov": True, "msign": "soft"},
    ),
    "deva-sinf-lean-every-fifth": (
        "deva-sinf-lean",
        "deva-sinf-lean",
        {"covariance_every": 5, "nesterov": False, "msign": "soft", "skip_first": True},
    ),
    "deva-sinf-lean-firm": (
        "deva-sinf-lean",
        "deva-sinf-lean",
        {"covariance_every": 1, "nesterov": True, "msign": "firm"},
    ),
    "deva-sinf-lean-newton-schulz": (
        "deva-sinf-lean",
        "deva-sinf-lean",
        {"covariance_every": 2, "nesterov": True, "msign": "newton-schulz"},
    ),
    "deva-sinf-lean-capped": (
        "deva-sinf-lean",
        "deva-sinf-lean",
        {"covariance_every": 1, "nesterov": True, "msign": "soft", "max_dim": 3},
    ),
    "deva-sinf-signed": ("deva-sinf", "deva-sinf", {"sign_stabilize": True}),
    "deva-sinf-nesterov": ("deva-sinf", "deva-sinf", {"nesterov": True}),
    "deva-sinf-short": ("deva-sinf", "deva-sinf", {"sides": "short"}),
    "deva-sinf-capped": ("deva-sinf", "deva-sinf", {"max_dim": 5}),
    "deva-sinf-skip-first": ("deva-sinf", "deva-sinf", {"skip_first": True}),
    "shampoo": ("shampoo", "shampoo", {"eps": 1e-3}),
    "shampoo-ungrafted": ("shampoo", "shampoo", {"eps": 1e-3, "graft": "none"}),
    "shampoo-short": ("shampoo", "shampoo", {"eps": 1e-3, "sides": "short"}),
    "splus": ("splus", "splus", {}),
    "splus-short": ("splus", "splus", {"sides": "short", "nesterov": True}),
}
BASED = ("soap", "deva-sinf", "shampoo", "splus")
IN_BLOCKS = (*BASED, "muon")
BETAS = {"splus": (0.9, 0.95), "default": (0.9, 0.95, 0.9)}


def gradients(kind: str) -> list[np.ndarray]:
    """Fifty gradients of one shape; the rank-deficient ones share a subspace of dimension two."""
    rng = np.random.default_rng(0)
    shape = {"square": (5, 5), "wide": (4, 7), "tall": (7, 4), "batch": (3, 5, 4)}
    if kind != "rank-deficient":
        return [rng.normal(size=shape[kind]) for _ in range(STEPS)]
    U, V = rng.normal(size=(6, 2)), rng.normal(size=(5, 2))
    return [U @ rng.normal(size=(2, 2)) @ V.T for _ in range(STEPS)]


def ours(name: str, X: np.ndarray, grads: list[np.ndarray], **settings):
    """The trajectory of an optimizer here, and the first bases it chose."""
    p = torch.nn.Parameter(torch.tensor(X))
    optimizer = OPTIMIZERS[name]([p], lr=LR, weight_decay=DECAY, **settings)
    trajectory, bases = [], None
    for G in grads:
        p.grad = torch.tensor(G)
        optimizer.step()
        trajectory.append(p.detach().numpy().copy())
        if bases is None:
            state = optimizer.state[p]
            found = [state.get(f"basis_{side}") for side in ("left", "right")]
            bases = tuple(None if Q is None else Q.numpy().copy() for Q in found)
    return trajectory, bases


def told(name: str, ref_name: str, settings: dict) -> tuple[dict, dict]:
    """The settings as the optimizer takes them and as the reference does."""
    betas = BETAS.get(ref_name, BETAS["default"])
    theirs = {"betas": betas, "msign": "newton-schulz", "refresh_every": 10, **settings}
    mine = {**settings}
    if name in ("signum", "muon"):
        mine["momentum"] = betas[0]
    else:
        mine["betas"] = betas if name.startswith(("soap", "deva-sinf", "shampoo")) else betas[:2]
    if name == "splus":
        mine["refresh_every"] = 10
    return mine, theirs


@pytest.mark.parametrize("kind", ["square", "wide", "tall", "batch", "rank-deficient"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(case, kind):
    ref_name, name, settings = CASES[case]
    if kind == "rank-deficient" and ref_name == "soap":
        # Along the null space SOAP divides rounding by rounding plus ε: ε must be the larger.
        settings = {**settings, "eps": 1e-2}
    if kind == "rank-deficient" and ref_name in ("deva-sinf-whitened", "deva-sinf-lean"):
        # There ε is all that rounding is divided by, and msign lifts what is left of it 500 times.
        settings = {**settings, "eps": 1.0}
    mine, theirs = told(name, ref_name, settings)
    grads = gradients(kind)
    X = np.random.default_rng(1).normal(size=grads[0].shape)
    trajectory, bases = ours(name, X, grads, **mine)
    first = None if all(Q is None for Q in bases) else bases
    expected = reference.trajectory(
        ref_name, X, grads, lr=LR, weight_decay=DECAY, first_bases=first, **theirs
    )
    for X_ours, X_ref in zip(trajectory, expected, strict=True):
        np.testing.assert_allclose(X_ours, X_ref, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["square", "wide", "tall", "batch"])
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith(IN_BLOCKS)])
def test_agrees_with_the_reference_in_blocks(case, kind, monkeypatch):
    """The ways of large matrices, taken by small ones: half products, strips and panels."""
    monkeypatch.setattr(linalg, "_SYMMETRIC_FROM", 2)
    monkeypatch.setattr(linalg, "_BLOCK_ROWS", 2)
    monkeypatch.setattr(variance, "_STRIP", 2)
    monkeypatch.setattr(linalg, "_PANELS_FROM", 2)
    monkeypatch.setattr(linalg, "_PANEL_WIDTH", 2)
    test_agrees_with_the_reference(case, kind)


def test_splus_averages_its_iterates():
    grads = gradients("wide")
    X = np.zeros(grads[0].shape)
    p = torch.nn.Parameter(torch.tensor(X))
    optimizer = OPTIMIZERS["splus"]([p], lr=LR, betas=(0.9, 0.95), ema_rate=0.9, refresh_every=10)
    first = None
    for G in grads:
        p.grad = torch.tensor(G)
        optimizer.step()
        state = optimizer.state[p]
        first = first or (state["basis_left"].numpy().copy(), state["basis_right"].numpy().copy())
    last = p.detach().clone()
    expected = reference.averaged(
        X, grads, lr=LR, betas=(0.9, 0.95), weight_decay=1e-2, ema_rate=0.9, first_bases=first
    )
    with optimizer.averaged():
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=0, atol=1e-14)  # rounding
    assert torch.equal(p, last)
