"""Groups by names and shapes, what is refused, how they are described, and any model at all."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import Optimizer

from deva_optim import DeVA, Muon, describe, param_groups
from deva_optim.core.matrices import parts

from .architectures import (
    CONV,
    EXEMPT,
    MATRIX,
    MODELS,
    OPTIONS,
    VECTOR,
    NanoGPT,
    Timm,
    assert_partition,
    counts,
    gpt2,
    on_meta,
    routes,
)


def test_named_parameters_agree_with_the_module() -> None:
    for name in ("gpt2", "llama", "vit", "whisper", "timm", "nanogpt"):
        model = on_meta(MODELS[name])
        assert routes(model.named_parameters()) == routes(model), name


def test_named_parameters_are_not_cut_where_names_do_not_tell() -> None:
    found = routes(on_meta(MODELS["mixtral"]).named_parameters())
    assert found["model.layers.0.mlp.experts.gate_up_proj"] == MATRIX


def test_tied_names_are_one_parameter() -> None:
    model = NanoGPT()
    model.lm_head.weight = model.transformer["wte"].weight
    groups = param_groups(list(model.named_parameters(remove_duplicate=False)))
    assert_partition(model, groups)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), EXEMPT),
        ((768,), EXEMPT),
        ((768, 3072), MATRIX),
        ((50257, 768), VECTOR),
        ((16384, 2048), MATRIX),  # Gemma 2B's feed-forward
        ((28672, 4096), MATRIX),  # fused gate and up
        ((4096, 16), MATRIX),  # a low-rank factor
        ((1, 768), EXEMPT),
        ((1, 197, 1024), EXEMPT),
        ((8, 14336, 4096), MATRIX),
        ((384, 80, 3), CONV),
        ((64, 3, 7, 7), CONV),
        ((64, 1, 3, 3), VECTOR),
    ],
)
def test_shapes_alone(shape: tuple[int, ...], expected: dict[str, object]) -> None:
    param = torch.empty(shape, device="meta")
    (group,) = param_groups([param])
    assert group["params"][0] is param
    assert {key: group[key] for key in OPTIONS if key in group} == expected


def test_decay_1d_leaves_decay_to_the_optimizer() -> None:
    groups = param_groups(Timm(), decay_1d=True)
    assert all("weight_decay" not in group for group in groups)
    assert any("weight_decay" in group for group in param_groups(Timm()))


def test_groups_are_the_same_every_time() -> None:
    first, second = (param_groups(on_meta(gpt2), split={"c_fc": 4}) for _ in range(2))
    assert [[name for name, _ in group["params"]] for group in first] == [
        [name for name, _ in group["params"]] for group in second
    ]
    assert counts(first) == counts(second)


def test_torch_keeps_the_names() -> None:
    optimizer = torch.optim.AdamW(param_groups(NanoGPT()))
    assert optimizer.param_groups[0]["param_names"] == ["transformer.h.0.c_attn.weight"]


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.ReLU(), ValueError, "at least one parameter"),
        ([], ValueError, "at least one parameter"),
        (torch.ones(2), TypeError, "got a Tensor"),
        ({"weight": torch.ones(2)}, TypeError, "got a dict"),
        ([nn.Linear(2, 2)], TypeError, "got a Linear"),
        ([("a", torch.ones(2)), torch.ones(2)], TypeError, "for all of its parameters or for none"),
    ],
)
def test_model_errors(model: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        param_groups(model)


TIMM = """\
matrix, conv: role matrix, layout conv; 1 tensor, 3,072 elements
  patch_embed.weight         (64, 3, 4, 4)  as (64, 48)      convolution
matrix, split 3: role matrix, layout stack, split 3; 2 tensors, 24,576 elements
  blocks.{0,1}.qkv.weight    2 × (192, 64)  as 3 × (64, 64)  query, key, value
matrix: role matrix, layout stack; 4 tensors, 40,960 elements
  blocks.{0,1}.proj.weight   2 × (64, 64)   as (64, 64)      matrix
  blocks.{0,1}.fc1.weight    2 × (256, 64)  as (256, 64)     matrix
vector, no decay: role vector, weight_decay 0.0; 14 tensors, 2,506 elements
  cls_token                  (1, 1, 64)     elementwise      varies along one dimension
  pos_embed                  (1, 17, 64)    elementwise      position table or token
  patch_embed.bias           (64,)          elementwise      fewer than two dimensions
  blocks.{0,1}.norm1.weight  2 × (64,)      elementwise      fewer than two dimensions
  blocks.{0,1}.norm1.bias    2 × (64,)      elementwise      fewer than two dimensions
  blocks.{0,1}.qkv.bias      2 × (192,)     elementwise      fewer than two dimensions
  blocks.{0,1}.proj.bias     2 × (64,)      elementwise      fewer than two dimensions
  blocks.{0,1}.fc1.bias      2 × (256,)     elementwise      fewer than two dimensions
  head.bias                  (10,)          elementwise      fewer than two dimensions
vector, lr 0.1: role vector, lr 0.1; 1 tensor, 640 elements
  head.weight                (10, 64)       elementwise      output head
