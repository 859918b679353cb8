"""Routing of real architectures on the meta device, the traps of each by name."""

import pytest
import torch
import transformers as hf
from torch import nn

from deva_optim import DeVASinf, Muon, param_groups

from .architectures import (
    CONV,
    EXEMPT,
    MATRIX,
    MODELS,
    VECTOR,
    Adapted,
    Lora,
    Timm,
    assert_partition,
    counts,
    cut,
    gpt2,
    llama,
    on_meta,
    routes,
    small,
    vit,
)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_in_exactly_one_group(name: str) -> None:
    model = on_meta(MODELS[name])
    groups = param_groups(model)
    assert_partition(model, groups)
    roles = [group["role"] for group in groups]
    assert roles == sorted(roles)  # "matrix" before "vector"


@pytest.mark.parametrize("name", MODELS)
def test_the_optimizer_takes_every_group(name: str) -> None:
    model = on_meta(MODELS[name])
    optimizer = DeVASinf(param_groups(model))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(model.parameters())
    )


def test_gpt2() -> None:
    model = on_meta(gpt2)
    groups = param_groups(model)
    assert counts(groups) == {
        "matrix, split 3 columns": 12,
        "matrix": 36,
        "vector": 2,
        "vector, no decay": 98,
    }
    found = routes(model)
    assert found["transformer.wte.weight"] == VECTOR
    assert found["transformer.wpe.weight"] == VECTOR
    assert found["transformer.h.3.attn.c_attn.weight"] == cut(3, split_dim=-1)
    assert found["transformer.h.3.mlp.c_fc.weight"] == MATRIX
    assert found["transformer.h.3.attn.c_attn.bias"] == EXEMPT
    assert "lm_head.weight" not in found  # tied: it is transformer.wte.weight


def test_gpt2_cross_attention() -> None:
    config = hf.GPT2Config(n_layer=1, n_embd=32, n_head=4, add_cross_attention=True)
    found = routes(on_meta(lambda: hf.GPT2LMHeadModel(config)))
    assert found["transformer.h.0.crossattention.c_attn.weight"] == cut(2, split_dim=-1)
    assert found["transformer.h.0.crossattention.q_attn.weight"] == MATRIX


@pytest.mark.parametrize("tied", [False, True])
def test_llama(tied: bool) -> None:
    found = routes(on_meta(lambda: llama(tied=tied)))
    assert found["model.embed_tokens.weight"] == VECTOR
    assert ("lm_head.weight" in found) is not tied
    assert found.get("lm_head.weight", VECTOR) == VECTOR
    layer = [name for name, route in found.items() if ".layers.1." in name and route == MATRIX]
    assert len(layer) == 7
    assert found["model.layers.1.input_layernorm.weight"] == EXEMPT


def test_mixtral() -> None:
    model = on_meta(MODELS["mixtral"])
    found = routes(model)
    experts = "model.layers.0.mlp.experts"
    assert model.get_parameter(f"{experts}.gate_up_proj").shape == (8, 28672, 4096)
    assert found[f"{experts}.gate_up_proj"] == cut(2)
    assert found[f"{experts}.down_proj"] == MATRIX
    assert found["model.layers.0.mlp.gate.weight"] == MATRIX  # the router
    assert found["lm_head.weight"] == VECTOR


def test_bert() -> None:
    found = routes(on_meta(MODELS["bert"]))
    for table in ("word", "position", "token_type"):
        assert found[f"bert.embeddings.{table}_embeddings.weight"] == VECTOR
    assert "cls.predictions.decoder.weight" not in found  # tied
    assert found["cls.predictions.transform.dense.weight"] == MATRIX
    assert found["cls.seq_relationship.weight"] == VECTOR
    assert found["bert.pooler.dense.weight"] == MATRIX
    assert found["cls.predictions.bias"] == EXEMPT


