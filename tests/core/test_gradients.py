"""Gradients that are not finite: nothing is poisoned, on the host's path and on the device's."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import deva_optim as do
from deva_optim.core import linalg
from helpers import OPTIMIZERS

BAD = (float("nan"), float("inf"), float("-inf"))


def model() -> list[nn.Parameter]:
    shapes = [(4, 6), (4, 6), (3, 4, 5), (2, 3, 2, 2), (5,), ()]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def fill(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)


def snapshot(optimizer: torch.optim.Optimizer, p: Tensor) -> dict[str, Tensor]:
    state = {k: v.clone() for k, v in optimizer.state.get(p, {}).items()}
    return {"weight": p.detach().clone(), **state}


def step(optimizer: torch.optim.Optimizer) -> None:
    """A step, and a step later the news of what was skipped: two warnings at the most."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the gradient of", RuntimeWarning)
        optimizer.step()


def unchanged(before: dict[str, Tensor], after: dict[str, Tensor], *, besides: str = "") -> bool:
    return all(torch.equal(before[k], after[k]) for k in before if k != besides)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_with_a_bad_gradient_is_left_out_whole(name, bad, path):
    params = model()
    optimizer = OPTIMIZERS[name](params)
    for i in range(3):
        fill(params, i)
        step(optimizer)
    fill(params, 3)
    for p in params[1:]:
        p.grad.view(-1)[-1] = bad
    before = [snapshot(optimizer, p) for p in params]
    step(optimizer)
    after = [snapshot(optimizer, p) for p in params]
    assert not torch.equal(before[0]["weight"], after[0]["weight"])
    for b, a in zip(before[1:], after[1:], strict=True):
        # On a device the clock of the refreshes runs on: the host does not know of the skip.
        assert unchanged(b, a, besides="clock" if path == "device" else "")
    assert optimizer.skipped == len(params) - 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_first_gradient_leaves_no_trace(name, path):
    """The trajectory is that of the good gradients alone, and NaN is nowhere."""
    torch.manual_seed(0)
    params = model()
    clean = copy.deepcopy(params)
    dirty, other = OPTIMIZERS[name](params), OPTIMIZERS[name](clean)
    for p in params:
        p.grad = torch.full_like(p, float("nan"))
    step(dirty)
    for i in range(12):
        fill(params, i)
        fill(clean, i)
        step(dirty)
        step(other)
    for p, q in zip(params, clean, strict=True):
        assert p.isfinite().all()
        if path == "host":
            assert torch.equal(p, q)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_device_path_computes_what_the_host_path_does(name, monkeypatch):
    def final(host: bool) -> list[Tensor]:
        monkeypatch.setattr(linalg, "host_sees", lambda device: host)
        torch.manual_seed(0)
        params = [nn.Parameter(p.detach().double()) for p in model()]
        optimizer = OPTIMIZERS[name](params)
        for i in range(25):
            for p in params:  # no gradient at first for one of the matrices of the batch
                p.grad = torch.randn(p.shape, dtype=p.dtype)
            if i < 3:
                params[2].grad[1] = 0
            optimizer.step()
        return [p.detach() for p in params]

    for host, device in zip(final(True), final(False), strict=True):
        # Each of 25 steps rounds weights of up to 4 twice, since the decay is applied in another
        # order, and an update of up to 3e-3, which the quintics of msign magnify up to 500 times
        # and the gaps of covariances up to 1000 times. The margin is 16.
        rounded = 2 * 4 + 3e-3 * 500 * 1000
        torch.testing.assert_close(device, host, rtol=0, atol=16 * 25 * rounded * 2**-53)


def test_skips_are_counted_and_warned_about(path):
    p = nn.Parameter(torch.ones(3, 3))
    optimizer = do.DeVASinf([("layer.weight", p)])
    p.grad = torch.full_like(p, float("nan"))
    with pytest.warns(RuntimeWarning, match=r"gradient of layer\.weight was not finite") as told:
        optimizer.step()
        if path == "device":  # the news arrives with the next step
            optimizer.step()
    assert {warning.filename for warning in told} == {__file__}, "not at the line of the user"
    assert optimizer.skipped == (1 if path == "host" else 2)


