"""DeVA in the Trainer of Transformers: a tiny Llama learns to count; run it again and it goes on.

python examples/hf_trainer.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from deva_optim import DeVA
from deva_optim.integrations.transformers import TelemetryCallback, optimizer


def counting(
    rows: int = 64, length: int = 16, vocabulary: int = 64
) -> list[dict[str, torch.Tensor]]:
    """Rows of numbers, each one more than the last."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(vocabulary, (rows, 1), generator=generator)
    tokens = (start + torch.arange(length)) % vocabulary
    return [{"input_ids": row, "labels": row} for row in tokens]


def tiny_llama() -> LlamaForCausalLM:
    """Two layers of width 32, grouped queries."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=16))


def train(folder: Path, epochs: int) -> list[float]:
    """Train up to so many epochs, going on from the last one in the folder; returns the losses."""
    model = tiny_llama()
    settings = TrainingArguments(
        output_dir=str(folder),
        learning_rate=1e-2,  # for so small a model; `DeVA` gets it from here, as it gets the decay
        weight_decay=0.1,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=4,
        max_grad_norm=0,  # `deva_optim.clip_grad_norm_` says what clipping does to these updates
        logging_steps=1,
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        settings,
        train_dataset=counting(),
        optimizer_cls_and_kwargs=optimizer(DeVA, settings),
    )
    trainer.add_callback(TelemetryCallback(trainer, every=4))  # to what `report_to` names
    last = get_last_checkpoint(str(folder)) if folder.exists() else None
    trainer.train(resume_from_checkpoint=last)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    train(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/trainer"), epochs=8)
