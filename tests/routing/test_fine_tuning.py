"""`per_head` and `layer_decay` of `param_groups`: heads, and rates that fall by layers."""

import pytest
import torch
from torch import nn

import deva_optim as do
from deva_optim import param_groups

from .architectures import MODELS, NanoGPT, cut, on_meta, routes

HEADS = {
    "gpt2": {"transformer.h.0.attn.c_attn.weight": cut(36, split_dim=-1)},
    "llama": {"model.layers.0.self_attn.q_proj.weight": cut(32)},
    "mixtral": {
        "model.layers.0.self_attn.q_proj.weight": cut(32),
        "model.layers.0.self_attn.k_proj.weight": cut(8),  # grouped queries
        "model.layers.0.self_attn.v_proj.weight": cut(8),
    },
    "bert": {"bert.encoder.layer.1.attention.self.key.weight": cut(12)},
    "vit": {"vit.layers.0.attention.v_proj.weight": cut(16)},
    "t5": {"decoder.block.0.layer.1.EncDecAttention.k.weight": cut(8)},
    "phi3": {"model.layers.0.self_attn.qkv_proj.weight": cut(48)},  # 32 + 8 + 8 heads
    "attention": {"in_proj_weight": cut(12)},
    "attention, unequal": {"k_proj_weight": cut(4), "v_proj_weight": cut(4)},
    "encoder": {"layers.0.self_attn.in_proj_weight": cut(12)},
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_read_from_the_modules(name: str) -> None:
    model = on_meta(MODELS[name])
    before, after = routes(model), routes(model, per_head=True)
    for parameter, expected in HEADS[name].items():
        assert after[parameter] == expected
    changed = {key for key in before if before[key] != after[key]}
    projections = ("q", "k", "v", "query", "key", "value", "in_proj_weight", "qkv", "c_attn")
    assert all(any(word in key for word in projections) for key in changed)
    assert not any("o_proj" in key or "mlp" in key for key in changed)


class TimmAttention(nn.Module):
    """The attention of timm: one `qkv`, `num_heads` and `head_dim`."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 4, 8
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)


class Latent(nn.Module):
    """Values of another size than the keys, as in attention with latents."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qk_head_dim, self.v_head_dim = 4, 12, 8
        self.q_proj, self.v_proj = nn.Linear(32, 48), nn.Linear(32, 32)


def test_heads_of_other_attentions() -> None:
    assert routes(nn.Sequential(TimmAttention()), per_head=True)["0.qkv.weight"] == cut(12)
    found = routes(nn.Sequential(Latent()), per_head=True)
    assert found["0.q_proj.weight"] == found["0.v_proj.weight"] == cut(4)
    assert routes(NanoGPT(), per_head=True) == routes(NanoGPT())  # it does not say how many


def test_the_split_of_the_user_stands_above_the_heads() -> None:
    found = routes(nn.Sequential(TimmAttention()), per_head=True, split={"qkv": 3})
    assert found["0.qkv.weight"] == cut(3)


def test_heads_move_as_matrices_of_their_own() -> None:
    """The update of Muon is orthogonal in every head: its RMS is that of the scale."""
    torch.manual_seed(0)
    attention = TimmAttention()
    optimizer = do.Muon(
        param_groups(nn.Sequential(attention), per_head=True), lr=1.0, weight_decay=0.0, msign="svd"
    )
    before = attention.qkv.weight.detach().clone()
    attention.qkv.weight.grad = torch.randn(96, 32)
    optimizer.step()
    for head in (attention.qkv.weight.detach() - before).split(8):
        expected = (0.2 * 32**0.5) ** 2 * torch.eye(8)
        # Sums of 32 products of float32 that come to 1.28, after a decomposition of as many; and
        # the change of a weight of up to 0.2 is rounded with it. The margin is 16.
        torch.testing.assert_close(head @ head.mT, expected, rtol=0, atol=16 * 2 * 32 * 2**-23)


# Layers ------------------------------------------------------------------------------------------


def scales(model: nn.Module, decay: float) -> dict[str, float]:
    groups = param_groups(model, layer_decay=decay)
    return {name: g.get("lr_scale", 1.0) for g in groups for name, _ in g["params"]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit", {"vit.embeddings.cls_token": 3, "vit.layers.0.mlp.fc1.weight": 2,
                 "vit.layers.1.mlp.fc1.weight": 1, "vit.layernorm.weight": 0,
                 "classifier.weight": 0}),
        ("timm", {"patch_embed.weight": 3, "blocks.0.qkv.weight": 2, "head.weight": 0}),
        ("gpt2", {"transformer.wte.weight": 13, "transformer.h.11.mlp.c_fc.weight": 1}),
        ("t5", {"shared.weight": 3, "encoder.block.0.layer.1.DenseReluDense.wo.weight": 2,
                "encoder.final_layer_norm.weight": 2, "decoder.final_layer_norm.weight": 0,
                "decoder.block.0.layer.2.DenseReluDense.wo.weight": 1}),
        ("resnet", {"resnet.encoder.stages.3.layers.2.layer.0.convolution.weight": 1,
                    "resnet.encoder.stages.3.layers.1.layer.2.convolution.weight": 2}),
        ("convnext", {"convnext.embeddings.patch_embeddings.weight": 5,
                      "convnext.encoder.stages.0.layers.0.pwconv1.weight": 4,
                      "convnext.encoder.stages.1.downsampling_layer.1.weight": 4,
                      "convnext.encoder.stages.1.layers.0.pwconv1.weight": 3,
                      "convnext.encoder.stages.3.downsampling_layer.0.bias": 2,
                      "convnext.layernorm.weight": 0, "classifier.weight": 0}),
        ("whisper", {"model.encoder.layer_norm.weight": 5, "model.decoder.embed_tokens.weight": 5,
                     "model.decoder.layers.0.fc1.weight": 4, "model.decoder.layer_norm.weight": 0}),
    ],
)  # fmt: skip
def test_rates_fall_by_layers(name: str, expected: dict[str, int]) -> None:
    found = scales(on_meta(MODELS[name]), 0.5)
    for parameter, layers in expected.items():
        assert found[parameter] == 0.5**layers, parameter
    assert scales(on_meta(MODELS[name]), 1.0).keys() == found.keys()


