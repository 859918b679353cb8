"""torchtitan: its container makes our optimizers, with the roles of the model and checkpoints."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import deva_optim
from ranks import run

from . import stand_in_torchtitan

MODULE = "deva_optim.integrations.torchtitan"
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")


@contextmanager
def imported() -> Iterator[Any]:
    """The integration with the package if it can be imported, otherwise with the stand-in."""
    try:
        importlib.import_module("torchtitan.components.optimizer")
    except ImportError:
        with stand_in_torchtitan.installed():
            yield importlib.import_module(MODULE)
        del sys.modules[MODULE]
    else:
        yield importlib.import_module(MODULE)


@pytest.fixture(scope="module")
def titan() -> Iterator[Any]:
    with imported() as module:
        yield module


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.wo = nn.Linear(width, width, bias=False)
        self.w1 = nn.Linear(width, 2 * width, bias=False)
        self.w2 = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.w2(self.w1(self.wo(self.norm(x))).relu())
        return found


class Model(nn.Module):
    """The names of torchtitan's Llama; the shape of the output would be that of a matrix."""

    def __init__(self, width: int = 8, vocabulary: int = 12) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleDict({str(i): Block(width) for i in range(2)})
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        found: Tensor = self.output(self.norm(x))
        return found


def train(model: Any, optimizers: Any, steps: int) -> list[float]:
    tokens = torch.arange(12).repeat(2)
    losses = []
    for _ in range(steps):
        optimizers.zero_grad()
        loss = cross_entropy(model(tokens), (tokens + 1) % 12)
        loss.backward()
        optimizers.step()
        losses.append(loss.item())
    optimizers.zero_grad()
    return losses


def by_name(optimizer: Any) -> dict[str, dict[str, Any]]:
    return {name: g for g in optimizer.param_groups for name in g["param_names"]}


def configured(titan: Any, *entries: tuple[str, str, dict[str, Any]], **options: Any) -> Any:
    parts = importlib.import_module("torchtitan.components.optimizer")
    groups = [
        parts.ParamGroupConfig(pattern=pattern, optimizer_name=name, optimizer_kwargs=kwargs)
        for pattern, name, kwargs in entries
    ]
    return titan.Optimizers.Config(param_groups=groups, **options)


def test_one_line_trains_as_the_optimizer_of_the_model_does(titan: Any) -> None:
    ours, theirs = Model(), Model()
    config = titan.default_deva(lr=0.01, weight_decay=0.2)
    optimizers = config.build(model_parts=[ours])
    assert type(optimizers) is titan.Optimizers
    (optimizer,) = optimizers
    alone = deva_optim.DeVA(theirs, lr=0.01, weight_decay=0.2)
    found, expected = by_name(optimizer), by_name(alone)
    assert found.keys() == expected.keys()
    for name, group in found.items():
        for key in ("role", "weight_decay", "lr", "foreach", "split", "betas"):
            assert group[key] == expected[name][key], (name, key)
    assert found["output.weight"]["role"] == found["tok_embeddings.weight"]["role"] == "vector"
    assert found["layers.0.w2.weight"]["role"] == "matrix"
    assert "fused" not in optimizer.param_groups[0]
    losses = train(ours, optimizers, 8)
    assert losses == train(theirs, alone, 8)
    assert losses[-1] < losses[0]


def test_every_optimizer_has_a_name_but_for_torchtitans_own(titan: Any) -> None:
    exported = {name: getattr(deva_optim, name) for name in deva_optim.__all__ if name != "AdamW"}
    assert {name: x for name, x in exported.items() if isinstance(x, type)} == titan.CLASSES
    (optimizer,) = titan.default_deva(lr=0.01, name="Lion").build(model_parts=[Model()])
    assert type(optimizer) is deva_optim.Lion


def test_kinds_of_parameters_have_rates_of_their_own(titan: Any) -> None:
    rates = {"lr": 0.01, "embedding_lr": 0.2, "head_lr": 0.004, "rest_lr": 0.03}
    (optimizer,) = titan.default_deva(**rates).build(model_parts=[Model()])
    found = by_name(optimizer)
    names = ("layers.0.w1.weight", "tok_embeddings.weight", "output.weight", "norm.weight")
    assert [found[name]["lr"] for name in names] == [*rates.values()]


