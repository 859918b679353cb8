"""TRL's SFTTrainer with PEFT's LoRA, as examples/finetune_lora_trl.py uses them."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("trl")
from transformers import TrainerCallback
from transformers.trainer import DEFAULT_CALLBACKS as DEFAULTS

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
