"""Lightning: telemetry reaches the loggers, and `--optimizer` gets the model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import deva_optim
from deva_optim.telemetry import scalars

lightning = pytest.importorskip("lightning")
from lightning.fabric import Fabric  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.cli import LightningCLI, OptimizerCallable  # noqa: E402
from lightning.pytorch.core.optimizer import LightningOptimizer  # noqa: E402
from lightning.pytorch.loggers.logger import Logger  # noqa: E402
from lightning.pytorch.utilities.exceptions import MisconfigurationException  # noqa: E402

from deva_optim.integrations.accelerate import unwrap  # noqa: E402
from deva_optim.integrations.lightning import CLI, TelemetryCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what Lightning warns about is Lightning's
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
BATCHES = 4  # of an epoch


class Net(lightning.LightningModule):
    """Learns to count to ten; by their shapes alone embedding and head would be matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10)

    def training_step(self, tokens: Tensor, _: int) -> Tensor:
        return cross_entropy(self.head(self.middle(self.embedding(tokens))), (tokens + 1) % 10)

    def train_dataloader(self) -> Any:
        return DataLoader(torch.arange(10).repeat(BATCHES), batch_size=10)

    def configure_optimizers(self) -> Any:
        return deva_optim.DeVA(self, lr=1e-2)


class Foreign(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class Two(Net):
    """Two optimizers, each stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, tokens: Tensor, i: int) -> None:
        loss = super().training_step(tokens, i)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self) -> Any:
        rest = [*self.embedding.named_parameters(), *self.head.named_parameters()]
        return [
            deva_optim.DeVA(self.middle.named_parameters(), lr=1e-2),
            torch.optim.AdamW([p for _, p in rest[:1]], lr=1e-2),
            deva_optim.DeVA([{"params": rest[1:2], "role": "matrix"}], lr=1e-2),
        ]


class Injected(Net):
    """Takes its optimizer as an argument, the way Lightning calls dependency injection."""

    def __init__(self, optimizer: OptimizerCallable = deva_optim.DeVA) -> None:
        super().__init__()
        self.optimizer = optimizer

    def configure_optimizers(self) -> Any:
        return self.optimizer(self)


class Memory(Logger):
    """Remembers what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[int, dict[str, float]]] = []

    name = "memory"  # type: ignore[assignment]
    version = 0  # type: ignore[assignment]

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if "epoch" not in metrics:  # the Trainer's own
            self.entries.append((step or 0, dict(metrics)))

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...


def fit(
    module: Any, folder: Path, *, epochs: int = 1, every: int = 3, ckpt: Any = None, **options: Any
) -> tuple[Any, Memory]:
    memory = Memory()
    settings = {"logger": memory, "enable_checkpointing": False, **QUIET, **options}
    callbacks = [TelemetryCallback(every), *settings.pop("callbacks", [])]
    trainer = lightning.Trainer(
        max_epochs=epochs, default_root_dir=folder, callbacks=callbacks, **settings
    )
    trainer.fit(module, ckpt_path=ckpt)
    return trainer, memory


# The callback ------------------------------------------------------------------------------------


def test_telemetry_is_logged_whatever_the_trainer_logs(tmp_path: Path) -> None:
    trainer, memory = fit(Net(), tmp_path, epochs=2, every=4, log_every_n_steps=50)
    assert [step for step, _ in memory.entries] == [4, 8]
    optimizer = trainer.optimizers[0]
    assert optimizer.telemetry_every == 4
    last = memory.entries[-1][1]
    assert last == scalars(optimizer.telemetry())
    assert last["update_ratio/middle.weight"] > 0
    assert last != memory.entries[0][1]


def test_what_is_set_on_a_wrapper_is_set_on_the_optimizer() -> None:
    net = Net()
    ours = deva_optim.DeVA(net, lr=1e-2)
    _, by_fabric = Fabric(accelerator="cpu", devices=1).setup(net, ours)
    for every, wrapper in enumerate((LightningOptimizer(ours), by_fabric), 5):
        assert isinstance(wrapper, deva_optim.DeVA)  # as Lightning makes the class
        wrapper.telemetry_every = every
        assert ours.telemetry_every == every
        assert unwrap(wrapper) is ours


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    trainer, memory = fit(Net(), tmp_path, epochs=2, every=2, accumulate_grad_batches=2)
    assert trainer.global_step == 4
    assert [step for step, _ in memory.entries] == [2, 4]


