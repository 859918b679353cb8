"""The recipe for modded-nanogpt's track: its numbers, and that a small one of its kind trains."""

import numpy as np
import pytest
import torch

from deva_lab.data.corpus import write_shards
from deva_lab.errors import UsageError
from deva_lab.models.gpt import TrackGPT, TrackSize
from deva_lab.race import track
from deva_lab.race.track import DECAY, RATE, Track, batches, build, run
from deva_optim import DeVA
from ranks import run as on_ranks

SMALL = Track(
    TrackSize(layers=2, width=32, head=16, vocabulary=64, dtype=torch.float32),
    context=16,
    batch=8,
    micro=4,
    validation=8,
    evaluate_every=10,
)
SETTINGS = {"lr": 0.02, "weight_decay": 0.1, "seed": 0}
CPU = torch.device("cpu")


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(0)
    sizes = {"val_000000": 300, "train_000001": 2000, "train_000002": 2000}
    # the next token is one of three
    walks = {name: np.cumsum(rng.integers(0, 3, size)) % 64 for name, size in sizes.items()}
    made = ((f"made_{name}.bin", [walk]) for name, walk in walks.items())
    write_shards(tmp_path / "shards", made, vocabulary=64)
    return tmp_path / "shards"


def trained(folder: str, optimizer: str, steps: int = 20) -> list[tuple[int, float]]:
    how = {"device": CPU, "report": print, "steps": steps, **SETTINGS}
    return run(SMALL, folder, optimizer=optimizer, **how)


def test_the_setting_is_the_tracks():
    """12 layers of 768, 524,288 tokens a step, 10,485,760 tokens of validation."""
    full = Track()
    assert full.batch * full.context == 524_288
    assert full.validation * full.context == 20 * 524_288
    with torch.device("meta"):
        model = TrackGPT(full.size)
    width, ids = 768, 50_304
    block = 4 * (width**2 + width) + 2 * 4 * width**2 + 5 * width + 2 * width
    count = sum(p.numel() for p in model.parameters())
    assert count == 12 * block + ids * width + (ids * width + ids) + 2 * width
    assert RATE * 0.2 * width**0.5 == pytest.approx(0.025)
    assert pytest.approx(0.025 * 0.025) == RATE * DECAY


def test_the_entry_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = TrackGPT(SMALL.size)
    adamw, ours = build(model, "deva:variant=whitened", lr=0.01, weight_decay=0.1)
    assert isinstance(ours, DeVA)
    assert [g["variant"] for g in ours.param_groups] == ["whitened"]
    mine = {id(p) for g in ours.param_groups for p in g["params"]}
    assert len(mine) == 2 * 6
    theirs = {id(p) for g in adamw.param_groups for p in g["params"]}
    assert mine | theirs == {id(p) for p in model.parameters()}
    assert not mine & theirs


@pytest.mark.parametrize("optimizer", ["deva:variant=whitened", "muon:nesterov=true", "adamw"])
def test_a_small_one_trains(shards, optimizer, capsys):
    curve = trained(str(shards), optimizer)
    assert [step for step, _ in curve] == [0, 10, 20]
    # The head starts at zero; a mean of some hundred equal numbers in float32.
    assert curve[0][1] == pytest.approx(np.log(64), rel=1000 * 2**-24)
    assert curve[-1][1] < 0.9 * curve[0][1]
    assert "step:20/20 val_loss:" in capsys.readouterr().out


def test_batches_go_through_the_shards_in_order(shards):
    (train,) = [sorted(shards.glob("*train*"))]
    first, second = (next(batches([path], 8, 16, CPU))[0] for path in train)
    found = [inputs for inputs, _ in zip_first(batches(train, 8, 16, CPU), 16)]
    assert torch.equal(found[0], first)
    assert torch.equal(found[15], second)  # 15 whole batches of 128 in 2000 tokens
    inputs, targets = next(batches(train, 8, 16, CPU))
    assert torch.equal(inputs.flatten()[1:], targets.flatten()[:-1])


def zip_first(pairs, count):
    return [next(pairs) for _ in range(count)]


def test_too_few_tokens_and_no_shards_are_said(shards, tmp_path):
    with pytest.raises(UsageError, match="2 shards have too few tokens"):
        list(batches(sorted(shards.glob("*train*")), 8, 16, CPU))
    with pytest.raises(UsageError, match="has no .bin shards"):
        trained(str(tmp_path / "no"), "deva")


def test_two_ranks_train_as_one(shards):
    alone = trained(str(shards), "deva:variant=whitened", 5)
    for curve in on_ranks(2, trained, str(shards), "deva:variant=whitened", 5):
        for (step, ours), (_, theirs) in zip(curve, alone, strict=True):
            # Sums of float32 in another order, 2⁻²⁴ at each of five steps, which the quintics may
            # magnify 3.4⁵ ≈ 500 times. A step moves the loss by a tenth at the most: a margin of
            # 10.
            assert ours == pytest.approx(theirs, rel=5 * 500 * 2**-24), step


def test_what_it_is_asked(capsys):
    with pytest.raises(SystemExit):
        track.main(["--help"])
    assert "--weight-decay" in capsys.readouterr().out
