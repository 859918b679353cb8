"""Whole trainings, on the model and the text of examples/compare.py."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import compare
import deva_optim as do
from compare import GPT, Run, Settings, Text, batches, loss_of, train
from optimizers import OPTIMIZERS

SMALL = Settings(
    seed=1, steps=160, batch=16, context=64, layers=2, width=48, heads=2, evaluations=1, windows=64
)
TINY = replace(SMALL, steps=40, batch=4, context=32, layers=1, width=16)


@pytest.fixture(scope="module")
def text() -> Text:
    return compare.read_text()


# --- What DeVA is for ----------------------------------------------------------------------------


@pytest.mark.slow
def test_deva_beats_adamw_each_at_its_best_rate(text: Text) -> None:
    def final(name: str, lr: float) -> float:
        model = GPT(SMALL)
        return train(model, compare.OPTIMIZERS[name][0](model, lr), text, SMALL).final

    rates = (4e-3, 8e-3, 16e-3, 32e-3)  # the ends are the best of neither
    adamw, deva = (min(final(name, lr) for lr in rates) for name in ("AdamW", "DeVA"))
    assert deva < adamw - 0.05  # 0.10 to 0.16 below, over four seeds


def test_bfloat16_weights_train(text: Text) -> None:
    model = GPT(TINY).bfloat16()
    run = train(model, do.DeVA(model, lr=1e-2), text, TINY)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert run.losses[0] > 5.5  # log 256: all bytes alike
    assert run.final < 3.4


def test_a_bfloat16_state_changes_next_to_nothing(text: Text) -> None:
    settings = replace(TINY, steps=80)

    def run(dtype: torch.dtype) -> Run:
        model = GPT(settings)
        return train(model, do.DeVA(model, lr=1e-2, state_dtype=dtype), text, settings)

    wide, narrow = run(torch.float32), run(torch.bfloat16)
    assert narrow.state_mb < wide.state_mb
    assert narrow.final != wide.final
    assert narrow.final == pytest.approx(wide.final, rel=5e-3)


# --- What holds for every optimizer --------------------------------------------------------------


def build(name: str, model: GPT) -> Optimizer:
    lr = 10.0 if name == "splus" else 1e-2  # SPlus divides it by the size of the matrix
    return OPTIMIZERS[name](do.param_groups(model), lr=lr)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns(name: str, text: Text) -> None:
    model = GPT(TINY)
    run = train(model, build(name, model), text, TINY)
    assert run.losses[0] > 5.5  # log 256: all bytes alike
    assert run.final < 3.4
    model.blocks = nn.Sequential()  # the hidden matrices had their part in it
    assert compare.evaluate(model, compare.held_out(text, TINY)) > run.final


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_continues_bit_for_bit(name: str, text: Text, tmp_path: Path) -> None:
    settings = replace(TINY, steps=26)  # saved between two refreshes, with one more to come
    all_batches = list(batches(text, settings))
    model = GPT(settings)
    optimizer = build(name, model)
    scheduler = LambdaLR(optimizer, settings.schedule)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    advance_(model, optimizer, scheduler, all_batches[:13])
    torch.save({key: part.state_dict() for key, part in parts.items()}, tmp_path / "13.pt")
    expected = advance_(model, optimizer, scheduler, all_batches[13:])

    resumed = GPT(replace(settings, seed=2))
    optimizer = build(name, resumed)
    scheduler = LambdaLR(optimizer, settings.schedule)
    saved = torch.load(tmp_path / "13.pt")
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    assert advance_(resumed, optimizer, scheduler, all_batches[13:]) == expected
    for ours, theirs in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def advance_(
    model: GPT, optimizer: Optimizer, scheduler: LambdaLR, batches: list[Tensor]
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


# --- The script ----------------------------------------------------------------------------------


def test_the_script_prints_a_table_of_all_optimizers(capsys: pytest.CaptureFixture[str]) -> None:
    compare.main(["--steps", "1"])
    *_, table = capsys.readouterr().out.split("\n\n")
    names = {line.split()[0] for line in table.splitlines()[2:]}
    assert names == set(compare.OPTIMIZERS) == {"DeVA", "Muon", "SOAP", "AdamW"}
    assert "100%" in table


def test_the_script_names_the_nearest_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main(["--optimizers", "sop"])
    assert "unknown optimizer 'sop', did you mean soap?" in capsys.readouterr().err


def test_steps_to_a_loss_lie_on_the_line_between_evaluations() -> None:
    run = Run({0: 6.0, 10: 4.0, 20: 3.0}, model_ms=1.0, optimizer_ms=1.0, state_mb=1.0)
    assert run.steps_to(3.5) == 15
    assert run.steps_to(7.0) == 0
    assert run.steps_to(2.0) is None
