"""The Trainer of Transformers: what reaches the optimizer, what goes on, and what is logged."""

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

pytest.importorskip("accelerate")
from accelerate.utils.fsdp_utils import fsdp2_switch_optimizer_parameters
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import deva_optim
from deva_optim import DeVA, param_groups
from deva_optim.integrations.transformers import TelemetryCallback, optimizer
from helpers import same

pytestmark = pytest.mark.filterwarnings("ignore")  # what other projects warn about is theirs

Row = dict[str, float]


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, attention_bias=True))


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    steps: dict[str, Any] = {"max_steps": 2, "save_strategy": "no"}
    given = {**quiet, **steps, "per_device_train_batch_size": 4, **settings}
    return TrainingArguments(output_dir=str(folder), **given)


def trainer_of(args: TrainingArguments, pair: Any, *callbacks: TrainerCallback) -> Trainer:
    tokens = torch.randint(32, (24, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    settings: dict[str, Any] = {"optimizer_cls_and_kwargs": pair, "callbacks": list(callbacks)}
    return Trainer(llama(), args, train_dataset=data, **settings)


def trained(args: TrainingArguments, pair: Any) -> dict[str, dict[str, Any]]:
    """The groups after training, by name."""
    trainer = trainer_of(args, pair)
    trainer.train()
    assert trainer.optimizer is not None
    return {group["name"]: group for group in trainer.optimizer.param_groups}


# The arguments ------------------------------------------------------------------------------------


def test_rate_and_decay_of_the_arguments_reach_every_group(tmp_path: Path) -> None:
    given = {"learning_rate": 3e-3, "weight_decay": 0.05, "lr_scheduler_type": "constant"}
    args = arguments(tmp_path, **given)
    groups = trained(args, optimizer(DeVA, args))
    assert {name: group["lr"] for name, group in groups.items()} == dict.fromkeys(groups, 3e-3)
    decay = {"matrix": 0.05, "vector": 0.05, "vector, no decay": 0.0}
    assert {name: group["weight_decay"] for name, group in groups.items()} == decay
    embedding_and_head = [tuple(p.shape) for p in groups["vector"]["params"]]
    assert embedding_and_head == [(32, 16), (32, 16)]  # the model was given, not its tensors


def test_options_win_over_the_arguments(tmp_path: Path) -> None:
    args = arguments(tmp_path, learning_rate=3e-3, weight_decay=0.05, lr_scheduler_type="constant")
    groups = trained(args, optimizer(DeVA, args, lr=0.01, refresh_every=7))
    assert {group["lr"] for group in groups.values()} == {0.01}
    assert groups["matrix"]["weight_decay"] == 0.05
    assert groups["matrix"]["refresh_every"] == 7


def made(args: TrainingArguments, cls: Any, **options: Any) -> dict[str, Any]:
    """The first group of what the Trainer makes of the pair."""
    found = trainer_of(args, optimizer(cls, args, groups=param_groups, **options))
    group: dict[str, Any] = found.create_optimizer().param_groups[0]
    return group


def test_arguments_are_read_when_the_trainer_asks(tmp_path: Path) -> None:
    args = arguments(tmp_path, learning_rate=3e-3)
    trainer = trainer_of(args, optimizer(DeVA, args))
    args.learning_rate = 1e-4  # as a search over it does
    assert trainer.create_optimizer().param_groups[0]["lr"] == 1e-4


def test_the_betas_of_adam_are_those_of_adamw(tmp_path: Path) -> None:
    args = arguments(tmp_path, adam_beta1=0.8, adam_beta2=0.97, adam_epsilon=1e-6)
    group = made(args, deva_optim.AdamW)
    assert (*group["betas"], group["eps"]) == (0.8, 0.97, 1e-6)
    assert tuple(made(args, deva_optim.AdamW, betas=(0.7, 0.9))["betas"]) == (0.7, 0.9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cls", [deva_optim.DeVA, deva_optim.Muon, deva_optim.SOAP])
def test_what_is_not_read_is_said(cls: Any, tmp_path: Path) -> None:
    made(arguments(tmp_path), cls)
    with pytest.warns(UserWarning, match=rf"adam_beta2=0.95 .* is not read for {cls.__name__}"):
        made(arguments(tmp_path, adam_beta2=0.95), cls)
    with pytest.warns(UserWarning, match="optim_args='betas=0.9' .* is not read"):
        made(arguments(tmp_path, optim_args="betas=0.9"), cls)


# Schedule and checkpoints -------------------------------------------------------------------------


def test_the_schedule_multiplies_every_group(tmp_path: Path) -> None:
    args = arguments(tmp_path, learning_rate=4e-3, lr_scheduler_type="linear", max_steps=4)
    rates = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
            rates.append({group["lr"] for group in optimizer.param_groups})

    def groups(model: nn.Module) -> Any:
        return param_groups(model, overrides=[("embed_tokens", {"lr": 1e-3})])

    trainer_of(args, optimizer(DeVA, args, groups=groups), Watch()).train()
    assert rates == [{4e-3 * (1 - i / 4), 1e-3 * (1 - i / 4)} for i in range(4)]


def test_a_run_that_was_broken_off_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    saved: dict[str, Any] = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    args = arguments(tmp_path, learning_rate=1e-2, lr_scheduler_type="cosine", **saved)
    whole = trainer_of(args, optimizer(DeVA, args, refresh_every=2))
    whole.train()
    resumed = trainer_of(args, optimizer(DeVA, args, refresh_every=2))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == 6
    same(dict(resumed.model.named_parameters()), dict(whole.model.named_parameters()))
    assert resumed.optimizer is not None
    assert whole.optimizer is not None
    same(resumed.optimizer.state_dict()["state"], whole.optimizer.state_dict()["state"])


@pytest.fixture
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def step(model: nn.Module, found: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for param in model.parameters():
        grad = torch.randn(param.shape, generator=generator)
        if isinstance(param, DTensor):
            grad = DTensor.from_local(grad, param.device_mesh, param.placements)
        param.grad = grad
    found.step()


def shard(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (1,))
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            sharded = distribute_tensor(param.detach(), mesh, [Replicate()])
            setattr(module, name, nn.Parameter(sharded))


@pytest.mark.usefixtures("_one_rank")
@pytest.mark.parametrize("first", ["shard", "optimizer"])
def test_the_model_may_be_sharded_before_or_after(first: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, learning_rate=1e-2)
    (factory, options), models = optimizer(DeVA, args), (llama(), llama())
    alone = factory()(models[0], **options)
    step(models[0], alone)

    if first == "shard":
        shard(models[1])
        found = factory()(models[1], **options)
    else:
        found = factory()(models[1], **options)
        before = dict(models[1].named_parameters())
        shard(models[1])
        after = dict(models[1].named_parameters())
        mapping = {p.data_ptr: after[name] for name, p in before.items()}
        # Accelerate puts tensors in the place of the parameters, which know where those were.
        places = [[p.data_ptr for p in group["params"]] for group in found.param_groups]
        for group, of in zip(found.param_groups, places, strict=True):
            group["params"] = [Placeholder(place) for place in of]
        fsdp2_switch_optimizer_parameters(found, mapping)
    step(models[1], found)
    for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        assert isinstance(ours, DTensor)
        torch.testing.assert_close(ours.full_tensor(), theirs, rtol=0, atol=1e-6)


class Placeholder:
    """What Accelerate leaves of a parameter while it shards the model."""

    def __init__(self, data_ptr: Any) -> None:
        self.data_ptr = data_ptr


# Telemetry ----------------------------------------------------------------------------------------


class Logger(TrainerCallback):
    """Keeps what it is given to log, as the callbacks that the Trainer reports to do."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Row]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.rows.append((state.global_step, logs))


def telemetry_of(logger: Logger) -> dict[int, Row]:
    return {at: row for at, row in logger.rows if not {"loss", "train_loss"} & set(row)}


def test_telemetry_reaches_the_loggers(tmp_path: Path, capsys: Any) -> None:
    args = arguments(tmp_path, learning_rate=1e-2, max_steps=5, logging_steps=1)
    logger = Logger()
    trainer = trainer_of(args, optimizer(DeVA, args), logger)
    trainer.add_callback(TelemetryCallback(trainer, every=2))
    trainer.train()
    found = telemetry_of(logger)
    assert list(found) == [2, 4]
    matrices = [name for name, p in trainer.model.named_parameters() if "proj.weight" in name]
    quantities = {"msign_error", "update_ratio", "skipped"}
    for row in found.values():
        assert {f"{key}/{name}" for key in quantities for name in matrices} <= set(row)
        assert all(isinstance(x, float) and math.isfinite(x) for x in row.values())
    # Every row is of its own step, and the Trainer's own rows are all there.
    ratios = [key for key in found[2] if key.startswith("update_ratio")]
    assert all(found[2][key] != found[4][key] for key in ratios)
    assert [at for at, row in logger.rows if "loss" in row] == [1, 2, 3, 4, 5]
    # It is not for reading: neither printed nor kept in trainer_state.json.
    assert "update_ratio" not in capsys.readouterr().out
    assert not any(ratios[0] in row for row in trainer.state.log_history)


def test_tags_can_be_chosen(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    logger = Logger()
    trainer = trainer_of(args, optimizer(DeVA, args), logger)
    trainer.add_callback(TelemetryCallback(trainer, every=1, only=r"^update_ratio/.*q_proj"))
    trainer.train()
    tag = "update_ratio/model.layers.0.self_attn.q_proj.weight"
    assert [set(row) for row in telemetry_of(logger).values()] == [{tag}, {tag}]


def test_a_value_is_of_the_step_that_it_is_logged_for(tmp_path: Path) -> None:
    args, logger = arguments(tmp_path), Logger()
    trainer = trainer_of(args, optimizer(DeVA, args), logger)
    callback = TelemetryCallback(trainer, every=1)
    names = ("up", "none", "zero", "nan")
    params = {name: nn.Parameter(torch.eye(3)) for name in names}
    found = DeVA([{"params": list(params.items()), "role": "matrix"}])
    found.telemetry_every = 50
    for grads in ({}, {"none": None, "zero": torch.zeros(3, 3), "nan": torch.eye(3) * math.nan}):
        for name, p in params.items():
            p.grad = grads.get(name, torch.randn(3, 3))
        event = (args, trainer.state, trainer.control)
        callback.on_pre_optimizer_step(*event, optimizer=found)
        found.step()
        callback.on_optimizer_step(*event, optimizer=found)
        trainer.state.global_step += 1
        callback.on_step_end(*event, optimizer=found)
    assert found.telemetry_every == 50  # what the user has set
    first, second = telemetry_of(logger).values()
    assert {tag.partition("/")[2] for tag in first if "ratio" in tag} == set(names)
    assert {tag.partition("/")[2] for tag in second if "ratio" in tag} == {"up"}
    assert {tag: x for tag, x in second.items() if tag.startswith("skipped")} == {
        "skipped/up": 0.0,
        "skipped/none": 0.0,
        "skipped/zero": 0.0,
        "skipped/nan": 1.0,
    }


@pytest.mark.parametrize("every", [0, 2.5])
def test_every_must_be_a_positive_whole_number(tmp_path: Path, every: float) -> None:
    args = arguments(tmp_path)
    with pytest.raises(ValueError, match=f"every must be a whole number .* got {every}"):
        TelemetryCallback(trainer_of(args, optimizer(DeVA, args)), every=every)


def test_the_library_imports_no_framework() -> None:
    code = (
        "import sys, deva_optim, deva_optim.integrations.accelerate\n"
        "print({'transformers', 'accelerate', 'peft', 'trl'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"
