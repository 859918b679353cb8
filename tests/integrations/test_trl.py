"""TRL's trainers: SFTTrainer with PEFT's LoRA as in examples/finetune_lora_trl.py, DPOTrainer."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("trl")
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer import DEFAULT_CALLBACKS as DEFAULTS
from trl import DPOConfig, DPOTrainer

from deva_optim import DeVA
from deva_optim.integrations.accelerate import unwrap
from deva_optim.integrations.transformers import optimizer
from helpers import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # what other projects warn about is theirs

SMALL = "--rows 4 --epochs 3 --batch 2 --accumulate 2 --length 16 --rank 4 --telemetry-every 1"


class Logger(TrainerCallback):
    """Keeps what it is given to log, as the callbacks that the Trainer reports to do."""

    rows: list[dict[str, float]]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.rows.append(logs)


def test_lora_is_trained_as_matrices_at_the_rate_of_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Logger.rows = []
    example = runpy.run_path(str(ROOT / "examples" / "finetune_lora_trl.py"))
    monkeypatch.setattr("transformers.trainer.DEFAULT_CALLBACKS", [*DEFAULTS, Logger])
    settings = example["settings_of"]([*SMALL.split(), "--lr", "3e-4", "--out", str(tmp_path)])
    trainer = example["fine_tune"](settings)

    lora = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert lora
    assert all("lora_" in name and p.dtype == torch.float32 for name, p in lora.items())
    frozen = [p for p in trainer.model.parameters() if not p.requires_grad]
    assert {p.dtype for p in frozen} == {torch.bfloat16}
    groups = trainer.optimizer.param_groups
    assert {group["initial_lr"] for group in groups} == {3e-4}
    assert {group["weight_decay"] for group in groups} == {0.0}
    matrices = {id(p) for g in groups if g["role"] == "matrix" for p in g["params"]}
    assert all(id(p) in matrices for p in lora.values())
    assert {id(p) for p in trainer.optimizer.state} == {id(p) for p in lora.values()}

    own = [row for row in Logger.rows if "loss" in row]
    assert len(own) == 3  # an accumulated step for each epoch …
    assert all("mean_token_accuracy" in row for row in own)  # … with TRL's metrics beside it
    found = [row for row in Logger.rows if any(tag.startswith("msign_error") for tag in row)]
    assert len(found) == 3
    assert all(math.isfinite(x) for row in found for x in row.values())
    # By warm-up the first rate is 0. B is still zero then, and no update has a ratio to that.
    ratios = [sum("update_ratio" in tag and "lora_B" in tag for tag in row) for row in found]
    assert ratios == [len(lora) // 2, 0, len(lora) // 2]


def test_a_trainer_without_the_argument_takes_the_optimizer_as_an_attribute(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "finetune_lora_trl.py"))
    tokenizer = example["byte_tokenizer"]()
    model, reference = (example["tiny_llama"](len(tokenizer)) for _ in range(2))
    pairs = {"prompt": ["a", "b"], "chosen": ["b", "c"], "rejected": ["d", "e"]}
    args = DPOConfig(
        str(tmp_path), learning_rate=3e-4, max_steps=1, use_cpu=True, report_to="none", bf16=True
    )
    given = {"args": args, "train_dataset": Dataset.from_dict(pairs), "processing_class": tokenizer}
    with pytest.raises(TypeError, match="optimizer_cls_and_kwargs"):  # or say so in the docs
        DPOTrainer(model, optimizer_cls_and_kwargs=optimizer(DeVA, args), **given)
    trainer = DPOTrainer(model, reference, **given)
    trainer.optimizer_cls_and_kwargs = optimizer(DeVA, args)
    trainer.train()
    found = unwrap(trainer.optimizer)
    assert type(found) is DeVA
    assert {group["initial_lr"] for group in found.param_groups} == {3e-4}
    roles = {name: g["role"] for g in found.param_groups for name in g["param_names"]}
    assert roles["model.embed_tokens.weight"] == roles["lm_head.weight"] == "vector"
    assert roles["model.layers.0.mlp.up_proj.weight"] == "matrix"