def test_vit() -> None:
    model = on_meta(vit)
    found = routes(model)
    assert model.vit.embeddings.position_embeddings.shape == (1, 197, 1024)
    assert found["vit.embeddings.position_embeddings"] == EXEMPT
    assert found["vit.embeddings.cls_token"] == EXEMPT
    assert found["vit.embeddings.patch_embeddings.projection.weight"] == CONV
    assert found["classifier.weight"] == VECTOR
    assert counts(param_groups(model))["matrix"] == 12


def test_resnet() -> None:
    model = on_meta(MODELS["resnet"])
    found = routes(model)
    assert found["resnet.embedder.embedder.convolution.weight"] == CONV
    assert found["resnet.encoder.stages.3.layers.2.layer.1.convolution.weight"] == CONV
    assert found["classifier.1.weight"] == VECTOR
    assert counts(param_groups(model)) == {
        "matrix, conv": 53,
        "vector, no decay": 107,
        "vector": 1,
    }


def test_whisper() -> None:
    model = on_meta(MODELS["whisper"])
    found = routes(model)
    assert model.model.encoder.conv1.weight.shape == (384, 80, 3)
    assert found["model.encoder.conv1.weight"] == CONV
    assert found["model.encoder.conv2.weight"] == CONV
    sinusoids = "model.encoder.embed_positions.weight"
    assert not model.get_parameter(sinusoids).requires_grad
    assert found[sinusoids] == VECTOR
    assert found["model.decoder.embed_tokens.weight"] == VECTOR
    assert "proj_out.weight" not in found  # tied


def test_mamba() -> None:
    found = routes(on_meta(MODELS["mamba"]))
    mixer = "backbone.layers.0.mixer"
    assert found[f"{mixer}.in_proj.weight"] == cut(2)
    assert found[f"{mixer}.conv1d.weight"] == VECTOR  # depthwise
    assert found[f"{mixer}.A_log"] == EXEMPT


def test_t5_relative_positions() -> None:
    found = routes(on_meta(MODELS["t5"]))
    attention = "encoder.block.0.layer.0.SelfAttention"
    assert found[f"{attention}.relative_attention_bias.weight"] == VECTOR
    assert found[f"{attention}.q.weight"] == MATRIX
    assert found["shared.weight"] == VECTOR


def test_modernbert_head_is_not_the_output() -> None:
    config = small(hf.ModernBertConfig, pad_token_id=0)
    found = routes(on_meta(lambda: hf.ModernBertForMaskedLM(config)))
    assert found["head.dense.weight"] == MATRIX
    assert found["model.layers.0.attn.Wqkv.weight"] == cut(3)
    assert found["model.layers.0.mlp.Wi.weight"] == cut(2)


def test_roberta_classifier() -> None:
    model = on_meta(lambda: hf.RobertaForSequenceClassification(small(hf.RobertaConfig)))
    found = routes(model)
    assert found["classifier.dense.weight"] == MATRIX
    assert found["classifier.out_proj.weight"] == VECTOR


def test_musicgen_has_several_heads() -> None:
    config = hf.MusicgenDecoderConfig(
        hidden_size=32, ffn_dim=48, num_hidden_layers=1, num_attention_heads=4, vocab_size=96
    )
    found = routes(on_meta(lambda: hf.MusicgenForCausalLM(config)))
    assert [found[f"lm_heads.{i}.weight"] for i in range(4)] == [VECTOR] * 4
    assert [found[f"model.decoder.embed_tokens.{i}.weight"] for i in range(4)] == [VECTOR] * 4


def test_low_rank_factors() -> None:
    found = routes(Adapted())
    attention, table = "model.transformer.h.0.attn.c_attn", "model.transformer.wte"
    assert found[f"{attention}.base_layer.weight"] == cut(3, split_dim=-1)
    assert found[f"{attention}.lora_A.default.weight"] == MATRIX
    assert found[f"{attention}.lora_B.default.weight"] == MATRIX
    assert found[f"{table}.base_layer.weight"] == VECTOR
    assert found[f"{table}.lora_embedding_A.default"] == VECTOR  # (rank, vocabulary)
    assert found[f"{table}.lora_embedding_B.default"] == MATRIX
    assert found["model.lm_head.base_layer.weight"] == VECTOR
    assert found["model.lm_head.lora_B.default.weight"] == MATRIX