"""


def test_describe(capsys: pytest.CaptureFixture[str]) -> None:
    describe(param_groups(Timm(), overrides=[("head.weight", {"lr": 0.1})]))
    assert capsys.readouterr().out == TIMM


def test_describe_refuses_what_has_no_groups() -> None:
    model = nn.Linear(2, 2)
    for wrong in (model, DeVA(model)):
        with pytest.raises(TypeError, match="groups must be parameter groups, .* got a "):
            describe(wrong)


def test_describe_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    describe(torch.optim.SGD(model.named_parameters(), lr=0.5).param_groups)
    assert capsys.readouterr().out == (
        "group 0: lr 0.5, weight_decay 0; 2 tensors, 16 elements\n"
        "  0.weight  (4, 3)  as (4, 3)\n"
        "  0.bias    (4,)    elementwise\n"
    )
    describe(torch.optim.SGD(model.parameters(), lr=0.5).param_groups)
    assert "  unnamed  (4, 3)  as (4, 3)\n" in capsys.readouterr().out


def test_describe_collapses_layers(capsys: pytest.CaptureFixture[str]) -> None:
    describe(param_groups(on_meta(gpt2)))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20  # for 148 parameters
    assert lines[1].split("  ") == [
        "",
        "transformer.h.{0…11}.attn.c_attn.weight",
        "12 × (768, 2304)",
        "as 3 × (768, 768)",
        "query, key, value",
    ]


def test_describe_shows_unequal_parts_and_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    describe(param_groups(on_meta(MODELS["phi3"])))
    assert "(4608, 3072)   as (3072, 3072) + 2 × (768, 3072)" in capsys.readouterr().out
    describe(param_groups(on_meta(MODELS["mixtral"])))
    out = capsys.readouterr().out
    assert "2 × (8, 28672, 4096)  as 16 × (14336, 4096)  gate and up" in out
    assert "2 × (8, 4096, 14336)  as 8 × (4096, 14336)   stack of matrices" in out


def test_describe_invents_no_layer(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"a.0.0": 2, "a.0.1": 2, "a.1.0": 2, "a.3.7.w": 2, "a.5.7.w": 2}
    describe([{"params": [(name, torch.ones(size)) for name, size in shapes.items()]}])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "group 0: 5 tensors, 10 elements"
    assert [line.split()[0] for line in lines] == ["a.0.{0,1}", "a.1.0", "a.{3,5}.7.w"]


SIZES = st.integers(1, 6)
LAYERS = st.one_of(
    st.builds(nn.Linear, SIZES, SIZES, bias=st.booleans()),
    st.builds(nn.Embedding, SIZES, SIZES),
    st.builds(nn.Conv1d, SIZES, SIZES, SIZES),
    st.builds(lambda g, i, o, k: nn.Conv2d(g * i, g * o, k, groups=g), SIZES, SIZES, SIZES, SIZES),
    st.builds(
        lambda g, i, o, k: nn.ConvTranspose1d(g * i, g * o, k, groups=g), SIZES, SIZES, SIZES, SIZES
    ),
    st.builds(nn.LSTM, SIZES, SIZES),
    st.builds(nn.GRUCell, SIZES, SIZES),
    st.builds(nn.MultiheadAttention, SIZES, st.just(1)),
    st.builds(nn.Bilinear, SIZES, SIZES, SIZES),
    st.builds(nn.LayerNorm, st.lists(SIZES, min_size=1, max_size=3)),
    st.builds(
        lambda shape: nn.ParameterList([nn.Parameter(torch.ones(shape))]),
        st.lists(SIZES, max_size=4),
    ),
)
NAMES = st.sampled_from(["head", "fc", "qkv", "gate_up_proj", "c_attn", "pos_embed", "block"])
MODULES = st.recursive(
    LAYERS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda layers: nn.Sequential(*layers)),
        st.lists(inner, min_size=1, max_size=3).map(nn.ModuleList),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(nn.ModuleDict),
    ),
    max_leaves=6,
)


@given(MODULES)
def test_any_model_is_partitioned(model: nn.Module) -> None:
    for given_as in (model, list(model.named_parameters())):
        groups = param_groups(given_as)
        assert_partition(model, groups)
        options = [{k: v for k, v in g.items() if k not in ("params", "name")} for g in groups]
        assert all(first not in options[i + 1 :] for i, first in enumerate(options))
        assert len({group["name"] for group in groups}) == len(groups)
    bare = [param for group in param_groups(model.parameters()) for param in group["params"]]
    assert {id(param) for param in bare} == {id(param) for param in model.parameters()}


@given(MODULES)
def test_the_matrices_of_any_model_hold_all_of_its_elements(model: nn.Module) -> None:
    for group in param_groups(model):
        for _, param in group["params"] if group["role"] == "matrix" else []:
            found = parts(
                tuple(param.shape), group["layout"], group.get("split"), group.get("split_dim", -2)
            )
            assert sum(torch.Size(part.shape).numel() for part in found) == param.numel()


@pytest.mark.parametrize("cls", [DeVA, Muon])
def test_the_groups_of_an_optimizer_have_names_of_their_own(cls: Callable[..., Optimizer]) -> None:
    """Loggers tell groups apart by them; Lightning's LearningRateMonitor refuses two alike."""

    def net() -> nn.Module:
        layers = {"embed": nn.Embedding(9, 4), "body": nn.Linear(4, 4), "head": nn.Linear(4, 9)}
        return nn.ModuleDict(layers)

    alike = {"embedding_lr": torch.tensor(0.1), "head_lr": torch.tensor(0.1)}
    by_model = cls(net(), **alike)
    names = ["matrix", "vector, embedding", "vector, head", "vector, no decay"]
    assert [group["name"] for group in by_model.param_groups] == names
    by_names = DeVA(net().named_parameters(), **alike)
    for optimizer in (by_model, by_names):
        optimizer.add_param_group({"params": list(net().named_parameters())})
        found = [group["name"] for group in optimizer.param_groups if "name" in group]
        assert len(set(found)) == len(found)
