"""The whole range of floats: nothing finite makes a weight or a state non-finite."""

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from helpers import MATRIX, OPTIMIZERS

RESTING = [name for name in MATRIX if not name.startswith(("soap", "shampoo"))]


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trained(name: str, grads: Iterable[Tensor], dtype: torch.dtype = torch.float32, **settings):
    """A parameter that starts at ones, and its optimizer, after these gradients."""
    grads = list(grads)
    p = nn.Parameter(torch.ones(grads[0].shape, dtype=dtype))
    settings = {"refresh_every": 4, "weight_decay": 0.0, **settings}
    optimizer = OPTIMIZERS[name]([{"params": [p], "role": "matrix", **settings}], lr=1e-2)
    for G in grads:
        p.grad = G.to(dtype)
        optimizer.step()
    return p.detach().clone(), optimizer


def finite(optimizer: torch.optim.Optimizer) -> bool:
    tensors = [x for p, state in optimizer.state.items() for x in (p, *state.values())]
    return all(bool(x.isfinite().all()) for x in tensors)


# Products with powers of two are exact: a trajectory that has no scale is the same to the last bit.
# Only the powers that Shampoo takes and the eigenvectors of SPlus are rounded otherwise: to 2^-22,
# a hundred times that where eigenvalues are close, in nine steps of 1e-2.
ROUNDED = dict.fromkeys(("shampoo", "shampoo-ungrafted", "splus"), 9 * 1e-2 * 100 * 2**-22)


@pytest.mark.parametrize("shape", [(6, 9), (3, 5, 5)], ids=["matrix", "stack"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_scale_of_the_gradients_does_not_matter(name, shape, path):
    grads = [randn(*shape, seed=i) for i in range(9)]
    settings = {"eps": 0.0} if name.startswith(("adamw", "soap", "shampoo")) else {}
    expected, _ = trained(name, grads, **settings)
    for power in (-118, -60, 100, 124):
        found, optimizer = trained(name, [2.0**power * G for G in grads], **settings)
        assert finite(optimizer)
        assert optimizer.skipped == 0
        torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDED.get(name, 0.0))


@pytest.mark.parametrize("name", MATRIX)
def test_a_stack_may_hold_matrices_of_any_scale(name, path):
    scales = torch.tensor([2.0**-110, 1.0, 2.0**110]).view(3, 1, 1)
    grads = [randn(3, 4, 6, seed=i) for i in range(9)]
    settings = {"eps": 0.0} if name.startswith(("soap", "shampoo")) else {}
    expected, _ = trained(name, grads, **settings)
    found, optimizer = trained(name, [scales * G for G in grads], **settings)
    assert finite(optimizer)
    torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDED.get(name, 0.0))


def falling(i: int) -> Tensor:
    return randn(5, 7, seed=i) * 10.0**-i


def rising(i: int) -> Tensor:
    return randn(5, 7, seed=i) * 10.0 ** (i - 30)


def alternating(i: int) -> Tensor:
    return randn(5, 7, seed=i) * (1e-30 if i % 2 else 1e30)


def opposed(i: int) -> Tensor:
    return torch.full((5, 7), (-1) ** i * 3e38)


def denormal(i: int) -> Tensor:
    return torch.full((5, 7), 1e-45)


def rank_one(i: int) -> Tensor:
    return randn(5, 1, seed=i) @ torch.ones(1, 7) * 1e-25


def zero_rows(i: int) -> Tensor:
    G = randn(5, 7, seed=i) * 1e-22
    G[::2] = 0
    return G


def stopping(i: int) -> Tensor:
    return randn(5, 7, seed=i) * 1e-3 if i < 5 or i > 55 else torch.zeros(5, 7)


def fading(i: int) -> Tensor:
    return randn(5, 7, seed=i) * (1e-3 if i < 5 else 1e-44)


