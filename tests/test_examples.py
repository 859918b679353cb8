"""The examples run as they are: the loss falls, and a run that was broken off goes on."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from helpers import ROOT, needs_posix
from ranks import LIMIT, run

EXAMPLES = ROOT / "examples"
NEEDS = {"accelerate_loop": "accelerate", "hf_trainer": "accelerate", "lightning_fit": "lightning"}
# Those for plain torch, with sizes that take a moment.
ALONE = {
    "nanochat_loop": "--layers 2 --width 32 --heads 2 --context 16 --batch 8 --momentum-steps 4",
    "vision_finetune": "--layers 2 --width 16 --heads 2 --pixels 8 --batch 32 --classes 3 "
    "--warmup 2 --lr 0.01",
}
ON_RANKS = {
    "pretrain_fsdp2": "--layers 2 --width 32 --heads 2 --context 16 --batch 4 --warmup 2",
    "ddp_process_group": "--layers 2 --width 32 --context 8 --batch 64 --warmup 2",
}

pytestmark = pytest.mark.filterwarnings("ignore")  # what other projects warn about is theirs
Train = Callable[[Path, int], list[float]]


def train_of(name: str) -> Train:
    pytest.importorskip(NEEDS[name])
    train: Any = runpy.run_path(str(EXAMPLES / f"{name}.py"))["train"]
    return train


def test_every_example_is_here() -> None:
    others = {"finetune_lora_trl", "experts_without_tokens", "lora_rates", "precision"}
    found = {file.stem for file in EXAMPLES.glob("*.py")}
    assert found == set().union(NEEDS, ALONE, ON_RANKS, others)


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_learns_and_goes_on_where_it_stopped(name: str, tmp_path: Path) -> None:
    train = train_of(name)
    whole = train(tmp_path / "whole", 3)  # of four steps each
    assert len(whole) == 12
    assert whole[-1] < 0.7 * whole[0]
    first = train(tmp_path / "parts", 2)
    then = train(tmp_path / "parts", 3)
    # The Trainer remembers its losses, rounded; the others tell of the steps that they have taken.
    assert [*first, *then][-12:] == whole if name != "hf_trainer" else then == whole


def test_the_example_of_lightning_logs_telemetry(tmp_path: Path) -> None:
    train_of("lightning_fit")(tmp_path, 2)
    (log,) = tmp_path.rglob("metrics.csv")
    assert "update_ratio/gpt2.transformer.h.1.mlp.c_fc.weight" in log.read_text().splitlines()[0]


@pytest.mark.parametrize("name", ALONE)
def test_an_example_for_plain_torch_goes_on_where_it_was_broken_off(
    name: str, tmp_path: Path
) -> None:
    script = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    words = [
        *ALONE[name].split(),
        "--accumulate=2",
        "--steps=12",
        "--save-every=5",
        "--log-every=1",
    ]

    def train(folder: str) -> list[float]:
        losses: list[float] = script["train"](script["arguments"]([*words, "--folder", folder]))
        return losses

    def break_off(line: str) -> None:
        if line.startswith("step 8"):
            raise KeyboardInterrupt

    whole = train(str(tmp_path / "whole"))
    assert len(whole) == 12
    assert whole[-1] < 0.9 * whole[0]
    script["train"].__globals__["print"] = break_off
    with pytest.raises(KeyboardInterrupt):
        train(str(tmp_path / "parts"))
    del script["train"].__globals__["print"]
    assert train(str(tmp_path / "parts")) == whole[5:]


def test_the_loop_of_nanochat_schedules_all_of_it(tmp_path: Path) -> None:
    script = runpy.run_path(str(EXAMPLES / "nanochat_loop.py"))
    words = [*ALONE["nanochat_loop"].split(), "--steps=8", "--folder", str(tmp_path)]
    seen: list[list[tuple[float, ...]]] = []
    inner = script["schedule"]

    def watched(optimizer: Any, step: int, options: Any) -> None:
        inner(optimizer, step, options)
        groups = [g for g in optimizer.param_groups if g["role"] == "matrix"]
        seen.append([(g["lr"], g["momentum"], g["weight_decay"]) for g in groups])
        if step == 0:
            rates = {n: g["lr"] for g in optimizer.param_groups for n in g["param_names"]}
            kinds = ("blocks.0.q.weight", "tokens.weight", "head.weight", "stream")
            assert [rates[name] for name in kinds] == [0.01, 0.2, 0.004, 0.01]

    script["train"].__globals__["schedule"] = watched
    script["train"](script["arguments"](words))
    (first,), (fourth,), (last,) = (set(seen[i]) for i in (0, 4, 7))
    assert first == pytest.approx((0.01, 0.7, 0.1))
    assert fourth == pytest.approx((0.01, 0.8, 0.05))
    assert last == pytest.approx((0.01 * 0.125 / 0.4, 0.8, 0.1 * 0.125))


def whole_and_parts(name: str, folder: str) -> tuple[list[float], list[float]]:
    """Losses of six steps, and of those after the third when the last checkpoint is lost."""
    script = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    sizes = [*ON_RANKS[name].split(), "--steps=6", "--save-every=3", "--accumulate=2"]
    options = script["arguments"]([*sizes, "--folder", folder])
    whole = script["train"](options)
    if dist.get_rank() == 0:
        shutil.rmtree(Path(folder) / "step-6")
    dist.barrier()
    return whole, script["train"](options)


@pytest.mark.parametrize("name", ON_RANKS)
def test_an_example_for_ranks_goes_on_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    for whole, parts in run(2, whole_and_parts, name, str(tmp_path)):
        assert len(whole) == 6
        assert whole[-1] < whole[0]
        assert parts == whole[3:]
    assert {path.name for path in tmp_path.iterdir()} == {"step-3", "step-6"}


@needs_posix
@pytest.mark.slow
def test_an_example_for_ranks_is_run_by_torchrun(tmp_path: Path) -> None:
    name = "pretrain_fsdp2"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        words = [*ON_RANKS[name].split(), "--steps=3", "--log-every=1", "--folder", str(folder)]
        done = subprocess.run(
            [*torchrun, str(EXAMPLES / f"{name}.py"), *words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        # A thread of gloo may abort a process that is ending already (pytorch/pytorch#190489).
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 2: ") == 1  # one rank speaks
    assert [path.name for path in folder.iterdir()] == ["step-3"]


def test_fine_tuning_goes_on_from_the_checkpoint_that_is_left(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("trl")
    example: Any = runpy.run_path(str(EXAMPLES / "finetune_lora_trl.py"))
    small = "--rows 8 --epochs 3 --lr 2e-2 --batch 2 --accumulate 2 --length 16 --save-every 2"
    settings = example["settings_of"]([*small.split(), "--out", str(tmp_path)])
    whole = example["fine_tune"](settings)
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert len(losses) == 6
    assert max(losses[-2:]) < min(losses[:2]) - 0.02
    for checkpoint in ("checkpoint-4", "checkpoint-6"):  # as if it had been stopped at step 3
        shutil.rmtree(tmp_path / checkpoint)
    then = example["fine_tune"](settings)
    assert [e["loss"] for e in then.state.log_history if "loss" in e] == losses
    for ours, theirs in zip(then.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_measurement_of_lora_has_a_row_for_each_method(seeds: int, capsys) -> None:
    pytest.importorskip("peft")
    runpy.run_path(str(EXAMPLES / "lora_rates.py"))["main"](seeds, 2, [1e-2], 2)
    rows = capsys.readouterr().out.splitlines()
    methods = ["AdamW", "DeVA, A and B elementwise", "DeVA, A and B matrices"]
    assert [row[:28].strip() for row in rows[2:5]] == methods
    assert all(row.count("±") == 1 for row in rows[2:5])
    assert [row.split(":")[0] for row in rows[5:7]] == methods[1:]


def test_the_measurement_of_experts_says_what_each_answer_costs(capsys) -> None:
    runpy.run_path(str(EXAMPLES / "experts_without_tokens.py"))["main"](2, 1)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" loss")[0].split()[0] for row in rows] == 3 * ["Muon"] + 3 * ["DeVA"]


def test_the_measurement_of_experts_has_defaults_for_each_argument(capsys) -> None:
    main = runpy.run_path(str(EXAMPLES / "experts_without_tokens.py"))["main"]
    runs = []
    main.__globals__["train"] = lambda *run: runs.append(run) or (1.0, 0.5)
    main(2)
    assert {(steps, seed) for _, _, steps, seed in runs} == {(2, seed) for seed in range(5)}
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_the_measurement_of_precision_says_what_rounding_loses(capsys) -> None:
    runpy.run_path(str(EXAMPLES / "precision.py"))["main"](2, 1)
    rows = capsys.readouterr().out.splitlines()
    assert (rows[0][:7], rows[7][:5]) == ("weights", "state")
    kinds = 2 * ["DeVA"] + 2 * ["AdamW"] + 2 * ["Muon"]
    assert [row.split(",")[0] for row in (*rows[1:7], *rows[8:])] == 2 * kinds
