"""Whole trainings of a small GPT on the bytes of Python's own library."""

import math
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import deva_optim as do
from deva_lab.language import Windows, held_out
from deva_lab.models.gpt import GPT, GPTSize
from helpers import OPTIMIZERS, every_class


@dataclass(frozen=True)
class Setting:
    size: GPTSize
    batch: int
    steps: int

    def model(self, seed: int = 1) -> GPT:
        torch.manual_seed(seed)
        return GPT(self.size, vocabulary=256)

    def batches(self) -> list[Tensor]:
        train, _ = text()
        windows = Windows(train, context=self.size.context, batch=self.batch, seed=1)
        return [windows.batch(step) for step in range(self.steps)]

    def rate(self, step: int) -> float:
        return min(1.0, 2 * (self.steps - step) / self.steps)


SMALL = Setting(GPTSize(2, 48, 24, 64, value_embeddings=1), batch=16, steps=160)
TINY = Setting(GPTSize(1, 16, 8, 32, value_embeddings=1), batch=4, steps=40)
UNIFORM = math.log(256)  # all bytes alike: the head starts at zero


@cache
def text() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on and bytes of other files to be judged by."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-h]*.py"))
    sides = (files[1::2], files[::10])
    joined = [b"".join(path.read_bytes() for path in side) for side in sides]
    return np.frombuffer(joined[0], np.uint8), np.frombuffer(joined[1], np.uint8)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def validate(model: nn.Module, setting: Setting) -> float:
    return loss_of(model, held_out(text()[1], context=setting.size.context, windows=64)).item()


def advance_(
    model: nn.Module, optimizer: Optimizer, scheduler: LambdaLR, batches: Sequence[Tensor]
) -> list[float]:
    """Train on some batches; the loss of each."""
    losses = []
    for tokens in batches:
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return losses


def trained(model: nn.Module, optimizer: Optimizer, setting: Setting) -> float:
    """The validation loss after training a model in place."""
    advance_(model, optimizer, LambdaLR(optimizer, setting.rate), setting.batches())
    return validate(model, setting)


# --- What DeVA is for ----------------------------------------------------------------------------


@pytest.mark.slow
def test_deva_beats_adamw_each_at_its_best_rate() -> None:
    def best(build: type[Optimizer], rates: tuple[float, ...]) -> float:
        losses = []
        for lr in rates:
            model = SMALL.model()
            losses.append(trained(model, build(do.param_groups(model), lr=lr), SMALL))
        # Else the best may lie beyond. Rounding alone moves a loss by 0.01, the ends are 0.1 above.
        assert min(losses) < min(losses[0], losses[-1]) - 0.03
        return min(losses)

    deva = best(do.DeVA, (8e-3, 32e-3, 256e-3))
    adamw = best(do.AdamW, (8e-3, 32e-3, 64e-3))
    assert deva < adamw - 0.05


def test_bfloat16_weights_train() -> None:
    model = TINY.model().bfloat16()
    assert validate(model, TINY) == pytest.approx(UNIFORM, rel=2**-8)  # one rounding
    assert trained(model, do.DeVA(model, lr=1e-2), TINY) < 3.6
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.parametrize("name", ["deva", "muon"])
def test_bfloat16_weights_lose_nothing_at_a_small_rate(name: str) -> None:
    setting = Setting(SMALL.size, batch=4, steps=80)

    def run(dtype: torch.dtype, **options: bool) -> float:
        model = setting.model().to(dtype)
        optimizer = OPTIMIZERS[name](do.param_groups(model), lr=5e-4, **options)
        trained(model, optimizer, setting)
        return validate(model.float(), setting)

    wide, half = run(torch.float32), run(torch.bfloat16)
    nearest = run(torch.bfloat16, stochastic_rounding=False)
    assert abs(half - wide) < 0.01
    assert nearest > wide + 0.02  # an update is a fifth of the spacing of most weights


def test_a_bfloat16_state_changes_next_to_nothing() -> None:
    setting = Setting(TINY.size, TINY.batch, steps=80)

    def run(dtype: torch.dtype) -> tuple[float, int]:
        model = setting.model()
        optimizer = do.DeVA(model, lr=1e-2, state_dtype=dtype)
        loss = trained(model, optimizer, setting)
        values = (value for state in optimizer.state.values() for value in state.values())
        return loss, sum(value.nbytes for value in values)

    (wide, wide_bytes), (narrow, narrow_bytes) = run(torch.float32), run(torch.bfloat16)
    assert narrow_bytes < wide_bytes
    assert narrow != wide
    # Averages are rounded by 2⁻⁸ of themselves. Of the loss that is no more: it is a mean over all
    # of them, with errors of either sign.
    assert narrow == pytest.approx(wide, rel=2**-8)


@pytest.mark.parametrize(("name", "share"), [("adamw", 0.35), ("muon", 0.35), ("deva", 0.7)])
def test_a_state_of_one_byte_a_number_changes_little(name: str, share: float) -> None:
    setting = Setting(SMALL.size, batch=8, steps=60)

    def run(dtype: torch.dtype | str | None) -> tuple[float, int]:
        model = setting.model()
        optimizer = OPTIMIZERS[name](do.param_groups(model), lr=2e-3, state_dtype=dtype)
        loss = trained(model, optimizer, setting)
        values = (value for state in optimizer.state.values() for value in state.values())
        return loss, sum(value.nbytes for value in values)

    (wide, wide_bytes), (narrow, narrow_bytes) = run(None), run("int8")
    assert narrow_bytes < share * wide_bytes
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.005)


# --- What holds for every optimizer --------------------------------------------------------------


def build(name: str, model: GPT) -> Optimizer:
    lr = 10.0 if name == "splus" else 1e-2  # SPlus divides it by the size of the matrix
    return OPTIMIZERS[name](do.param_groups(model), lr=lr)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns(name: str) -> None:
    model = TINY.model()
    # A mean of 2048 equal numbers in float32, in whatever order.
    assert validate(model, TINY) == pytest.approx(UNIFORM, rel=2048 * 2**-24)
    assert trained(model, build(name, model), TINY) < 3.6


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_with_hidden_matrices_alone(name: str) -> None:
    model = TINY.model()
    nn.init.normal_(model.head.weight, std=0.3)
    for module in (model.embedding, model.values, model.head):
        module.requires_grad_(False)
    before = validate(model, TINY)
    assert trained(model, build(name, model), TINY) < before - 0.2


@every_class  # of every variant, test_contract_state knows the state
def test_a_resumed_run_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    setting = Setting(TINY.size, TINY.batch, steps=26)  # saved between two refreshes
    batches = setting.batches()
    model = setting.model()
    optimizer = build(name, model)
    scheduler = LambdaLR(optimizer, setting.rate)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    advance_(model, optimizer, scheduler, batches[:13])
    torch.save({key: part.state_dict() for key, part in parts.items()}, tmp_path / "13.pt")
    expected = advance_(model, optimizer, scheduler, batches[13:])

    resumed = setting.model(seed=2)
    optimizer = build(name, resumed)
    scheduler = LambdaLR(optimizer, setting.rate)
    saved = torch.load(tmp_path / "13.pt")
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    assert advance_(resumed, optimizer, scheduler, batches[13:]) == expected
    for ours, theirs in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
