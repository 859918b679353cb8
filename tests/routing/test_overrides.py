"""What the user sets for some parameters: overrides, splits, and what of them is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from deva_optim import param_groups

from .architectures import (
    CONV,
    EXEMPT,
    MATRIX,
    MODELS,
    VECTOR,
    NanoGPT,
    Stem,
    Timm,
    counts,
    cut,
    gpt2,
    on_meta,
    routes,
)


@pytest.mark.parametrize("wrong", [{"0.weight": "matrix"}, ["0.weight"], [("0.weight",)]])
def test_overrides_are_pairs(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"must be pairs \(matcher, setting\), got .*0.weight"):
        param_groups(nn.Sequential(nn.Linear(4, 4)), overrides=wrong)


def test_rates_that_are_tensors_have_groups_of_their_own() -> None:
    model = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
    rates = [torch.tensor(x) for x in (0.1, 0.1, 0.10001)]  # torch writes all of them as 0.1000
    overrides = [(f"{i}.weight", {"lr": rate}) for i, rate in enumerate(rates)]
    assert [group["lr"] for group in param_groups(model, overrides=overrides)] == rates


def test_decay_1d_does_not_touch_an_override() -> None:
    found = routes(Timm(), overrides=[("cls_token", {"weight_decay": 0.0})], decay_1d=True)
    assert found["cls_token"] == EXEMPT
    assert found["pos_embed"] == VECTOR


def test_the_first_override_wins() -> None:
    found = routes(Timm(), overrides=[(r"blocks\.0\.qkv\.weight", "vector"), ("qkv", "vector")])
    assert found["blocks.0.qkv.weight"] == VECTOR
    assert found["blocks.0.qkv.bias"] == EXEMPT
    found = routes(Timm(), overrides=[("qkv.weight", {"lr": 1e-4}), (nn.Linear, "vector")])
    assert found["blocks.0.qkv.weight"] == cut(3)
    assert found["blocks.0.proj.weight"] == VECTOR


def test_an_override_is_merged_over_the_automatic_options() -> None:
    groups = param_groups(Timm(), overrides=[("qkv", {"lr": 1e-4})])
    assert counts(groups) == {
        "matrix, conv": 1,
        "matrix, split 3, lr 0.0001": 2,
        "matrix": 4,
        "vector, no decay": 12,
        "vector, no decay, lr 0.0001": 2,
        "vector": 1,
    }
    assert groups[1]["lr"] == 1e-4


def test_a_class_matches_all_that_is_inside() -> None:
    model = nn.TransformerEncoderLayer(32, 4)
    found = routes(model, overrides=[(nn.MultiheadAttention, "vector")])
    assert found["self_attn.in_proj_weight"] == found["self_attn.out_proj.weight"] == VECTOR
    assert found["linear1.weight"] == MATRIX


def test_an_embedding_can_be_a_matrix() -> None:
    found = routes(NanoGPT(), overrides=[("wte", "matrix")])
    assert found["transformer.wte.weight"] == MATRIX


def test_a_layout_can_be_told() -> None:
    found = routes(nn.Bilinear(8, 9, 10), overrides=[("weight", {"layout": "conv"})])
    assert found["weight"] == CONV


def test_a_tied_parameter_goes_by_all_of_its_names() -> None:
    model = on_meta(gpt2)
    found = routes(model, overrides=[("lm_head", {"weight_decay": 0.5})])
    assert found["transformer.wte.weight"] == {**VECTOR, "weight_decay": 0.5}


def test_a_group_can_be_named() -> None:
    groups = param_groups(nn.Linear(3, 3), overrides=[("weight", {"name": "mine"})])
    assert counts(groups) == {"mine": 1, "vector, no decay": 1}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("wte", "matrx"), "'matrx'; did you mean 'matrix'"),
        (("wte", {"role": "vectro"}), "'vectro'; did you mean 'vector'"),
        (("wte", {"layout": "convv"}), "'convv'; did you mean 'conv'"),
        (("lm_haed", "vector"), "'lm_haed' matches no parameter; .* lm_head.weight"),
        ((nn.Conv2d, "vector"), "Conv2d matches no parameter; there are Embedding, Linear"),
        (("(", "vector"), r"overrides: .* regular expression or a module class, got '\('"),
        ((3, "vector"), "regular expression or a module class, got 3"),
        (("c_proj", "matrix"), r"c_proj.bias of shape \(64,\) cannot have the role 'matrix'"),
        (("wte", {"params": []}), "cannot set 'params'"),
        (("wte", {"wieght_decay": 0.0}), "'wieght_decay'; did you mean 'weight_decay'"),
    ],
)
def test_override_errors(override: tuple[object, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        param_groups(NanoGPT(), overrides=[override])


def test_a_fused_bias_is_no_matrix() -> None:
    with pytest.raises(ValueError, match=r"query_key_value.bias of shape \(96,\) cannot have"):
        param_groups(on_meta(MODELS["gpt-neox"]), overrides=[("query_key_value", "matrix")])


def test_an_override_that_is_never_reached_is_an_error() -> None:
    with pytest.raises(ValueError, match="'wte' has no effect.*put it before"):
        param_groups(NanoGPT(), overrides=[("transformer", "vector"), ("wte", "vector")])


def test_a_class_needs_the_module() -> None:
    with pytest.raises(ValueError, match="Linear matches no parameter; pass the module itself"):
        param_groups(NanoGPT().named_parameters(), overrides=[(nn.Linear, "vector")])
    with pytest.raises(ValueError, match="have no names, so pass the module itself"):
        param_groups(NanoGPT().parameters(), overrides=[("wte", "vector")])


def test_a_split_cuts_the_outputs() -> None:
    model = on_meta(gpt2)
    found = routes(model, split={r"mlp\.c_fc": 4, r"h\.0\.attn\.c_attn": (768, 1536)})
    assert found["transformer.h.5.mlp.c_fc.weight"] == cut(4, split_dim=-1)
    assert found["transformer.h.0.attn.c_attn.weight"] == cut((768, 1536), split_dim=-1)
    assert found["transformer.h.1.attn.c_attn.weight"] == cut(3, split_dim=-1)
    assert found["transformer.h.5.mlp.c_fc.bias"] == EXEMPT
    assert routes(NanoGPT(), split={"c_proj": 4})["transformer.h.0.c_proj.weight"] == cut(4)
    assert routes(Stem(), split={"first": 2})["first.weight"] == {**CONV, "split": 2}


def test_a_split_of_experts_stored_as_in_out_cuts_columns() -> None:
    found = routes(on_meta(MODELS["gpt-oss"]), split={"gate_up_proj$": 2})
    assert found["model.layers.0.mlp.experts.gate_up_proj"] == cut(2, split_dim=-1)


def test_a_split_of_one_does_not_cut() -> None:
    assert routes(Timm(), split={"qkv": 1})["blocks.0.qkv.weight"] == MATRIX


def test_a_split_of_what_an_override_makes_a_matrix() -> None:
    found = routes(NanoGPT(), overrides=[("wte", "matrix")], split={"wte": 2})
    assert found["transformer.wte.weight"] == cut(2)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"c_proj": 5}, r"transformer.h.0.c_proj.weight.*shape \(64, 64\), got 5 .*tuple of sizes"),
        ({"c_proj": (32, 16)}, r"transformer.h.0.c_proj.weight.*add up.*\(64, 64\).*\(32, 16\)"),
        ({"c_proj": 64}, r"c_proj.weight of shape \(64, 64\) .*into fewer parts"),
        ({"c_proj": 0}, r"split\['c_proj'\] must be .* at least 1, got 0"),
        ({"c_proj": True}, "got True"),
        ({"c_proj": ()}, r"got \(\)"),
        ({"c_poj": 2}, "split: 'c_poj' matches no parameter; the nearest names are .*c_proj"),
        ({"wte": 2}, "split: 'wte' matches no matrix.*overrides"),
    ],
)
def test_split_errors(split: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        param_groups(NanoGPT(), split=split)
