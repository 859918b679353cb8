"""The documents keep to what is there: files, functions, links, and the code of the README."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers import ROOT
from imports import PACKAGE

README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Those that say where in the code of the library something is.
ABOUT_CODE = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / "docs" / f"{name}.md" for name in ("architecture", "distributed", "integrations")),
    ROOT / "docs" / "maths.md",
]


def named(files: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", files, ids=lambda file: file.name)


def test_the_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 100] == []


class Block(nn.Module):
    """A model whose output is a loss, with what the README sets apart."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.adapter, self.table = nn.Linear(4, 12), nn.Linear(12, 4), MyTable(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.adapter(self.qkv(x)) + self.table(torch.tensor([0]))
        return found.square().mean()


class MyTable(nn.Embedding):
    """A class of module that the user has written."""


def test_the_code_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    model = Block()
    before = [p.detach().clone() for p in model.parameters()]
    names = {"model": model, "batches": [torch.randn(2, 4)] * 3, "MyTable": MyTable}
    for block in blocks:
        exec(block, names)
    assert not any(map(torch.equal, before, model.parameters()))
    assert re.search(r"qkv.weight +\(12, 4\) +as 3 × \(4, 4\)", capsys.readouterr().out)


@named(DOCUMENTS)
def test_links_lead_somewhere(file: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", file.read_text("utf-8"))
    for link in links:
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        page = (file.parent / target) if target else file
        assert page.exists(), link
        if anchor:
            assert anchor in anchors(page), link


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@named(ABOUT_CODE)
def test_the_files_that_a_document_names_are_there(file: Path) -> None:
    folders = [ROOT, ROOT / "src", PACKAGE, *(x for x in PACKAGE.iterdir() if x.is_dir())]
    paths = re.findall(r"[\w./]+\.(?:py|svg|yml)\b", file.read_text("utf-8"))
    folders.append(file.parent)
    assert [x for x in paths if not any((folder / x).exists() for folder in folders)] == []


@named([ROOT / "docs" / "architecture.md", ROOT / "docs" / "maths.md"])
def test_the_functions_that_a_document_names_are_there(file: Path) -> None:
    defined = names_by_module()
    found = re.findall(r"`([a-z]+)\.([A-Za-z_]+)`", file.read_text("utf-8"))
    found = [(module, name) for module, name in found if name != "py" and module != "optimizer"]
    wrong = [f"{m}.{name}" for m, name in found if name not in defined.get(m, {"py"})]
    assert wrong == []


def names_by_module() -> dict[str, set[str]]:
    """What the modules of the library define, attributes included, by the stems of their files."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        found[file.stem] |= set(_names(ast.parse(file.read_text("utf-8"))))
    return found


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
