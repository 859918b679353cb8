"""How weights are cut into matrices: fused layers, experts, convolutions, recurrent gates."""

from collections.abc import Callable

import pytest
import torch
import transformers as hf
from torch import nn

from .architectures import (
    CONV,
    EXEMPT,
    MATRIX,
    MODELS,
    VECTOR,
    Stem,
    cut,
    on_meta,
    phi3,
    routes,
    small,
)


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
    "lfm2-moe": (
        lambda: hf.Lfm2MoeForCausalLM(
            small(hf.Lfm2MoeConfig, num_key_value_heads=2, layer_types=["conv"], pad_token_id=0)
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
    found = routes(on_meta(MODELS["dbrx"]))
    assert found["transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight"] == cut((32, 16, 16))
    assert found["transformer.blocks.0.ffn.experts.mlp.w1"] == cut(4)


def test_weights_with_their_heads_apart_are_one_matrix_each() -> None:
    config = hf.XLNetConfig(d_model=32, n_head=4, n_layer=1, d_inner=64, vocab_size=96)
    found = routes(on_meta(lambda: hf.XLNetModel(config)))  # weights of (32, 4, 8)
    assert all(found[f"layer.0.rel_attn.{letter}"] == CONV for letter in "qkvor")
    assert found["layer.0.rel_attn.seg_embed"] == VECTOR
    config = hf.FunnelConfig(vocab_size=96, block_sizes=[1], num_decoder_layers=1)
    found = routes(on_meta(lambda: hf.FunnelModel(config)))
    assert found["encoder.blocks.0.0.attention.r_kernel"] == CONV


def test_wav2vec2_weight_norm_of_a_grouped_convolution() -> None:
    found = routes(on_meta(MODELS["wav2vec2"]))
    conv = "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight"
    assert found[f"{conv}.original1"] == {**CONV, "split": 16}
    assert found[f"{conv}.original0"] == VECTOR  # (1, 1, 128)


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
