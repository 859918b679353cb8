"""The step: on an accelerator it never waits for a value, and it starts each basis in time."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import deva_optim as do
from deva_optim.core import linalg
from deva_optim.core.batch import Kind
from deva_optim.core.state import on_host
from deva_optim.core.step import _due
from helpers import HALF, OPTIMIZERS, off_diagonal

# What an accelerator asks for --------------------------------------------------------------------

SHAPES = ((6, 6), (6, 6), (4, 9), (3, 5, 4), (8, 2, 3, 3), (7,), ())


def on_meta(
    name: str, monkeypatch, dtype: torch.dtype, **options: object
) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    """An optimizer past its first step, which may wait for the device, without any values.

    A tensor on the meta device has none: whatever asked for one would raise.
    """
    monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    params = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]
    first = build(name, params, **options)
    for p in params:
        p.grad = torch.randn_like(p)
    first.step()
    twins = [nn.Parameter(p.detach().to("meta")) for p in params]
    second = build(name, twins, **options)
    for p, q in zip(params, twins, strict=True):
        state = first.state[p].items()
        second.state[q] = {k: x if on_host(k) else x.to("meta") for k, x in state}
    return twins, second


def build(name: str, params: list[nn.Parameter], **options: object) -> torch.optim.Optimizer:
    return OPTIMIZERS[name]([{"params": params, "refresh_every": 3, **options}])


@pytest.mark.parametrize(
    ("name", "dtype", "state_dtype"),
    [
        *((n, torch.float32, None) for n in OPTIMIZERS),
        *((n, d, None) for n in ("deva", "adamw") for d in HALF),
        *((n, torch.float32, "int8") for n in ("deva", "deva-sinf", "adamw", "muon")),
    ],
)
def test_a_step_never_waits_for_the_device(name, dtype, state_dtype, monkeypatch):
    real = torch.geqrf

    def geqrf(A: Tensor) -> tuple[Tensor, Tensor]:  # torch has none for the meta device
        return (torch.empty_like(A), A.new_empty(A.shape[:-1])) if A.is_meta else real(A)

    monkeypatch.setattr(torch, "geqrf", geqrf)
    params, optimizer = on_meta(name, monkeypatch, dtype, state_dtype=state_dtype)
    clocks = [optimizer.state[p]["clock"].clone() for p in params if "clock" in optimizer.state[p]]
    for _ in range(4):  # past a refresh of every parameter
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    after = [optimizer.state[p]["clock"] for p in params if "clock" in optimizer.state[p]]
    assert [int(b - a) for a, b in zip(clocks, after, strict=True)] == [4] * len(clocks)
    with pytest.raises(RuntimeError):  # what such a look would have done
        params[0].sum().item()


def test_once_the_bases_stand_a_step_asks_nothing_of_the_device(monkeypatch):
    """No value is read back, so that the device is never without work."""
    monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = do.DeVA(params)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    for p in params:
        p.grad = torch.randn_like(p)
    real = {name: getattr(Tensor, name) for name in ("item", "tolist", "__bool__", "__int__")}

    def refuse(name: str):
        def method(self: Tensor, *args: object) -> object:
            host = self.dtype == torch.int64 and self.ndim <= 1  # clocks, counts of skips
            assert host, f"{name} of a tensor of shape {tuple(self.shape)}"
            return real[name](self, *args)

        return method

    for name in real:
        monkeypatch.setattr(Tensor, name, refuse(name))
    optimizer.step()


@pytest.mark.parametrize("name", ["muon", "adamw", "deva-linf"])
def test_a_steady_step_sends_no_numbers_to_the_device(name, monkeypatch):
    """The host waits until they have arrived: what limits and units are is sent once."""
    params, optimizer = on_meta(name, monkeypatch, torch.float32)
    for state in optimizer.state.values():
        state["exponent"].fill_(56)
    for p in params:
        p.grad = torch.empty_like(p)
    optimizer.step()
    to, tensor = Tensor.to, torch.tensor

    def checked_to(self: Tensor, *args: object, **options: object) -> Tensor:
        found = to(self, *args, **options)
        assert self.is_meta or not found.is_meta
        return found

    def checked_tensor(*args: object, **options: object) -> Tensor:
        found = tensor(*args, **options)
        assert not found.is_meta
        return found

    monkeypatch.setattr(Tensor, "to", checked_to)
    monkeypatch.setattr(torch, "tensor", checked_tensor)
    optimizer.step()


def test_the_batches_of_a_shape_share_their_numbers(path, monkeypatch):
    counts, real = [], Kind._count

    def counted(kind: Kind) -> linalg.Number:
        counts.append(len(kind.items))
        return real(kind)

    monkeypatch.setattr(Kind, "_count", counted)
    params = [nn.Parameter(torch.randn(3, 4)) for _ in range(3)]
    optimizer = do.AdamW(params, foreach=False)  # a batch for each of them, as large ones have
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    assert counts == [3]


def test_a_step_that_a_cuda_graph_captures_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert linalg.is_captured(torch.device("cuda"))
    assert not linalg.is_captured(torch.device("cpu"))
    monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    monkeypatch.setattr(linalg, "is_captured", lambda device: True)
    p = nn.Parameter(torch.ones(3, 3))
    p.grad = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match=r"captured in a CUDA graph.*step\(\) outside of it"):
        do.Muon([p]).step()
    assert torch.equal(p, torch.ones(3, 3))


# When a basis starts ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deva-sinf", "soap", "splus", "shampoo"])
def test_the_basis_starts_with_the_first_gradient_that_is_not_zero(name):
    p = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    optimizer = OPTIMIZERS[name]([p], weight_decay=0.0)
    before = p.detach().clone()
    for _ in range(25):  # past two refreshes
        p.grad = torch.zeros_like(p)
        optimizer.step()
    assert torch.equal(p, before)
    G = torch.randn(4, 4, dtype=torch.float64)
    p.grad = G.clone()
    optimizer.step()
    state = optimizer.state[p]
    if name == "shampoo":
        return
    L = G @ G.mT
    assert off_diagonal(L, state["basis_left"]) < 1e-12
    assert state["clock"] == (0 if name == "soap" else 1)


def test_a_batch_starts_matrix_by_matrix():
    """An expert without tokens in the first steps moves as if it had not been there for them."""
    grads = [torch.randn(3, 4, 5, dtype=torch.float64) for _ in range(9)]
    for G in grads[:4]:
        G[1] = 0
    p = nn.Parameter(torch.zeros(3, 4, 5, dtype=torch.float64))
    alone = nn.Parameter(torch.zeros(4, 5, dtype=torch.float64))
    settings = {"weight_decay": 0.0, "refresh_every": 100, "sides": "short"}
    optimizer = do.DeVASinf([p], **settings)
    for G in grads:
        p.grad = G
        optimizer.step()
    optimizer = do.DeVASinf([alone], **settings)
    for G in grads[4:]:
        alone.grad = G[1]
        optimizer.step()
    # Five updates of 1e-3 · 0.2 √5 are computed in a batch and alone. msign magnifies the rounding
    # up to 500 times; the bases, of the first gradient, are the same. The margin is 16.
    atol = 16 * 5 * 1e-3 * 0.2 * 5**0.5 * 500 * 2**-53
    torch.testing.assert_close(p[1], alone, rtol=0, atol=atol)
    assert p[0].abs().sum() > 0


def test_the_members_that_are_due_are_in_their_order():
    """What is taken of all of them is taken as it is, without a look at their order."""
    items = [
        SimpleNamespace(clock=clock, renews=renews)
        for clock, renews in ((3, True), (4, False), (3, False), (8, True))
    ]
    batch = SimpleNamespace(items=items, group={"refresh_every": 4})
    assert _due(batch) == [0, 1, 3]


def test_the_gradient_is_judged_in_the_basis_of_those_before_it():
    p = nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
    optimizer = do.DeVASinf([p], refresh_every=2)
    bases_seen = []
    for i in range(7):
        p.grad = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i))
        optimizer.step()
        bases_seen.append(optimizer.state[p]["basis_left"].clone())
    changed = [not torch.equal(a, b) for a, b in pairwise(bases_seen)]
    assert changed == [True, False, True, False, True, False]  # renewed after steps 2, 4, 6


def end_of(name: str, shape: tuple[int, int], rank: int, shaken: float) -> Tensor:
    """The weight after twelve steps whose gradients are off by so much of themselves."""
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    optimizer = OPTIMIZERS[name]([{"params": [p], "role": "matrix", "refresh_every": 2}], lr=0.01)
    for _ in range(12):
        left, right = (torch.randn(k, rank, generator=generator).double() for k in shape)
        G = left @ right.mT
        p.grad = G * (1 + shaken * torch.randn(shape, generator=generator).sign().double())
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("rank", [1, 3, 64])
@pytest.mark.parametrize("shape", [(4, 64), (64, 4), (6, 9), (8, 8)], ids=str)
@pytest.mark.parametrize("name", ["deva", "deva-sinf", "deva-sinf-whitened", "soap"])
def test_no_trajectory_hangs_on_the_last_bit(name: str, shape: tuple[int, int], rank: int) -> None:
    """Also while the gradients have not yet filled a covariance: that of the long side, or both."""
    # Twelve steps of 0.01 with entries of order one; a change of the gradient is magnified by the
    # matrix sign and over the gaps of eigenvalues, as in `ROUNDING` of the helpers. The margin is
    # 16. With a basis that is made of rounding the ends are 1e-3 apart.
    magnified = 16 * 12 * 0.01 * 500 * 1000
    shaken = 2**-46
    difference = (end_of(name, shape, rank, shaken) - end_of(name, shape, rank, 0.0)).abs().max()
    assert 0 < difference <= magnified * shaken
