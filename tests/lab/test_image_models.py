"""The models of images: sizes as published, shapes, and the role of each weight."""

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, softmax

from deva_lab.errors import UsageError
from deva_lab.models.images import (
    MLP,
    MLP_SIZES,
    RESNET_SIZES,
    VIT_SIZES,
    ResNet,
    ResNetBlock,
    ResNetSize,
    Shape,
    ViT,
    ViTSize,
)
from deva_optim import param_groups

DIGITS = Shape(8, 1, 10)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def roles(model: nn.Module) -> dict[str, str]:
    return {name: group["role"] for group in param_groups(model) for name, _ in group["params"]}


def resnet(size: str = "tiny") -> ResNet:
    return ResNet(RESNET_SIZES[size], DIGITS)


def vit(size: str = "tiny") -> ViT:
    return ViT(VIT_SIZES[size], DIGITS)


def mlp(size: str = "tiny") -> MLP:
    return MLP(MLP_SIZES[size], DIGITS)


@pytest.mark.parametrize(
    ("size", "count"),
    [  # He et al., table 6: 0.27, 0.46, 0.66, 0.85 and 1.7 million
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet44", 658_586),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
    ],
)
def test_resnets_have_the_published_number_of_parameters(size: str, count: int) -> None:
    with torch.device("meta"):
        assert parameters(ResNet(RESNET_SIZES[size], Shape(32, 3, 10))) == count


@pytest.mark.parametrize(
    ("size", "count"),
    [("vit-s16", 22_050_664), ("vit-b16", 86_567_656), ("vit-l16", 304_326_632)],
)
def test_vits_have_the_published_number_of_parameters(size: str, count: int) -> None:
    with torch.device("meta"):
        model = ViT(VIT_SIZES[size], Shape(224, 3, 1000))
        assert parameters(model) == count
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (32, 3), (28, 1)])
def test_forward_shapes(side: int, channels: int) -> None:
    images, shape = torch.randn(3, channels, side, side), Shape(side, channels, 7)
    for model in (
        ResNet(RESNET_SIZES["tiny"], shape),
        ViT(VIT_SIZES["small"], shape),
        MLP(MLP_SIZES["tiny"], shape),
    ):
        assert model(images).shape == (3, 7)


def test_every_parameter_gets_a_gradient() -> None:
    for model in (resnet(), vit(), mlp()):
        model(torch.randn(4, 1, 8, 8)).square().sum().backward()
        for name, param in model.named_parameters():
            assert param.grad is not None, name
            assert param.grad.abs().sum() > 0, name


def test_vit_refuses_patches_that_do_not_fill_the_image() -> None:
    with pytest.raises(UsageError, match="side is a multiple of 16 pixels, got 40: choose another"):
        ViT(VIT_SIZES["vit-l16"], Shape(40, 3, 2))


def test_shortcut_thins_out_and_adds_channels_of_zeros() -> None:
    block = ResNetBlock(2, 4).eval()
    nn.init.zeros_(block.conv2.weight)  # the shortcut alone is left
    x = torch.rand(1, 2, 6, 6)
    y = block(x)
    assert torch.equal(y[:, 1:3], x[:, :, ::2, ::2])
    assert y.shape == (1, 4, 3, 3)
    assert not y[:, [0, 3]].any()


def test_resnet_halves_the_image_twice() -> None:
    model = ResNet(ResNetSize(blocks=2, width=4), Shape(32, 3, 10))
    assert model.stages(torch.randn(1, 4, 32, 32)).shape == (1, 16, 8, 8)


def test_vit_equals_the_formula_written_out() -> None:
    size = ViTSize(patch=2, width=8, depth=1, heads=2)
    model = ViT(size, Shape(4, 3, 5)).double()
    for param in model.parameters():
        nn.init.normal_(param, std=0.5)
    images = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    p = dict(model.named_parameters())

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, (8,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-6)

    def layer(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    for n in range(2):
        tokens = [p["class_token"][0, 0]]
        for i, j in [(0, 0), (0, 2), (2, 0), (2, 2)]:
            patch = images[n, :, i : i + 2, j : j + 2]
            tokens.append((p["patches.weight"] * patch).sum((1, 2, 3)) + p["patches.bias"])
        x = torch.stack(tokens) + p["positions"][0]  # (5, 8)
        qkv = layer(norm(x, "blocks.0.norm1"), "blocks.0.attention.qkv")
        heads = []
        for h in (slice(0, 4), slice(4, 8)):
            q, k, v = qkv[:, :8][:, h], qkv[:, 8:16][:, h], qkv[:, 16:][:, h]
            heads.append(softmax(q @ k.T / 2, dim=-1) @ v)
        x = x + layer(torch.cat(heads, 1), "blocks.0.attention.proj")
        hidden = gelu(layer(norm(x, "blocks.0.norm2"), "blocks.0.up"))
        x = x + layer(hidden, "blocks.0.down")
        expected = layer(norm(x, "norm")[0], "head")
        # Some ten layers of sums of at most 32 terms of order one, in another order. Three norms
        # may divide by a deviation of a tenth: 10³; the margin is 8.
        atol = 8 * 10 * 32 * 10**3 * 2**-53
        torch.testing.assert_close(model(images)[n], expected, rtol=0, atol=atol)


def test_routing_of_a_resnet() -> None:
    found = roles(resnet("resnet20"))
    for name, role in found.items():
        assert role == ("matrix" if "conv" in name else "vector"), name
    assert sum(role == "matrix" for role in found.values()) == 19


def test_routing_of_a_vit() -> None:
    found = roles(vit("small"))
    matrices = ("patches.weight", "qkv.weight", "proj.weight", "up.weight", "down.weight")
    for name, role in found.items():
        assert role == ("matrix" if name.endswith(matrices) else "vector"), name
    assert {"class_token", "positions", "head.weight", "norm.weight"} <= found.keys()
    groups = {name: g for g in param_groups(vit()) for name, _ in g["params"]}
    assert groups["blocks.0.attention.qkv.weight"]["split"] == 3
    assert groups["positions"]["weight_decay"] == groups["class_token"]["weight_decay"] == 0


def test_routing_of_an_mlp() -> None:
    assert roles(mlp()) == {
        "first.weight": "matrix",
        "second.weight": "matrix",
        "head.weight": "vector",
        "first.bias": "vector",
        "second.bias": "vector",
        "head.bias": "vector",
    }


def test_vit_starts_with_the_deviation_of_its_size() -> None:
    for size in (ViTSize(4, 64, 1, 2), ViTSize(4, 64, 1, 2, std=0.02)):
        model = ViT(size, Shape(32, 3, 10))
        for name, param in model.named_parameters():
            if name.endswith("bias"):
                assert not param.any(), name
            elif "norm" in name:
                assert (param == 1).all(), name
            elif param.numel() > 500:  # enough of them to tell the deviation to a tenth
                inputs = param.shape[1]
                expected = (size.std or inputs**-0.5) if "blocks" in name else 0.02
                assert param.std().item() == pytest.approx(expected, rel=0.1), name
