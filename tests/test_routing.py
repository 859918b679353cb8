"""Routing: real architectures on the meta device, the traps of each by name, and the errors."""

import copy
from collections.abc import Callable

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from deva_optim import DeVASinf, describe, param_groups
from deva_optim.layout import parts

OPTIONS = ("role", "layout", "split", "split_dim", "weight_decay")

MATRIX = {"role": "matrix", "layout": "stack"}
CONV = {"role": "matrix", "layout": "conv"}
VECTOR = {"role": "vector"}
EXEMPT = {"role": "vector", "weight_decay": 0.0}


def cut(split: int | tuple[int, ...], **options: object) -> dict[str, object]:
    return {**MATRIX, "split": split, **options}


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def routes(model: object, **kwargs: object) -> dict[str, dict[str, object]]:
    """{name: options} of every parameter."""
    return {
        name: {key: group[key] for key in OPTIONS if key in group}
        for group in param_groups(model, **kwargs)
        for name, _ in group["params"]
    }


def counts(groups: list[dict[str, object]]) -> dict[str, int]:
    return {group["name"]: len(group["params"]) for group in groups}


def assert_partition(model: nn.Module, groups: list[dict[str, object]]) -> None:
    found = [param for group in groups for _, param in group["params"]]
    expected = list(model.parameters())
    assert len(found) == len(expected)
    assert {id(param) for param in found} == {id(param) for param in expected}
    assert all(group["params"] for group in groups)
    names = dict(model.named_parameters())
    assert all(names[name] is param for group in groups for name, param in group["params"])


# --- Models built by hand ------------------------------------------------------------------------


class Lora(nn.Module):
    """A wrapped layer as PEFT builds it."""

    def __init__(self, layer: nn.Module, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})
        self.lora_embedding_A = nn.ParameterDict()
        self.lora_embedding_B = nn.ParameterDict()


class LoraEmbedding(nn.Module):
    def __init__(self, rows: int, width: int, rank: int) -> None:
        super().__init__()
        self.base_layer = nn.Embedding(rows, width)
        self.lora_embedding_A = nn.ParameterDict({"default": torch.randn(rank, rows)})
        self.lora_embedding_B = nn.ParameterDict({"default": torch.randn(width, rank)})


class Adapted(nn.Module):
    """A GPT-2 with LoRA on its embedding, its fused projection and its (untied) head."""

    def __init__(self) -> None:
        super().__init__()
        config = hf.GPT2Config(n_layer=1, n_embd=32, n_head=4, vocab_size=100, n_positions=16)
        config.tie_word_embeddings = False
        self.model = hf.GPT2LMHeadModel(config)
        transformer = self.model.transformer
        transformer.wte = LoraEmbedding(100, 32, 4)
        transformer.h[0].attn.c_attn = Lora(transformer.h[0].attn.c_attn, 32, 96, 4)
        self.model.lm_head = Lora(self.model.lm_head, 32, 100, 4)


class Timm(nn.Module):
    """The parts of a vision transformer as timm names them."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 64))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, 64))
        self.patch_embed = nn.Conv2d(3, 64, 4, 4)
        block = nn.ModuleDict({"norm1": nn.LayerNorm(64), "qkv": nn.Linear(64, 192)})
        block.update({"proj": nn.Linear(64, 64), "fc1": nn.Linear(64, 256)})
        self.blocks = nn.Sequential(block, copy.deepcopy(block))
        self.head = nn.Linear(64, 10)


class NanoGPT(nn.Module):
    """Karpathy's: fused c_attn in an nn.Linear; the positions are as many as the width."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        block = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width)})
        block["c_proj"] = nn.Linear(width, width)
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(96, width)})
        self.transformer["wpe"] = nn.Embedding(width, width)
        self.transformer["h"] = nn.ModuleList([block])
        self.transformer["mix"] = nn.Linear(width, width)
        self.lm_head = nn.Linear(width, 96, bias=False)


