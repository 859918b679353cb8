"""Telemetry: what a recorded step says of itself, and that it changes nothing."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import deva_optim as do
from deva_optim.core import linalg
from deva_optim.telemetry import scalars
from helpers import MATRIX, OPTIMIZERS


class Net(nn.Module):
    """A square, a wide and a stack of matrices, and what is not a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Linear(6, 6)
        self.wide = nn.Linear(6, 4, bias=False)
        self.experts = nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.wide(self.square(x).tanh())
        return (y @ self.experts).square().mean()


def trained(name: str, steps: int = 13, every: int = 1, **settings) -> tuple[Net, object]:
    torch.manual_seed(0)
    net = Net()
    named = [(n, p) for n, p in net.named_parameters()]
    optimizer = OPTIMIZERS[name]([{"params": named, "role": "auto", **settings}], lr=0.01)
    optimizer.telemetry_every = every
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 6)).backward()
        optimizer.step()
        optimizer.telemetry()
    return net, optimizer


@pytest.mark.parametrize("name", MATRIX)
def test_telemetry_changes_nothing_bit_for_bit(name):
    plain, one = trained(name, every=0)
    assert one.telemetry() == {}
    watched, two = trained(name, every=1)
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
        for key, value in one.state[a].items():
            assert torch.equal(value, two.state[b][key]), key


GAMMA = {"gamma_norm", "gamma_mean"}
HAS = {
    "deva": GAMMA | {"msign_error", "drift_left", "drift_right"},
    "muon": {"msign_error"},
    "adamuon": GAMMA | {"msign_error"},
    "normuon": GAMMA | {"msign_error"},
    "soap": GAMMA | {"drift_left", "drift_right"},
    "shampoo": set(),
    "splus": {"drift_left", "drift_right"},
}


@pytest.mark.parametrize("name", MATRIX)
def test_telemetry_has_what_the_method_has_for_every_matrix(name):
    _, optimizer = trained(name)
    rows = optimizer.telemetry()
    experts = [f"experts[{i}]" for i in range(3)]
    assert list(rows) == [*experts, "square.weight", "wide.weight"]
    wanted = HAS[name.split("-")[0]] | {"update_ratio", "skipped"}
    variant = optimizer.param_groups[0]["variant"]
    if variant in ("whitened", "lean"):  # a factor of Γ is lost in the direction
        wanted -= GAMMA
    if variant == "lean":  # one side of a square has a basis
        wanted -= {"drift_right"}
    assert set(rows["square.weight"]) == wanted
    for row in rows.values():
        assert all(isinstance(x, float) and x >= 0 for x in row.values())
    assert scalars(rows)["update_ratio/wide.weight"] == rows["wide.weight"]["update_ratio"]


@pytest.mark.parametrize("name", MATRIX)
def test_update_ratio_is_what_the_last_step_did(name):
    net, optimizer = trained(name, steps=5, weight_decay=0.0)
    before = net.wide.weight.detach().clone()
    net(torch.randn(8, 6)).backward()
    optimizer.step()
    optimizer.zero_grad()  # gradients are not needed any more
    moved = torch.linalg.matrix_norm(net.wide.weight.detach() - before)
    ratio = moved / torch.linalg.matrix_norm(before)
    told = optimizer.telemetry()["wide.weight"]["update_ratio"]
    # A float32 weight below 1 is rounded by 2⁻²⁴ and moves by lr · 0.2 = 0.002 or more, so that its
    # change is off by 500 · 2⁻²⁴ of itself. The margin is 16.
    assert told == pytest.approx(float(ratio), rel=16 * 500 * 2**-24)


def test_the_first_step_and_every_hundredth_are_recorded_unless_told_otherwise():
    p = nn.Parameter(torch.eye(3))
    optimizer = do.Muon([("w", p)], lr=1.0, weight_decay=0.0)
    assert optimizer.telemetry() == {}
    ratios = []
    for step in range(201):
        p.grad = torch.eye(3) + step * torch.ones(3, 3)
        optimizer.step()
        ratios.append(optimizer.telemetry()["w"]["update_ratio"])
    assert [i for i in range(201) if i == 0 or ratios[i] != ratios[i - 1]] == [0, 100, 200]


# LAPACK finds singular values, bases and signs of 4×4 matrices to some 4² · 2⁻⁵³ of their norm,
# here ten times the least singular value; the margin is 64.
FINDING = 64 * 10 * 16 * 2**-53


