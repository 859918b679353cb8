"""What an accelerator asks for: no look at a value on the host, and products in bfloat16."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from deva_optim import msign
from deva_optim.core import directions, linalg
from deva_optim.core.directions import fast_dtype, polar
from deva_optim.core.linalg import value
from deva_optim.core.state import on_host
from helpers import OPTIMIZERS

SHAPES = ((6, 6), (6, 6), (4, 9), (3, 5, 4), (8, 2, 3, 3), (7,), ())


def on_meta(name: str, monkeypatch) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    """An optimizer past its first step, which may wait for the device, without any values.

    A tensor on the meta device has none: whatever asked for one would raise.
    """
    monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    first = build(name, params)
    for p in params:
        p.grad = torch.randn_like(p)
    first.step()
    twins = [nn.Parameter(p.detach().to("meta")) for p in params]
    second = build(name, twins)
    for p, q in zip(params, twins, strict=True):
        state = first.state[p].items()
        second.state[q] = {k: x if on_host(k) else x.to("meta") for k, x in state}
    return twins, second


def build(name: str, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return OPTIMIZERS[name]([{"params": params, "refresh_every": 3}])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_never_waits_for_the_device(name, monkeypatch):
    real = torch.geqrf

    def geqrf(A: Tensor) -> tuple[Tensor, Tensor]:  # torch has none for the meta device
        return (torch.empty_like(A), A.new_empty(A.shape[:-1])) if A.is_meta else real(A)

    monkeypatch.setattr(torch, "geqrf", geqrf)
    params, optimizer = on_meta(name, monkeypatch)
    clocks = [optimizer.state[p]["clock"].clone() for p in params if "clock" in optimizer.state[p]]
    for _ in range(4):  # past a refresh of every parameter
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    after = [optimizer.state[p]["clock"] for p in params if "clock" in optimizer.state[p]]
    assert [int(b - a) for a, b in zip(clocks, after, strict=True)] == [4] * len(clocks)
    with pytest.raises(RuntimeError):  # what such a look would have done
        params[0].sum().item()


# The precision of products ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["newton-schulz", "polar-express", "soft"])
@pytest.mark.parametrize("shape", [(24, 24), (16, 64), (64, 16), (3, 8, 40)])
def test_products_in_bfloat16_give_the_same_direction(kind, shape):
    torch.manual_seed(0)
    X = torch.randn(shape)
    fast = value(polar(X, kind, dtype=torch.bfloat16))
    assert fast.dtype == torch.float32
    exact = msign(X, kind)
    cosine = (fast * exact).sum() / (fast.norm() * exact.norm())
    assert cosine > 0.99  # eight bits, fifteen products deep
    assert torch.linalg.svdvals(fast).max() < 1.35


def test_bfloat16_is_asked_of_the_device(monkeypatch):
    def tensor(dtype: torch.dtype, device: str) -> SimpleNamespace:
        return SimpleNamespace(dtype=dtype, device=torch.device(device))

    for has in (True, False):
        monkeypatch.setattr(directions, "_has_bfloat16", lambda has=has: has)
        assert fast_dtype(tensor(torch.float32, "cpu")) == torch.float32
        assert fast_dtype(tensor(torch.float64, "cuda")) == torch.float64
        expected = torch.bfloat16 if has else torch.float32
        assert fast_dtype(tensor(torch.float32, "cuda")) == expected


@pytest.mark.parametrize("name", ["muon", "deva-sinf"])
def test_msign_dtype_is_obeyed(name):
    torch.manual_seed(0)
    start, G = torch.randn(8, 8), torch.randn(8, 8)
    found = []
    for dtype in (None, torch.float32, torch.bfloat16):
        p = nn.Parameter(start.clone())
        p.grad = G
        OPTIMIZERS[name]([p], msign_dtype=dtype).step()
        found.append(p.detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-3 * 0.2 * 8**0.5 * 0.2)
