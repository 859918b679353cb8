"""Architectures for the tests of routing, from transformers and by hand, and their routes."""

import copy
from collections.abc import Callable

import torch
import transformers as hf
from torch import nn

from deva_optim import param_groups

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


# Models built by hand ----------------------------------------------------------------------------


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


def dbrx() -> nn.Module:
    config = hf.DbrxConfig(
        d_model=32,
        n_heads=4,
        n_layers=1,
        vocab_size=96,
        attn_config={"rope_theta": 1e4, "kv_n_heads": 2},
        ffn_config={"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 1},
    )
    return hf.DbrxForCausalLM(config)


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
    "convnext": lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(depths=[1, 1, 1, 1])),
    "whisper": lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig()),
    "phi3": lambda: phi3(8),
    "gpt-neox": lambda: hf.GPTNeoXForCausalLM(small(hf.GPTNeoXConfig)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(small(hf.GptOssConfig, num_local_experts=4)),
    "llama4": lambda: hf.Llama4ForCausalLM(small(hf.Llama4TextConfig, num_local_experts=4)),
    "dbrx": dbrx,
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