def test_groups_by_pattern_and_optimizers_of_torchtitan_stand_beside_ours(titan: Any) -> None:
    model = Model()
    optimizers = configured(
        titan,
        (r"tok_embeddings|output", "AdamW", {"lr": 0.02, "betas": (0.9, 0.95)}),
        (r"norm", "Muon", {"lr": 0.03, "weight_decay": 0.5}),
        (r"layers\.0", "Muon", {"lr": 0.04, "role": "vector"}),
        (r".*", "Muon", {"lr": 0.05, "momentum": 0.8}),
        implementation="for-loop",
    ).build(model_parts=[model])
    adamw, muon = optimizers
    assert (type(adamw), type(muon)) == (torch.optim.AdamW, deva_optim.Muon)
    found = by_name(muon)
    assert found["norm.weight"]["weight_decay"] == 0.5
    assert found["layers.0.w1.weight"]["role"] == "vector"
    assert found["layers.1.w1.weight"]["role"] == "matrix"
    assert found["layers.1.w1.weight"]["lr"] == 0.05
    assert {g["foreach"] for g in muon.param_groups} == {False}
    losses = train(model, optimizers, 4)
    assert losses[-1] < losses[0]


def test_parts_of_a_pipeline_have_optimizers_of_their_own(titan: Any) -> None:
    first, last = Model(), Model()
    first.output, last.tok_embeddings = nn.Identity(), nn.Identity()
    optimizers = titan.default_deva(name="Muon").build(model_parts=[first, last])
    roles = [{n: g["role"] for n, g in by_name(x).items()} for x in optimizers]
    assert roles[0]["tok_embeddings.weight"] == roles[1]["output.weight"] == "vector"
    assert roles[0]["layers.1.w2.weight"] == roles[1]["layers.1.w2.weight"] == "matrix"


def test_what_cannot_be_meant_is_an_error(titan: Any) -> None:
    config = configured(titan, (r".*", "DeVA", {}), implementation="fused_opt_states_bf16")
    with pytest.raises(ValueError, match="state_dtype"):
        config.build(model_parts=[Model()])
    with pytest.raises(NotImplementedError):
        configured(titan, (r".*", "Nobody", {})).build(model_parts=[Model()])


@pytest.mark.parametrize("name", ["DeVA", "Muon"])
def test_a_checkpoint_goes_on_to_the_same_bits(titan: Any, name: str) -> None:
    schedules = importlib.import_module("torchtitan.components.optimizer").LRSchedulersContainer

    def made() -> Any:
        model = Model()
        optimizers = titan.default_deva(lr=0.01, name=name).build(model_parts=[model])
        schedules(optimizers, lambda step: 1.0)  # it adds a key to every group
        return model, optimizers

    whole, optimizers = made()
    losses = train(whole, optimizers, 10)
    model, optimizers = made()
    assert train(model, optimizers, 5) == losses[:5]
    state, weights = optimizers.state_dict(), model.state_dict()
    other, optimizers = made()
    other.load_state_dict(weights)
    optimizers.load_state_dict(state)
    assert train(other, optimizers, 5) == losses[5:]


# Over ranks --------------------------------------------------------------------------------------


def built(titan: Any, sharded: bool) -> tuple[Any, Any]:
    model = Model()
    if sharded:
        for layer in model.layers.values():
            fully_shard(layer)
        fully_shard(model)
    return model, titan.default_deva(lr=0.01).build(model_parts=[model])


def go_on(model: Any, optimizers: Any, folder: str) -> list[float]:
    """Three steps from the checkpoint."""
    state = {"model": model.state_dict(), "optimizer": optimizers.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    optimizers.load_state_dict(state["optimizer"])
    return train(model, optimizers, 3)


def on_ranks(folder: str) -> tuple[list[float], list[float]]:
    """Losses of six steps, and of three, a checkpoint and three."""
    sys.path.insert(0, str(Path(__file__).parent))
    with imported() as titan:
        whole = train(*built(titan, sharded=True), steps=6)
        model, optimizers = built(titan, sharded=True)
        first = train(model, optimizers, 3)
        state = {"model": model.state_dict(), "optimizer": optimizers.state_dict()}
        dcp.save(state, checkpoint_id=folder)
        return whole, first + go_on(*built(titan, sharded=True), folder)


@pytest.mark.filterwarnings("ignore:.*no_dist.*", "ignore:.*single process.*")
def test_a_sharded_checkpoint_goes_on_with_ranks_and_without(titan: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)
    whole, parts = run(2, on_ranks, folder)[0]
    assert parts == whole
    alone = go_on(*built(titan, sharded=False), folder)
    # Rounding of float32 in sums of another order, 2⁻²³ of losses below 4, in six steps that
    # magnify it a hundredfold at the most.
    assert alone == pytest.approx(whole[3:], abs=6 * 100 * 4 * 2**-23)
