"""Fine-tuning a causal LM in bfloat16 with LoRA, TRL's SFTTrainer and DeVA.

python examples/finetune_lora_trl.py --model meta-llama/Llama-3.2-1B --data rows.jsonl
accelerate launch examples/finetune_lora_trl.py …

Run it again and it goes on from its last checkpoint. Each line of the data is {"text": …}, or has
another form that SFTTrainer takes. Without a model a tiny Llama is made from a configuration, and
without data it reads Python's manual, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from pathlib import Path

import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as FastTokenizer
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from deva_optim import DeVA
from deva_optim.integrations.transformers import TelemetryCallback, optimizer


def byte_tokenizer() -> FastTokenizer:
    """A token for each byte, and one that ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return FastTokenizer(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def tiny_llama(vocabulary: int) -> LlamaForCausalLM:
    """Two layers of width 32, in bfloat16."""
    torch.manual_seed(0)
    sizes = {"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).to(torch.bfloat16)


def rows(data: str | None, count: int | None) -> Dataset:
    """The rows of a file, or the topics of Python's manual; all of them, or so many."""
    if data is not None:
        found = load_dataset("json", data_files=data, split="train")
    else:
        found = Dataset.from_dict({"text": list(pydoc_data.topics.topics.values())})
    return found if count is None else found.select(range(count))


def fine_tune(settings: argparse.Namespace) -> SFTTrainer:
    """Fine-tune, going on from the last checkpoint if there is one; returns the trainer."""
    if settings.model is None:
        tokenizer = byte_tokenizer()
        model = tiny_llama(len(tokenizer))
    else:
        tokenizer = AutoTokenizer.from_pretrained(settings.model)
        model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.bfloat16)
    args = SFTConfig(
        output_dir=settings.out,
        learning_rate=settings.lr,
        weight_decay=0.0,
        lr_scheduler_type="cosine",
        warmup_steps=0.03,  # of all steps
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulate,
        max_length=settings.length,
        bf16=True,
        use_cpu=not torch.accelerator.is_available(),
        logging_steps=1,
        save_steps=settings.save_every,
        report_to=settings.report_to,
    )
    trainer = SFTTrainer(
        model,
        args,
        train_dataset=rows(settings.data, settings.rows),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=settings.rank, lora_alpha=32, target_modules="all-linear"),
        optimizer_cls_and_kwargs=optimizer(DeVA, args),
    )
    trainer.add_callback(TelemetryCallback(trainer, every=settings.telemetry_every))
    last = get_last_checkpoint(settings.out) if Path(settings.out).exists() else None
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model()
    return trainer


def settings_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The settings, from the command line unless others are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a name of the hub, or a folder; a tiny one if left out")
    parser.add_argument("--data", help="a file of JSON lines; Python's manual if left out")
    parser.add_argument("--rows", type=int, help="how many rows of it; all if left out")
    parser.add_argument("--out", default="runs/lora")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--telemetry-every", type=int, default=50)
    parser.add_argument("--report-to", default="none", help="tensorboard, wandb, …")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    fine_tune(settings_of())