def test_gamma_is_one_for_a_constant_gradient():
    p = nn.Parameter(torch.eye(4, dtype=torch.float64))
    optimizer = do.DeVASinf([("w", p)], msign="svd", eps=1e-8)
    optimizer.telemetry_every = 1
    G = torch.tensor([[2, 1, 0, 0], [0, 3, 0, 1], [0, 0, 1, 0], [1, 0, 0, 5]]).double()
    for _ in range(7):
        p.grad = G.clone()
        optimizer.step()
    row = optimizer.telemetry()["w"]
    # V is r cᵀ, the products of the singular values, and ε V̄ is added to it under the root.
    S = torch.linalg.svdvals(G)
    lost = 0.5 * 1e-8 * (torch.outer(S, S).mean() / S.min().square()).item()
    assert 1 - lost - FINDING <= row["gamma_mean"] <= 1 + FINDING
    assert 4 * (1 - lost - FINDING) <= row["gamma_norm"] <= 4 * (1 + FINDING)
    assert row["drift_left"] < FINDING
    assert row["msign_error"] < FINDING


def test_drift_shows_that_the_covariance_has_moved():
    p = nn.Parameter(torch.eye(4, dtype=torch.float64))
    optimizer = do.DeVASinf([p], refresh_every=100)
    optimizer.telemetry_every = 1
    drifts = []
    for step in range(6):
        p.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(step)).double()
        optimizer.step()
        (row,) = optimizer.telemetry().values()
        drifts.append(row["drift_left"])
    assert drifts[0] < FINDING < 1e-2 < drifts[1] < drifts[5]


@pytest.mark.parametrize("name", ["deva", "deva-sinf", "soap", "splus"])
def test_the_drift_of_a_first_step_does_not_depend_on_the_batch(name):
    def drifts(foreach):
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.zeros(4, 6)) for _ in range(2)]
        for p in params:
            p.grad = torch.randn(4, 6, generator=generator)
        optimizer = OPTIMIZERS[name]([{"params": params, "role": "matrix", "foreach": foreach}])
        optimizer.step()
        return [row["drift_left"] for row in optimizer.telemetry().values()]

    assert drifts(None) == pytest.approx(drifts(False), rel=0, abs=1e-5)  # rounding of float32


def test_skipped_steps_are_counted_by_parameter():
    a, b = nn.Parameter(torch.eye(3)), nn.Parameter(torch.eye(3))
    optimizer = do.Muon([("a", a), ("b", b)])
    for bad in (False, True):
        a.grad, b.grad = torch.eye(3), torch.full((3, 3), torch.nan) if bad else torch.eye(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            optimizer.step()
    rows = optimizer.telemetry()
    assert (rows["a"]["skipped"], rows["b"]["skipped"]) == (0, 1)


def test_a_copy_remembers_and_a_loaded_state_says_nothing_before_its_first_step():
    net, optimizer = trained("deva")
    assert copy.deepcopy(optimizer).telemetry() == optimizer.telemetry() != {}
    named = list(net.named_parameters())
    other = OPTIMIZERS["deva"]([{"params": named, "role": "auto"}], lr=0.01)
    other.load_state_dict(optimizer.state_dict())
    assert other.telemetry() == {}
    other.step()
    assert set(other.telemetry()) == set(optimizer.telemetry())


def test_the_parts_of_a_fused_weight_are_told_apart():
    p = nn.Parameter(torch.randn(10, 4, generator=torch.Generator().manual_seed(0)))
    optimizer = do.DeVASinf([{"params": [("qkv", p)], "split": (4, 3, 3)}])
    p.grad = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    assert list(optimizer.telemetry()) == ["qkv[0]", "qkv[1]", "qkv[2]"]


def test_of_a_large_covariance_only_the_half_that_is_up_to_date_is_read(monkeypatch):
    _, plain = trained("deva-sinf")
    monkeypatch.setattr(linalg, "_SYMMETRIC_FROM", 2)
    monkeypatch.setattr(linalg, "_BLOCK_ROWS", 2)
    _, halved = trained("deva-sinf")
    for one, two in zip(plain.telemetry().values(), halved.telemetry().values(), strict=True):
        # Sums of float32 in another order, 2⁻²⁴, over gaps of a hundredth and more of the norm; the
        # margin is 16. The stale half would be off by a tenth.
        assert two["drift_left"] == pytest.approx(one["drift_left"], abs=16 * 100 * 2**-24)