SEQUENCES = [
    falling,
    rising,
    alternating,
    opposed,
    denormal,
    rank_one,
    zero_rows,
    stopping,
    fading,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_finite_makes_anything_infinite(name, dtype):
    """All sequences side by side, in matrices that are updated together."""
    most = torch.finfo(dtype).max
    params = [nn.Parameter(torch.ones(5, 7, dtype=dtype)) for _ in SEQUENCES]
    group = {"params": params, "role": "matrix", "refresh_every": 4}
    optimizer = OPTIMIZERS[name]([group], lr=1e-2)
    for i in range(60):
        for p, grad in zip(params, SEQUENCES, strict=True):
            p.grad = grad(i).double().clamp(-most, most).to(dtype)
        optimizer.step()
        assert finite(optimizer)
    assert optimizer.skipped == 0


@pytest.mark.parametrize("grad", [falling, rising, alternating], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["adamw", "lion", "signum", "deva-linf", "muon", "adamuon"])
def test_units_change_no_number(name, grad):
    """What float32 computes in units is what float64, whose range needs none, computes without."""
    grads = [grad(i) for i in range(35)]
    found, _ = trained(name, grads, nesterov=False)
    expected, wide = trained(name, grads, torch.float64, nesterov=False)
    assert int(next(iter(wide.state.values()))["exponent"]) == 0
    # 35 steps of 1e-2, each with the rounding of its direction, which msign makes 500 times larger
    bound = 35 * 1e-2 * 0.2 * math.sqrt(7) * 500 * 4 * 2**-24
    if name == "adamuon":  # takes the matrix sign of a sign, which has singular values near zero
        bound *= 10
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


# Gradients that are zero ------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [0.0, 1e-42], ids=["zero", "denormal"])
@pytest.mark.parametrize("name", RESTING)
def test_a_matrix_without_gradient_rests(name, zero, path):
    """It is as if that step were not there, but for weight decay."""
    settings = {"refresh_every": 4 if path == "host" else 100}  # on a device its clock runs on
    grads = [randn(4, 6, seed=i) for i in range(8)]
    nothing = torch.full((4, 6), zero)
    expected, _ = trained(name, grads, **settings)
    with_pauses = [nothing, nothing, *grads[:5], *[nothing] * 30, *grads[5:], nothing]
    found, optimizer = trained(name, with_pauses, **settings)
    # a decay of zero makes no difference, an update that is added in another way a rounding
    torch.testing.assert_close(found, expected, rtol=0, atol=0 if path == "host" else 8 * 2**-24)
    p = optimizer.param_groups[0]["params"][0]
    p.grad = nothing.clone()
    optimizer.param_groups[0]["weight_decay"] = 0.5
    before = {k: x.clone() for k, x in optimizer.state[p].items()}
    optimizer.step()
    rate = 1e-2 * (0.2 if name == "splus" else 1.0)  # SPlus: 2 / (n + m)
    torch.testing.assert_close(p.detach(), found * (1 - rate * 0.5))  # one rounding
    after = optimizer.state[p]
    kept = [k for k in before if not (k == "clock" and path == "device")]
    assert all(torch.equal(before[k], after[k]) for k in kept)


@pytest.mark.parametrize("name", RESTING)
def test_an_expert_without_tokens_rests_alone(name, path):
    """One matrix of a stack has gradients now and then: it moves as one that has only those."""
    busy = [randn(3, 4, 6, seed=i) for i in range(12)]
    for i, G in enumerate(busy):
        if i % 3 != 1:
            G[1] = 0
    # the clock of refreshes and covariances is the parameter's
    settings = {"refresh_every": 100, "covariance_every": 1}
    found, _ = trained(name, busy, **settings)
    others, _ = trained(name, [G[[0, 2]] for G in busy], **settings)
    alone, _ = trained(name, [G[1] for G in busy[1::3]], **settings)
    # Products of a batch are rounded in another order: as in the first test, with twelve steps.
    bound = 12 * 1e-2 * 0.2 * math.sqrt(6) * 500 * 4 * 2**-24
    torch.testing.assert_close(found[[0, 2]], others, rtol=0, atol=bound)
    torch.testing.assert_close(found[1], alone, rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["soap", "shampoo", "adamw", "lion", "deva-linf"])
def test_the_others_go_on_as_their_papers_say(name):
    grads = [randn(4, 6, seed=i) for i in range(4)]
    before, _ = trained(name, grads)
    after, _ = trained(name, [*grads, torch.zeros(4, 6)])
    assert not torch.equal(before, after)


# Checkpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_from_before_there_were_units_is_in_units_of_one(name):
    grads = [randn(3, 4, 6, seed=i) for i in range(8)]
    for G in grads[:6]:
        G[1] = 0  # a matrix that has no basis yet
    expected, _ = trained(name, grads)
    p, optimizer = trained(name, grads[:4])
    saved = optimizer.state_dict()
    saved["state"] = {
        i: {k: x for k, x in values.items() if not k.startswith("exponent")}
        for i, values in saved["state"].items()
    }
    q = nn.Parameter(p.clone())
    group = {"params": [q], "role": "matrix", "refresh_every": 4, "weight_decay": 0.0}
    resumed = OPTIMIZERS[name]([group], lr=1e-2)
    resumed.load_state_dict(saved)
    for G in grads[4:]:
        q.grad = G.clone()
        resumed.step()
    assert torch.equal(q.detach(), expected)