def test_a_resumed_run_logs_at_the_same_steps(tmp_path: Path) -> None:
    def keep() -> Any:
        return ModelCheckpoint(tmp_path, save_last=True)

    _, whole = fit(Net(), tmp_path / "whole", epochs=3)
    _, first = fit(Net(), tmp_path, epochs=2, callbacks=[keep()], enable_checkpointing=True)
    _, then = fit(Net(), tmp_path, epochs=3, ckpt=str(tmp_path / "last.ckpt"))
    steps = [[step for step, _ in memory.entries] for memory in (whole, first, then)]
    assert steps == [[3, 6, 9, 12], [3, 6], [9, 12]]


def test_several_optimizers_are_told_apart(tmp_path: Path) -> None:
    _, memory = fit(Two(), tmp_path, every=6)
    (steps, found), *_ = memory.entries
    assert steps == 6  # two batches of three optimizers
    assert {"0/update_ratio/weight", "2/update_ratio/weight"} <= set(found)
    assert {tag[0] for tag in found} == {"0", "2"}


def test_nothing_to_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="the Trainer has AdamW"):
        fit(Foreign(), tmp_path)
    with pytest.raises(MisconfigurationException, match="needs a logger"):
        fit(Net(), tmp_path, logger=False)
    with pytest.raises(ValueError, match="every must be .* at least 1, got 0"):
        TelemetryCallback(every=0)


# The command line --------------------------------------------------------------------------------


def command(cls: Any, module: Any, folder: Path, *words: str, **settings: Any) -> Any:
    trainer = {"logger": False, "max_epochs": 2, "default_root_dir": str(folder), **QUIET}
    options: dict[str, Any] = {
        "save_config_callback": None,
        "seed_everything_default": 0,
        "trainer_defaults": {**trainer, "enable_checkpointing": False, **settings},
    }
    return cls(module, args=["fit", *words], **options)


def groups(optimizer: Any) -> list[tuple[str, list[str], Any]]:
    return [(g["role"], g["param_names"], g["betas"]) for g in optimizer.param_groups]


DEVA = ("--optimizer", "deva_optim.DeVA", "--optimizer.lr", "0.01")


def test_the_command_line_gives_the_optimizer_its_model(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    schedule = ("--lr_scheduler", "torch.optim.lr_scheduler.StepLR", "--lr_scheduler.step_size=1")
    cli = command(CLI, Net, tmp_path, *DEVA, *schedule)
    (optimizer,) = cli.trainer.optimizers
    assert groups(optimizer) == groups(deva_optim.DeVA(Net()))
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([1e-4] * 3)  # two epochs
    assert optimizer.telemetry().keys() == {"middle.weight"}


def test_the_command_line_takes_optimizers_of_others(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    words = ("--optimizer", "torch.optim.SGD", "--optimizer.lr", "0.125")
    (optimizer,) = command(CLI, Net, tmp_path, *words).trainer.optimizers
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.param_groups[0]["lr"] == 0.125


def test_without_an_optimizer_the_module_makes_its_own(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    assert type(command(CLI, Foreign, tmp_path).trainer.optimizers[0]) is torch.optim.AdamW
    with pytest.raises(ValueError, match="use LightningCLI"):
        CLI(Net, auto_configure_optimizers=False)


def test_a_command_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    keep = [ModelCheckpoint(tmp_path, save_last=True)]
    whole = command(CLI, Net, tmp_path / "whole", *DEVA, max_epochs=3)
    command(CLI, Net, tmp_path, *DEVA, callbacks=keep, enable_checkpointing=True)
    last = ("--ckpt_path", str(tmp_path / "last.ckpt"))
    parts = command(CLI, Net, tmp_path, *DEVA, *last, max_epochs=3)
    assert parts.trainer.global_step == 3 * BATCHES
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_module_that_takes_its_optimizer_gives_it_itself(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    words = ("--model.optimizer", "deva_optim.DeVA", "--model.optimizer.lr", "0.01")
    (optimizer,) = command(LightningCLI, Injected, tmp_path, *words).trainer.optimizers
    assert groups(optimizer) == groups(deva_optim.DeVA(Net()))
    assert {g["lr"] for g in optimizer.param_groups} == {0.01}