class Stem(nn.Sequential):
    """Convolutions of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 7)
        self.line = nn.Conv1d(16, 24, 3)
        self.volume = nn.Conv3d(4, 8, 3)
        self.up = nn.ConvTranspose2d(16, 8, 2)
        self.grouped = nn.Conv2d(16, 32, 3, groups=4)
        self.grouped_up = nn.ConvTranspose1d(16, 8, 4, groups=2)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.multiplied = nn.Conv2d(16, 32, 3, groups=16)
        self.lonely = nn.Conv2d(16, 4, 3, groups=4)  # each group has one filter
        self.to_one = nn.Conv2d(16, 1, 3)


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config())


def llama(*, tied: bool) -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(num_hidden_layers=2, tie_word_embeddings=tied))


def vit() -> nn.Module:
    size = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    config = hf.ViTConfig(**size, num_hidden_layers=2, num_labels=1000)
    return hf.ViTForImageClassification(config)


def phi3(kv_heads: int) -> nn.Module:
    config = hf.Phi3Config(num_hidden_layers=1, num_key_value_heads=kv_heads)
    return hf.Phi3ForCausalLM(config)


def small(config: type, **kwargs: object) -> object:
    """A configuration of width 32 with 4 heads."""
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    return config(**{**shape, "intermediate_size": 48, "vocab_size": 96, **kwargs})


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "llama": lambda: llama(tied=False),
    "llama, tied": lambda: llama(tied=True),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(num_hidden_layers=2)),
    "bert": lambda: hf.BertForPreTraining(hf.BertConfig(num_hidden_layers=2)),
    "vit": vit,
    "resnet": lambda: hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)),
    "whisper": lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig()),
    "phi3": lambda: phi3(8),
    "gpt-neox": lambda: hf.GPTNeoXForCausalLM(small(hf.GPTNeoXConfig)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(small(hf.GptOssConfig, num_local_experts=4)),
    "llama4": lambda: hf.Llama4ForCausalLM(small(hf.Llama4TextConfig, num_local_experts=4)),
    "wav2vec2": lambda: hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(num_hidden_layers=1)),
    "mamba": lambda: hf.MambaForCausalLM(small(hf.MambaConfig)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(num_layers=1)),
    "lora": Adapted,
    "timm": Timm,
    "nanogpt": NanoGPT,
    "convolutions": Stem,
    "attention": lambda: nn.MultiheadAttention(32, 4, add_bias_kv=True),
    "attention, unequal": lambda: nn.MultiheadAttention(32, 4, kdim=16, vdim=24),
    "lstm": lambda: nn.LSTM(16, 32, num_layers=2, bidirectional=True, proj_size=8),
    "gru": lambda: nn.GRU(16, 32),
    "rnn": lambda: nn.RNN(16, 32),
    "bilinear": lambda: nn.Bilinear(8, 9, 10),
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4), 2, enable_nested_tensor=False
    ),
}


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


# --- The traps, by name --------------------------------------------------------------------------


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


# --- That the cuts are where the model cuts ------------------------------------------------------


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


# --- Names and shapes alone ----------------------------------------------------------------------


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


# --- Decay ---------------------------------------------------------------------------------------


def test_decay_1d_leaves_decay_to_the_optimizer() -> None:
    groups = param_groups(Timm(), decay_1d=True)
    assert all("weight_decay" not in group for group in groups)
    assert any("weight_decay" in group for group in param_groups(Timm()))


def test_decay_1d_does_not_touch_an_override() -> None:
    found = routes(Timm(), overrides=[("cls_token", {"weight_decay": 0.0})], decay_1d=True)
    assert found["cls_token"] == EXEMPT
    assert found["pos_embed"] == VECTOR


# --- Overrides -----------------------------------------------------------------------------------


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


# --- Splits --------------------------------------------------------------------------------------


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


# --- Groups --------------------------------------------------------------------------------------


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


# --- describe ------------------------------------------------------------------------------------

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


# --- Any model -----------------------------------------------------------------------------------

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
