"""The pages for those who come from another optimizer: their code runs, their numbers hold."""

import inspect
import re
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deva_optim as do
from helpers import ROOT

NAMES = ("adamw", "muon", "soap")
PAGES = {name: (ROOT / f"docs/coming-from-{name}.md").read_text("utf-8") for name in NAMES}
needs_muon = pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="torch has a Muon from 2.9 on"
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.down(self.up(x).relu())
        return found


class Model(nn.Module):
    """A model whose output is a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.blocks(self.embed(ids))), ids)


def blocks(page: str) -> list[str]:
    found = re.findall(r"^( *)```python\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, code in found]


@pytest.mark.parametrize("name", ["adamw", pytest.param("muon", marks=needs_muon), "soap"])
def test_the_code_of_a_page_runs_in_its_order(name: str) -> None:
    """Every block that makes an optimizer moves all weights, in its own loop or in ours."""
    torch.manual_seed(0)
    model, batches = Model(), [torch.arange(11)] * 3
    names: dict[str, Any] = {"model": model, "batches": batches}
    found = blocks(PAGES[name])
    assert len(found) >= 3
    for code in found:
        before = [p.detach().clone() for p in model.parameters()]
        exec(code, names)
        if "optimizer =" not in code and "adamw =" not in code:
            continue
        if "for batch" not in code:
            for batch in batches[:2]:  # the first step of SOAP chooses bases and nothing else
                model(batch).backward()
                names["optimizer"].step()
                model.zero_grad()
        for old, new in zip(before, model.parameters(), strict=True):
            assert new.isfinite().all()
            assert not torch.equal(old, new)


@pytest.mark.parametrize("name", NAMES)
def test_the_options_of_a_page_are_there(name: str) -> None:
    """What the pages write as `option=value` is an argument of some optimizer, ours or theirs."""
    ours = [getattr(do, x) for x in do.__all__ if inspect.isclass(getattr(do, x))]
    known = {x for cls in ours for x in inspect.signature(cls).parameters}
    known |= {"overrides", "split"} | {"adjust_lr_fn", "ns_steps"}  # param_groups; torch's Muon
    text = re.sub(r"^ *```.*?^ *```", "", PAGES[name], flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text)
    assert {x for span in spans for x in re.findall(r"\b([a-z]\w+)=", span)} <= known


@needs_muon
@pytest.mark.parametrize("shape", [(8, 32), (32, 8), (16, 16)])
def test_a_rate_of_the_original_muon_is_converted(shape: tuple[int, int]) -> None:
    """Two steps with decay, torch's with the original scale and ours with `converted`.

    torch iterates in bfloat16, whose epsilon is 2⁻⁷; a wrong factor would be 2 or more.
    """
    (code,) = (x for x in blocks(PAGES["muon"]) if "def converted" in x)
    names: dict[str, Any] = {}
    exec(re.sub(r"^overrides =.*", "", code, flags=re.MULTILINE | re.DOTALL), names)
    torch.manual_seed(0)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    settings = names["converted"](0.02, 0.1, inputs=shape[1])
    mine = do.Muon([ours], **settings, nesterov=True)
    peer = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, nesterov=True)
    for _ in range(2):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        mine.step()
        peer.step()
    moved, wrong = (theirs - start).norm(), (ours - theirs).norm()
    assert wrong < 0.05 * moved


@pytest.mark.parametrize(
    ("cls", "numbers"), [(do.AdamW, 24), (do.Muon, 12), (do.SOAP, 108), (do.DeVA, 24)]
)
def test_the_memory_of_a_gpt_block(cls: Any, numbers: int) -> None:
    """The state of four d×d matrices and two of d×4d, in d² numbers; vectors are left out."""
    d = 8
    shapes = [(d, d)] * 4 + [(d, 4 * d), (4 * d, d)]
    weights = [(f"h.{i}.weight", nn.Parameter(torch.randn(x))) for i, x in enumerate(shapes)]
    for _, weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = cls(weights)
    optimizer.step()
    found = [x for state in optimizer.state.values() for x in state.values()]
    kept = [x.numel() for x in found if x.ndim > 1 and min(x.shape) > 1]
    assert sum(kept) == numbers * d * d
    assert any(re.search(rf"\b{numbers}d²", page) for page in PAGES.values())
