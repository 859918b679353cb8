"""The GPT: its size, its causality, its start, and what the optimizers make of it."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from deva_lab.models.gpt import GPT, LOGIT_CAP, SIZES, GPTSize, Rotary
from deva_optim import param_groups


def test_paper_size_has_the_paper_s_parameters():
    with torch.device("meta"):
        model = GPT(SIZES["paper"], vocabulary=50_257)
    count = sum(p.numel() for p in model.parameters())
    # Five tables of 50,257 × 768, twelve blocks of 12 · 768² of which one lacks attention, and the
    # scalars: a pair a block, a pair a value embedding, a skip for each layer of the second half.
    scalars = 12 * 2 + 3 * 2 + 6
    assert count == 5 * 50_257 * 768 + (12 * 12 - 4) * 768**2 + scalars
    assert 274e6 < count < 276e6


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_starts_at_the_uniform_distribution(size):
    model = GPT(SIZES[size], vocabulary=300)
    tokens = torch.randint(300, (2, 33))
    logits = model(tokens[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loss, torch.tensor(300.0).log())


def woken(size: GPTSize) -> GPT:
    """A GPT whose layers that start at zero do something."""
    model = GPT(size, vocabulary=50)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model


def test_no_token_sees_the_future():
    model = woken(SIZES["tiny"]).double()
    tokens = torch.randint(50, (1, 20))
    changed = tokens.clone()
    changed[0, 12] = (tokens[0, 12] + 1) % 50
    before, after = model(tokens), model(changed)
    # A token's own logits do not change; products over all tokens may be blocked otherwise, and a
    # thousand additions of float64 round numbers below 30, to which they are capped.
    torch.testing.assert_close(before[:, :12], after[:, :12], rtol=0, atol=1000 * 30 * 2**-53)
    assert (before[:, 12:] - after[:, 12:]).abs().amax(-1).min() > 1e-6  # all later ones do


def test_logits_are_capped():
    model = woken(SIZES["tiny"])
    with torch.no_grad():
        model.head.weight.mul_(1e4)
    logits = model(torch.randint(50, (2, 9)))
    assert logits.min() >= 0
    assert logits.max() <= LOGIT_CAP


def test_rotary_depends_on_distance_alone():
    rotary = Rotary(head=16, context=32).double()
    q, k = torch.randn(2, 16, dtype=torch.double)
    scores = rotary(q.expand(1, 1, 32, 16)) @ rotary(k.expand(1, 1, 32, 16)).mT
    for distance in (-5, 0, 7):
        diagonal = scores[0, 0].diagonal(distance)
        # The angles are float32 in the buffers: up to 31 radians, of which two are rounded by 2⁻²⁰
        # each. A score is a sum of 16 products of numbers below 4.
        atol = 2 * 2**-20 * 16 * 4
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=atol)


def test_a_layer_without_attention_and_an_odd_number_of_layers():
    size = GPTSize(3, 32, 16, 16, value_embeddings=2, without_attention=(1,))
    model = woken(size)
    model(torch.randint(50, (2, 16))).square().mean().backward()
    assert model.blocks[1].attention is None
    used = {name for name, p in model.named_parameters() if p.grad is not None}
    # The second value embedding belongs to the layer that has no attention.
    assert {name for name, _ in model.named_parameters()} - used == {"values.1.weight"}


def test_matrices_go_to_the_matrix_method_and_the_rest_does_not():
    roles = {
        name: group["role"]
        for group in param_groups(GPT(SIZES["tiny"], vocabulary=300))
        for name, _ in group["params"]
    }
    matrices = {name for name, role in roles.items() if role == "matrix"}
    layers = ("attention.qkv", "attention.out.weight", "mlp.up.weight", "mlp.down.weight")
    assert matrices == {f"blocks.{i}.{layer}" for i in (0, 1) for layer in layers}
