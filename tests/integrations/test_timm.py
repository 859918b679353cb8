"""timm: the registry knows our optimizers, and layer decay goes with the roles of the model."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deva_optim

from . import stand_in_timm


@pytest.fixture(scope="module")
def timm() -> Iterator[Any]:
    """The package if it can be imported, otherwise the stand-in."""
    try:
        importlib.import_module("timm.optim")
    except ImportError:
        with stand_in_timm.installed():
            yield importlib.import_module("deva_optim.integrations.timm")
        del sys.modules["deva_optim.integrations.timm"]
    else:
        yield importlib.import_module("deva_optim.integrations.timm")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))


class Stem(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 2, stride=2)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, width))


class ViT(nn.Module):
    """Names and attributes of a vision transformer of timm; a block has twelve tensors."""

    def __init__(self, width: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.pretrained_cfg = {"classifier": "head"}
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.stem = Stem(width)
        self.head = nn.Linear(width, 9)

    def no_weight_decay(self) -> set[str]:
        return {"stem.pos_embed", "stem.cls_token"}

    def loss(self) -> Tensor:
        return torch.stack([p.sin().sum() for p in self.parameters()]).sum()


def groups_of(timm: Any, **options: Any) -> dict[str, Any]:
    return {"param_group_fn": timm.param_group_fn(weight_decay=0.05, **options)}


def by_name(optimizer: Any) -> dict[str, dict[str, Any]]:
    """The group of each parameter."""
    return {name: g for g in optimizer.param_groups for name in g["param_names"]}


def create(*args: Any, **options: Any) -> Any:
    return sys.modules["timm.optim"].create_optimizer_v2(*args, **options)


def scheduled(optimizer: Any) -> None:
    """Set the rates as one of timm's schedulers does at its start."""
    base: Any = importlib.import_module("timm.scheduler.scheduler").Scheduler
    constant = type("Constant", (base,), {"_get_lr": lambda self, t: self.base_values})
    constant(optimizer, "lr")


def step(model: ViT, optimizer: Any) -> None:
    model.loss().backward()
    optimizer.step()


def test_every_optimizer_has_a_name(timm: Any) -> None:
    timm.register()
    exported = [getattr(deva_optim, name) for name in deva_optim.__all__]
    assert set(timm.NAMES.values()) == {x for x in exported if isinstance(x, type)}
    own = {"deva": "DeVA", "deva-sinf": "DeVASinf", "deva-muon": "Muon", "deva-soap": "SOAP"}
    assert {name: timm.NAMES[name].__name__ for name in own} == own
    from timm.optim._optim_factory import default_registry

    for name, cls in timm.NAMES.items():
        info = default_registry.get_optimizer_info(name)
        assert info.opt_class is cls
        assert info.description.endswith(".")
        assert "_" not in name  # timm would read what is before it as a prefix
    flags = default_registry.get_optimizer_info("deva-muon")
    assert (flags.has_momentum, flags.has_betas, flags.has_eps) == (True, False, True)
    assert default_registry.get_optimizer_info("deva").num_betas == 3


def test_a_second_registration_overwrites_nothing(timm: Any, caplog: Any) -> None:
    timm.register()
    timm.register()
    assert "overwriting" not in caplog.text
    if "timm.optim" in sys.modules and hasattr(sys.modules["timm.optim"], "Scheduler"):
        assert stand_in_timm.default_registry.overwritten == []


@pytest.mark.parametrize("name", ["deva", "deva-sinf", "deva-muon", "deva-soap", "deva-adamw"])
def test_an_optimizer_of_the_registry_takes_a_step(timm: Any, name: str) -> None:
    timm.register()
    model = ViT()
    before = [p.detach().clone() for p in model.parameters()]
    options = {"eps": 1e-7, "betas": (0.8, 0.9)}
    optimizer = create(model, name, lr=0.01, **options, **groups_of(timm))
    assert type(optimizer) is timm.NAMES[name]
    assert {g["lr"] for g in optimizer.param_groups} == {0.01}
    matrices = [g for g in optimizer.param_groups if g["role"] == "matrix"]
    first = {g["momentum"] if "momentum" in g else g["betas"][0] for g in matrices}
    assert first == {0.9 if "muon" in name else 0.8}  # timm's momentum, or the betas
    step(model, optimizer)
    step(model, optimizer)  # the first gradient chooses SOAP's bases and no more
    assert not any(map(torch.equal, before, model.parameters()))