def test_a_factor_of_rank_one_is_a_vector() -> None:
    found = routes(Lora(nn.Linear(8, 8), 8, 8, rank=1))
    assert found["lora_A.default.weight"] == VECTOR


def test_low_rank_factors_of_experts() -> None:
    peft = pytest.importorskip("peft")
    config = small(hf.MixtralConfig, num_local_experts=4, num_key_value_heads=2)
    targets = ["experts.gate_up_proj", "experts.down_proj", "self_attn.q_proj.weight"]
    lora = peft.LoraConfig(r=2, target_modules=[], target_parameters=targets)
    model = peft.get_peft_model(hf.MixtralForCausalLM(config), lora)
    found, layer = routes(model), "base_model.model.model.layers.0"
    for experts in (f"{layer}.mlp.experts", f"{layer}.mlp.experts.base_layer"):
        assert found[f"{experts}.lora_A.default.weight"] == cut(4)
        assert found[f"{experts}.lora_B.default.weight"] == MATRIX
    assert found[f"{layer}.self_attn.q_proj.lora_A.default.weight"] == MATRIX


def test_the_first_factor_of_an_expert_without_tokens_rests() -> None:
    peft = pytest.importorskip("peft")
    config = small(hf.MixtralConfig, num_local_experts=4, num_key_value_heads=2)
    lora = peft.LoraConfig(r=2, target_modules=[], target_parameters=["experts.gate_up_proj"])
    model = peft.get_peft_model(hf.MixtralForCausalLM(config), lora)
    wrapper = model.base_model.model.model.layers[0].mlp.experts
    nn.init.ones_(wrapper.lora_B["default"].weight)
    weight, optimizer = wrapper.lora_A["default"].weight, Muon(model, weight_decay=0.0)
    weight.grad = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    before = wrapper.get_delta_weight("default").detach()  # PEFT's product, (experts, out, in)
    weight.grad.unflatten(0, (4, 2))[[0, 1, 3]] = 0.0
    optimizer.step()
    after = wrapper.get_delta_weight("default").detach()
    moved = [not torch.equal(*pair) for pair in zip(before, after, strict=True)]
    assert moved == [False, False, True, False]


def test_timm() -> None:
    found = routes(Timm())
    assert found["cls_token"] == found["pos_embed"] == EXEMPT
    assert found["patch_embed.weight"] == CONV
    assert found["blocks.1.qkv.weight"] == cut(3)
    assert found["blocks.1.proj.weight"] == MATRIX
    assert found["head.weight"] == VECTOR


def test_a_weight_that_only_scales_is_not_decayed() -> None:
    config = hf.ConvNextV2Config(depths=[1, 1, 1, 1])
    found = routes(on_meta(lambda: hf.ConvNextV2ForImageClassification(config)))
    assert found["convnextv2.encoder.stages.0.layers.0.grn.weight"] == EXEMPT  # (1, 1, 1, 384)
    assert found["convnextv2.encoder.stages.0.layers.0.pwconv1.weight"] == MATRIX


def test_affine_parameters_of_a_norm_are_not_matrices() -> None:
    assert routes(nn.LayerNorm((4, 8, 8)))["weight"] == EXEMPT


def test_position_tables_in_a_list() -> None:
    class AxialPositionEmbeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([torch.ones(64, 1, 16), torch.ones(4, 64, 48)])

    assert routes(AxialPositionEmbeddings()) == {"weights.0": EXEMPT, "weights.1": EXEMPT}


def test_frozen_parameters_are_routed() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    assert_partition(model, param_groups(model))
