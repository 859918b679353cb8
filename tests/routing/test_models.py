"""Routing of real architectures on the meta device, the traps of each by name."""

from collections.abc import Callable

import pytest
import torch
import transformers as hf
from torch import nn

from deva_optim import DeVASinf, param_groups
from routing.architectures import (
    CONV,
    EXEMPT,
    MATRIX,
    MODELS,
    VECTOR,
    Adapted,
    Lora,
    NanoGPT,
    Stem,
    Timm,
    assert_partition,
    counts,
    cut,
    gpt2,
    llama,
    on_meta,
    phi3,
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
def test_the_engine_takes_every_group(name: str) -> None:
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


@pytest.mark.parametrize(("kv_heads", "split"), [(8, (3072, 768, 768)), (32, 3)])
def test_phi3(kv_heads: int, split: int | tuple[int, ...]) -> None:
    found = routes(on_meta(lambda: phi3(kv_heads)))
    assert found["model.layers.0.self_attn.qkv_proj.weight"] == cut(split)
    assert found["model.layers.0.mlp.gate_up_proj.weight"] == cut(2)


def test_gpt_neox_interleaves_its_heads() -> None:
    found = routes(on_meta(MODELS["gpt-neox"]))
    assert found["gpt_neox.layers.0.attention.query_key_value.weight"] == cut(3 * 4)
    assert found["lm_head.weight"] == VECTOR


@pytest.mark.parametrize(
    ("name", "gate_up"),
    [("gpt-oss", MATRIX), ("llama4", cut(2, split_dim=-1))],  # gpt-oss interleaves gate and up
)
def test_experts_stored_as_in_out(name: str, gate_up: dict[str, object]) -> None:
    found = routes(on_meta(MODELS[name]))
    routed = [route for path, route in found.items() if path.endswith("experts.gate_up_proj")]
    assert routed == [gate_up]
    biases = [route for path, route in found.items() if path.endswith("proj_bias")]
    assert all(route == EXEMPT for route in biases)
    assert len(biases) == (2 if name == "gpt-oss" else 0)


FALCON = {"bias": False, "alibi": False}
FUSED: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "bloom": (
        lambda: hf.BloomForCausalLM(hf.BloomConfig(hidden_size=32, n_head=4, n_layer=1)),
        "self_attention.query_key_value.weight",
        12,
    ),
    "codegen": (
        lambda: hf.CodeGenForCausalLM(
            hf.CodeGenConfig(n_embd=32, n_head=4, n_layer=1, n_positions=8, rotary_dim=4)
        ),
        "attn.qkv_proj.weight",
        12,
    ),
    "deberta": (
        lambda: hf.DebertaModel(small(hf.DebertaConfig)),
        "attention.self.in_proj.weight",
        12,
    ),
    "falcon, one key": (
        lambda: hf.FalconForCausalLM(small(hf.FalconConfig, multi_query=True, **FALCON)),
        "query_key_value.weight",
        4 + 2,
    ),
    "falcon, all keys": (
        lambda: hf.FalconForCausalLM(small(hf.FalconConfig, multi_query=False, **FALCON)),
        "query_key_value.weight",
        12,
    ),
    "falcon, grouped": (
        lambda: hf.FalconForCausalLM(
            small(hf.FalconConfig, new_decoder_architecture=True, num_kv_heads=2, **FALCON)
        ),
        "query_key_value.weight",
        4 + 2 * 2,
    ),
    "gpt-bigcode": (
        lambda: hf.GPTBigCodeForCausalLM(
            hf.GPTBigCodeConfig(n_embd=32, n_head=4, n_layer=1, multi_query=False)
        ),
        "attn.c_attn.weight",
        12,
    ),
    "persimmon": (
        lambda: hf.PersimmonForCausalLM(small(hf.PersimmonConfig)),
        "query_key_value.weight",
        12,
    ),
    "mpt": (
        lambda: hf.MptForCausalLM(hf.MptConfig(d_model=32, n_heads=4, n_layers=1)),
        "attn.Wqkv.weight",
        3,
    ),
    "lfm2": (
        lambda: hf.Lfm2ForCausalLM(
            small(hf.Lfm2Config, num_key_value_heads=2, layer_types=["conv"], pad_token_id=0)
        ),
        "conv.in_proj.weight",
        3,
    ),
    "glm": (
        lambda: hf.GlmForCausalLM(small(hf.GlmConfig, num_key_value_heads=2, pad_token_id=0)),
        "mlp.gate_up_proj.weight",
        2,
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # transformers' own
@pytest.mark.parametrize("name", FUSED)
def test_fused_layers_of_other_architectures(name: str) -> None:
    build, suffix, split = FUSED[name]
    found = routes(on_meta(build))
    assert [route for path, route in found.items() if path.endswith(suffix)] == [cut(split)]


def test_dbrx_experts_in_rows_and_grouped_queries() -> None:
    config = hf.DbrxConfig(
        d_model=32,
        n_heads=4,
        n_layers=1,
        vocab_size=96,
        attn_config={"rope_theta": 1e4, "kv_n_heads": 2},
        ffn_config={"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 1},
    )
    found = routes(on_meta(lambda: hf.DbrxForCausalLM(config)))
    assert found["transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight"] == cut((32, 16, 16))
    assert found["transformer.blocks.0.ffn.experts.mlp.w1"] == cut(4)


def test_wav2vec2_weight_norm_of_a_grouped_convolution() -> None:
    found = routes(on_meta(MODELS["wav2vec2"]))
    conv = "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight"
    assert found[f"{conv}.original1"] == {**CONV, "split": 16}
    assert found[f"{conv}.original0"] == VECTOR  # (1, 1, 128)


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


def test_timm() -> None:
    found = routes(Timm())
    assert found["cls_token"] == found["pos_embed"] == EXEMPT
    assert found["patch_embed.weight"] == CONV
    assert found["blocks.1.qkv.weight"] == cut(3)
    assert found["blocks.1.proj.weight"] == MATRIX
    assert found["head.weight"] == VECTOR


def test_a_linear_as_wide_as_the_positions_is_no_head() -> None:
    found = routes(NanoGPT())
    assert found["transformer.h.0.c_attn.weight"] == cut(3)
    assert found["transformer.h.0.c_proj.weight"] == MATRIX
    assert found["transformer.mix.weight"] == MATRIX  # (64, 64), and wpe is (64, 64) too
    assert found["lm_head.weight"] == VECTOR


def test_convolutions() -> None:
    found = routes(Stem())
    for name in ("first", "line", "volume", "up"):
        assert found[f"{name}.weight"] == CONV
    assert found["grouped.weight"] == {**CONV, "split": 4}
    assert found["grouped_up.weight"] == {**CONV, "split": 2}
    for name in ("depthwise", "multiplied", "lonely", "to_one"):
        assert found[f"{name}.weight"] == VECTOR


def test_multihead_attention() -> None:
    found = routes(nn.MultiheadAttention(32, 4, add_bias_kv=True))
    assert found["in_proj_weight"] == cut(3)
    assert found["out_proj.weight"] == MATRIX
    assert found["bias_k"] == found["in_proj_bias"] == EXEMPT
    found = routes(nn.MultiheadAttention(32, 4, kdim=16, vdim=24))
    assert found["q_proj_weight"] == found["k_proj_weight"] == MATRIX


def test_recurrent_gates() -> None:
    found = routes(nn.LSTM(16, 32, num_layers=2, bidirectional=True, proj_size=8))
    assert found["weight_ih_l0"] == found["weight_hh_l1_reverse"] == cut(4)
    assert found["weight_hr_l0"] == MATRIX
    assert routes(nn.GRUCell(16, 32))["weight_ih"] == cut(3)
    assert routes(nn.RNN(16, 32))["weight_ih_l0"] == MATRIX
    assert routes(nn.LSTM(16, 1))["weight_ih_l0"] == VECTOR  # four gates of one row


def test_the_last_layer_of_a_chain_is_its_head() -> None:
    chain = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    assert routes(chain)["0.weight"] == MATRIX
    assert routes(chain)["2.weight"] == VECTOR
    assert (
        routes(nn.Sequential(nn.Linear(8, 6)))["0.weight"] == MATRIX
    )  # there is nothing before it


def test_a_head_may_be_a_class_of_its_own() -> None:
    class Codebooks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 8, 16))

    model = nn.ModuleDict({"body": nn.Linear(8, 8), "codebooks_head": Codebooks()})
    assert routes(model)["codebooks_head.weight"] == VECTOR


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


def test_affine_parameters_of_a_norm_are_not_matrices() -> None:
    assert routes(nn.LayerNorm((4, 8, 8)))["weight"] == EXEMPT


def test_position_tables_in_a_list() -> None:
    class AxialPositionEmbeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([torch.ones(64, 1, 16), torch.ones(4, 64, 48)])

    assert routes(AxialPositionEmbeddings()) == {"weights.0": EXEMPT, "weights.1": EXEMPT}


def test_a_compiled_layer_keeps_its_name() -> None:
    model = Timm()
    model.blocks[0]["qkv"] = torch.compile(model.blocks[0]["qkv"], backend="eager")
    model.head = torch.compile(model.head, backend="eager")
    found = routes(torch.compile(model, backend="eager"))
    assert found["_orig_mod.blocks.0.qkv._orig_mod.weight"] == cut(3)
    assert found["_orig_mod.head._orig_mod.weight"] == VECTOR


def test_frozen_parameters_are_routed() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    assert_partition(model, param_groups(model))


def zero_queries_(model: nn.Module, name: str, queries: slice) -> None:
    """Sets to zero those of the parts of a fused weight that are queries."""
    weight, route = model.get_parameter(name), routes(model)[name]
    dim = route.get("split_dim", -2)
    size = weight.shape[dim]
    split = route["split"]
    sizes = [size // split] * split if isinstance(split, int) else list(split)
    with torch.no_grad():
        for part in weight.split(sizes, dim)[queries]:
            part.zero_()


@pytest.mark.parametrize(
    ("build", "name", "queries"),
    [
        (
            lambda **k: hf.GPT2LMHeadModel(
                hf.GPT2Config(n_layer=1, n_embd=32, n_head=4, vocab_size=96, n_positions=8, **k)
            ),
            "transformer.h.0.attn.c_attn.weight",
            slice(0, 1),
        ),
        (
            lambda **k: hf.GPTNeoXForCausalLM(small(hf.GPTNeoXConfig, **k)),
            "gpt_neox.layers.0.attention.query_key_value.weight",
            slice(0, None, 3),
        ),
        (
            lambda **k: hf.Phi3ForCausalLM(
                small(hf.Phi3Config, num_key_value_heads=2, pad_token_id=0, **k)
            ),
            "model.layers.0.self_attn.qkv_proj.weight",
            slice(0, 1),
        ),
    ],
    ids=["gpt2", "gpt-neox", "phi3"],
)
def test_without_queries_attention_is_uniform(
    build: Callable[..., nn.Module], name: str, queries: slice
) -> None:
    model = build(attn_implementation="eager").eval()
    tokens = torch.arange(6)[None]
    uniform = torch.ones(6, 6).tril()
    uniform = (uniform / uniform.sum(-1, keepdim=True)).expand(1, 4, 6, 6)
    before = model(tokens, output_attentions=True).attentions[0]
    assert (before - uniform).abs().max() > 1e-6
    zero_queries_(model, name, queries)
    after = model(tokens, output_attentions=True).attentions[0]
    torch.testing.assert_close(after, uniform)