def test_groups_have_the_roles_of_the_model_and_the_scales_of_timm(timm: Any) -> None:
    timm.register()
    model = ViT()
    optimizer = create(model, "deva", lr=0.01, **groups_of(timm, layer_decay=0.5))
    found, alone = by_name(optimizer), by_name(deva_optim.DeVA(ViT()))
    assert found.keys() == alone.keys()
    for name, group in found.items():
        assert group["role"] == alone[name]["role"], name
        assert group["split"] == alone[name]["split"], name
    assert found["head.weight"]["role"] == "vector"
    assert found["blocks.0.qkv.weight"]["split"] == 3
    decayed = {name for name, group in found.items() if group["weight_decay"]}
    assert {found[name]["weight_decay"] for name in decayed} == {0.05}
    assert decayed == {name for name in found if name.endswith("weight") and "norm" not in name}
    scheduled(optimizer)
    found = by_name(optimizer)
    assert {g["lr"] for name, g in found.items() if "blocks.0" in name} == {0.01 * 0.5**3}
    assert {g["lr"] for name, g in found.items() if "blocks.1" in name} == {0.01 * 0.5**2}
    assert {g["lr"] for name, g in found.items() if "stem" in name} == {0.01 * 0.5}
    assert {g["lr"] for name, g in found.items() if "head" in name} == {0.01}
    step(model, optimizer)
    assert "blocks.1.fc1.weight" in optimizer.telemetry()


def test_frozen_layers_are_left_out_and_overrides_stand_above(timm: Any) -> None:
    timm.register()
    model = ViT()
    overrides = [(r"head\.weight", {"role": "matrix", "weight_decay": 0.5}), (r"proj", {"lr": 1.0})]
    options = groups_of(
        timm, layer_decay=0.5, no_opt_scale=0.2, overrides=overrides, split={"qkv": 1}
    )
    optimizer = create(model, "deva", lr=0.01, **options)
    scheduled(optimizer)
    found = by_name(optimizer)
    assert not any("blocks.0" in name for name in found)
    assert not model.blocks[0].fc1.weight.requires_grad
    assert found["head.weight"]["role"] == "matrix"
    assert found["head.weight"]["weight_decay"] == 0.5
    assert found["blocks.1.proj.weight"]["lr"] == 1.0 * 0.25
    assert found["blocks.1.qkv.weight"]["split"] is None


def test_groups_of_the_same_name_keep_their_own_options(timm: Any) -> None:
    timm.register()
    options = groups_of(timm, overrides=[(r"blocks", {"name": "mine"})])
    found = by_name(create(ViT(), "deva", lr=0.01, **options))
    alone = by_name(deva_optim.DeVA(ViT()))
    assert {group["name"] for name, group in found.items() if "blocks" in name} == {"mine"}
    for name, group in found.items():
        assert (group["role"], group["split"]) == (alone[name]["role"], alone[name]["split"]), name


@pytest.mark.filterwarnings("ignore::UserWarning")  # of bare tensors: shapes alone decide
def test_bare_tensors_of_timm_are_taken_and_its_fallback_is_a_vector(timm: Any) -> None:
    timm.register()
    model = ViT()
    fallback = ["blocks.0.fc1.weight", "head.weight"]
    options = {"weight_decay": 0.05, "layer_decay": 0.5, "fallback_list": fallback}
    optimizer = create(model, "deva", lr=0.01, **options)
    role = {id(p): g["role"] for g in optimizer.param_groups for p in g["params"]}
    scheduled(optimizer)
    rate = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert role[id(model.head.weight)] == role[id(model.blocks[0].fc1.weight)] == "vector"
    assert role[id(model.blocks[1].fc1.weight)] == "matrix"
    assert rate[id(model.blocks[1].fc1.weight)] == 0.01 * 0.25
    step(model, optimizer)
