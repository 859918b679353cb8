"""Which layers are heads, and what a parameter is called inside wrappers."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations, spectral_norm

import deva_optim as do

from .architectures import (
    MATRIX,
    MODELS,
    VECTOR,
    Lora,
    NanoGPT,
    Timm,
    cut,
    on_meta,
    routes,
)


def test_a_linear_as_wide_as_the_positions_is_no_head() -> None:
    found = routes(NanoGPT())
    assert found["transformer.h.0.c_attn.weight"] == cut(3)
    assert found["transformer.h.0.c_proj.weight"] == MATRIX
    assert found["transformer.mix.weight"] == MATRIX  # (64, 64), and wpe is (64, 64) too
    assert found["lm_head.weight"] == VECTOR


def test_a_hidden_layer_as_wide_as_a_table_of_categories_is_no_head() -> None:
    chain = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 5))
    found = routes(nn.ModuleDict({"day": nn.Embedding(64, 8), "net": chain}))
    assert found["net.0.weight"] == found["net.2.weight"] == MATRIX
    assert found["net.3.weight"] == VECTOR
    bytes_ = {"table": nn.Embedding(64, 64), "up": nn.Linear(64, 256), "down": nn.Linear(256, 64)}
    found = routes(nn.ModuleDict({**bytes_, "decoder": nn.Linear(64, 64)}))
    assert found["up.weight"] == found["down.weight"] == MATRIX
    assert found["decoder.weight"] == VECTOR  # the last one may be the head of a model of bytes


def test_the_last_layer_of_a_chain_is_its_head() -> None:
    chain = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    assert routes(chain)["0.weight"] == MATRIX
    assert routes(chain)["2.weight"] == VECTOR
    assert (
        routes(nn.Sequential(nn.Linear(8, 6)))["0.weight"] == MATRIX
    )  # there is nothing before it


def test_a_head_with_one_output_has_the_rate_of_heads() -> None:
    def rates(given: object) -> dict[str, float]:
        optimizer = do.DeVA(given, lr=0.01, rest_lr=0.02, head_lr=0.03)
        return {name: g["lr"] for g in optimizer.param_groups for name in g["param_names"]}

    plain = nn.ModuleDict({"body": nn.Linear(8, 8), "score": nn.Linear(8, 1)})
    expected = {"body.weight": 0.01, "body.bias": 0.02, "score.weight": 0.03, "score.bias": 0.02}
    assert rates(plain) == rates(list(plain.named_parameters())) == expected
    plain["score"] = Lora(plain["score"], 8, 1, rank=1)
    assert rates(plain)["score.base_layer.weight"] == 0.03
    assert rates(plain)["score.lora_A.default.weight"] == 0.02  # a vector, but no head


def test_a_head_may_be_a_class_of_its_own() -> None:
    class Codebooks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 8, 16))

    class NormHead(nn.Module):
        """Baichuan 2's, which normalises its rows; it is not a norm."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(96, 8))

    model = nn.ModuleDict({"body": nn.Linear(8, 8), "codebooks_head": Codebooks()})
    model["lm_head"] = NormHead()
    found = routes(model)
    assert found["codebooks_head.weight"] == found["lm_head.weight"] == VECTOR


def test_the_second_head_of_a_distilled_model_is_a_head() -> None:
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": nn.Linear(8, 4)})
    model["head_dist"] = nn.Linear(8, 4)
    found = routes(model)
    assert found["head.weight"] == found["head_dist.weight"] == VECTOR
    assert routes(model.named_parameters()) == found


def test_a_head_may_have_the_attributes_of_a_convolution() -> None:
    class Decoder(nn.Sequential):
        kernel_size, groups = 3, 1

    decoder = Decoder(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    found = routes(nn.ModuleDict({"body": nn.Linear(8, 8), "head": decoder}))
    assert found["head.0.weight"] == MATRIX
    assert found["head.2.weight"] == VECTOR


def test_a_model_may_decline_to_name_its_head() -> None:
    class Backbone(nn.Linear):
        def get_output_embeddings(self) -> nn.Module:
            raise NotImplementedError

    assert routes(nn.ModuleList([Backbone(4, 4)]))["0.weight"] == MATRIX


def test_the_last_layer_of_a_block_is_not_a_head() -> None:
    found = routes(on_meta(MODELS["encoder"]))
    assert found["layers.1.linear2.weight"] == MATRIX


def test_a_compiled_layer_keeps_its_name() -> None:
    model = Timm()
    model.blocks[0]["qkv"] = torch.compile(model.blocks[0]["qkv"], backend="eager")
    model.head = torch.compile(model.head, backend="eager")
    found = routes(torch.compile(model, backend="eager"))
    assert found["_orig_mod.blocks.0.qkv._orig_mod.weight"] == cut(3)
    assert found["_orig_mod.head._orig_mod.weight"] == VECTOR


def test_a_last_layer_is_a_head_inside_wrappers_and_by_its_name_alone() -> None:
    def compiled(module: nn.Module) -> nn.Module:
        return torch.compile(module, backend="eager")

    def roles(model: object) -> list[str]:
        return [x["role"] for name, x in routes(model).items() if name.endswith("weight")]

    plain = nn.ModuleDict({"body": nn.Linear(4, 4), "fc": nn.Linear(4, 3)})
    in_parts = nn.ModuleDict({name: compiled(module) for name, module in plain.items()})
    chain = nn.Sequential(compiled(nn.Linear(4, 4)), compiled(nn.Linear(4, 3)))
    for model in (plain, compiled(plain), nn.DataParallel(plain), in_parts, chain):
        assert roles(model) == ["matrix", "vector"]
        if model is not chain:
            assert roles(list(model.named_parameters())) == ["matrix", "vector"]
    assert roles([("fc.0.weight", torch.ones(4, 4)), ("b.fc.weight", torch.ones(4, 4))]) == [
        *("matrix", "matrix")  # the hidden layer of a network and of a block
    ]


@pytest.mark.parametrize(
    "made_of",
    [parametrizations.weight_norm, parametrizations.spectral_norm, spectral_norm],
    ids=["weight_norm", "spectral_norm", "the former spectral_norm"],
)
def test_an_embedding_whose_weight_is_computed_is_one(made_of: Callable[..., nn.Module]) -> None:
    layers = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 3)
    model = nn.Sequential(*map(made_of, layers))
    before = [x.clone() for x in model.buffers()]
    found = {name: route["role"] for name, route in routes(model).items() if "bias" not in name}
    assert {name for name, role in found.items() if role == "matrix"} == {
        name for name, p in model.named_parameters() if p.shape == (6, 6)
    }
    assert all(map(torch.equal, before, model.buffers()))  # a spectral norm is not moved


@pytest.fixture
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt2", "Conv1D"),
        ("phi3", "Phi3Attention"),
        ("mamba", "MambaMixer"),
        ("llama4", "Llama4TextExperts"),
        ("dbrx", "DbrxExpertGLU"),
    ],
)
def test_a_module_that_is_sharded_by_itself_is_cut_as_before(name: str, kind: str) -> None:
    model = on_meta(MODELS[name])
    before = routes(model)
    for module in [x for x in model.modules() if type(x).__name__ == kind]:
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        assert type(module).__name__ == f"FSDP{kind}"
    assert routes(model) == before
    assert any("split" in route for route in before.values())