def test_each_name_is_counted_once_whoever_else_has_a_gradient(monkeypatch):
    """Experts without tokens have none: every step may have other names."""
    monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    params = [nn.Parameter(torch.ones(3)) for _ in range(5)]
    optimizer = do.AdamW([(name, p) for name, p in zip("abcde", params, strict=True)])
    expected = dict.fromkeys("abcde", 0)
    for i in range(1, 2**5):
        for k, (name, p) in enumerate(zip("abcde", params, strict=True)):
            bad = (i + k) % 7 == 0
            p.grad = torch.full((3,), torch.nan if bad else 1.0) if i >> k & 1 else None
            expected[name] += bad and p.grad is not None
        step(optimizer)
    log = optimizer._skips
    assert {name: log.of(name) for name in "abcde"} == expected
    assert optimizer.skipped == sum(expected.values()) > 5
    assert [len(counts) for counts in log.copies.values()] == [5]


def test_a_skip_is_news_once(monkeypatch):
    monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = do.AdamW([("a", a), ("b", b)])
    a.grad = torch.full((3,), torch.nan)
    optimizer.step()
    a.grad = b.grad = torch.ones(3)
    with pytest.warns(RuntimeWarning, match="the gradient of a was not finite"):
        optimizer.step()
    for _ in range(3):
        assert optimizer._skips.report() == set()
        optimizer.step()


def test_warnings_thin_out():
    p = nn.Parameter(torch.ones(3))
    optimizer = do.AdamW([p])
    p.grad = torch.full_like(p, float("nan"))
    with pytest.warns(RuntimeWarning) as caught:
        for _ in range(20):
            optimizer.step()
    assert optimizer.skipped == 20
    assert len(caught) == 5  # after 1, 2, 4, 8 and 16


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_raise_names_the_parameter_before_anything_has_changed(name, path):
    params = model()
    optimizer = OPTIMIZERS[name]([(f"p{i}", p) for i, p in enumerate(params)], nonfinite="raise")
    fill(params, 0)
    optimizer.step()
    before = [snapshot(optimizer, p) for p in params]
    fill(params, 1)
    params[3].grad[0, 0, 0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="p3"):
        optimizer.step()
    for p, b in zip(params, before, strict=True):
        assert unchanged(b, snapshot(optimizer, p))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_whose_square_overflows_is_taken_as_any_other(name, path):
    p = nn.Parameter(torch.ones(3, 3))
    optimizer = OPTIMIZERS[name]([{"params": [p], "role": "matrix", "skip_first": False}])
    p.grad = torch.eye(3) * 1e30  # finite, but G Gᵀ is not
    before = p.detach().clone()
    step(optimizer)
    assert not torch.equal(p, before)
    assert optimizer.skipped == 0


def test_where_the_host_may_not_look_a_gradient_beyond_the_units_is_left_out(monkeypatch):
    monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    p = nn.Parameter(torch.ones(3, 3))
    optimizer = do.DeVASinf([p])
    p.grad = torch.eye(3)  # the units are chosen by this one
    optimizer.step()
    before = snapshot(optimizer, p)
    p.grad = torch.eye(3) * 1e30
    step(optimizer)
    assert unchanged(before, snapshot(optimizer, p), besides="clock")
    step(optimizer)  # by now the host has heard of it, and waits for the size
    assert not unchanged(before, snapshot(optimizer, p), besides="clock")
    assert optimizer.skipped == 1


def test_half_precision_gradients_do_not_overflow_in_their_norm():
    p = nn.Parameter(torch.ones(64, 64, dtype=torch.float16))
    optimizer = do.DeVASinf([p])
    p.grad = torch.full_like(p, 6e4)  # the norm is beyond float16, the gradient is not
    optimizer.step()
    assert optimizer.skipped == 0


def test_the_count_survives_a_copy():
    p = nn.Parameter(torch.ones(3))
    optimizer = do.AdamW([p])
    p.grad = torch.full_like(p, float("nan"))
    step(optimizer)
    assert copy.deepcopy(optimizer).skipped == 1