class Tower(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embeddings = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(4)


class Contrastive(nn.Module):
    """CLIP, of which one tower is deeper than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self.text_model, self.vision_model = Tower(3), Tower(2)
        self.text_projection = nn.Linear(4, 2)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_towers_beside_each_other_have_depths_of_their_own(prefix: str) -> None:
    model: nn.Module = Contrastive()
    found = scales(nn.ModuleDict({"model": model}) if prefix else model, 0.5)
    expected = {
        "text_model.embeddings": 4, "text_model.layers.0": 3, "text_model.layers.2": 1,
        "text_model.norm": 0, "vision_model.embeddings": 3, "vision_model.layers.0": 2,
        "vision_model.layers.1": 1, "vision_model.norm": 0, "text_projection": 0,
    }  # fmt: skip
    for layer, after in expected.items():
        assert found[f"{prefix}{layer}.weight"] == 0.5**after, layer


def test_the_scale_of_a_layer_becomes_part_of_its_rate() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    groups = param_groups(model, layer_decay=0.5)
    for cls in (do.DeVA, do.AdamW):
        optimizer = cls(groups, lr=0.8)
        rates = {name: g["lr"] for g in optimizer.param_groups for name in g["param_names"]}
        assert [rates[f"{i}.weight"] for i in (0, 2, 4)] == [0.1, 0.2, 0.4]
        assert not any("lr_scale" in group for group in optimizer.param_groups)
    given = do.AdamW([{"params": [nn.Parameter(torch.zeros(2))], "lr": 0.2, "lr_scale": 0.5}])
    assert given.param_groups[0]["lr"] == 0.1  # timm's key


def test_a_decay_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="layer_decay must be above 0 and at most 1, got 1.5"):
        param_groups(nn.Sequential(nn.Linear(2, 2)), layer_decay=1.5)
    with pytest.raises(ValueError, match="needs the names"):
        param_groups([nn.Parameter(torch.zeros(2, 2))], layer_decay=0.5)
    with pytest.raises(ValueError, match="no repeated blocks"):
        param_groups(nn.Linear(2, 2), layer_decay=0.5)
