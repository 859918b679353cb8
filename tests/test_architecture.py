"""The borders of the library: which part imports which, and how far a gradient walks in a step."""

import re
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import deva_optim
from helpers import OPTIMIZERS, ROOT
from import_figure import FIGURE, figure
from imports import PACKAGE, Import, graph, graph_of_parts, imports, part_of

LIBRARY = Path(deva_optim.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")

# What each part imports, the upper ones first: an import goes to a part further down.
PARTS: dict[str, set[str]] = {
    "deva_optim": {"clipping", "core", "optimizers", "routing", "schedules"},
    "integrations": {"clipping", "optimizer", "optimizers", "routing", "telemetry"},
    "clipping": {"local", "optimizer"},
    "schedules": set(),
    "optimizers": {"core", "optimizer", "options"},
    "optimizer": {"core", "distributed", "local", "options", "routing", "telemetry"},
    "telemetry": {"core"},
    "routing": {"core", "options"},
    "distributed": {"core", "local", "options"},
    "local": {"core", "options"},
    "options": {"core"},
    "core": set(),
}
# Importing DTensor takes a while, and most optimizers never have one.
LAZY = Import("deva_optim.optimizer", "deva_optim.distributed.step", lazy=True)
# The frameworks that a module of `integrations` may import; all else needs torch alone.
FRAMEWORKS = {
    "deva_optim.integrations.lightning": {"lightning"},
    "deva_optim.integrations.timm": {"timm"},
    "deva_optim.integrations.torchtitan": {"torchtitan"},
    "deva_optim.integrations.transformers": {"transformers"},
}


# Imports -----------------------------------------------------------------------------------------


def test_every_part_imports_what_the_table_says() -> None:
    assert graph_of_parts(graph(PACKAGE)) == PARTS


def test_imports_go_downwards() -> None:
    order = list(PARTS)
    upwards = [
        (importer, imported)
        for importer, of in graph(PACKAGE).items()
        for imported in of
        if order.index(part_of(importer)) > order.index(part_of(imported))
    ]
    assert not upwards


def test_no_module_imports_itself_through_others_not_even_for_types() -> None:
    assert cycle(graph(PACKAGE)) == []


def test_no_file_of_the_tests_is_longer_than_a_reader_can_hold() -> None:
    files = (ROOT / "tests").rglob("*.py")
    assert [path.name for path in files if len(path.read_text("utf-8").splitlines()) > 500] == []


def test_routing_knows_of_the_step_only_what_a_matrix_is() -> None:
    found = {x.imported for x in imports(PACKAGE) if part_of(x.importer) == "routing"}
    allowed = {"deva_optim.core.matrices", "deva_optim.core.notices"}  # and how users are warned
    assert {x for x in found if x.startswith("deva_optim.core")} == allowed


def test_the_code_for_ranks_alone_is_imported_when_it_is_first_used() -> None:
    found = imports(PACKAGE)
    assert [x for x in found if x.lazy] == [LAZY]
    into = {x for x in found if x.imported.startswith("deva_optim.distributed")}
    assert {x for x in into if part_of(x.importer) != "distributed"} == {LAZY}


def test_the_library_imports_torch_and_the_standard_library_alone() -> None:
    others: dict[str, set[str]] = {}
    for importer, imported, _ in imports(PACKAGE):
        package = imported.split(".")[0]
        assert package != "importlib"  # an import by name would be seen by none of these tests
        if package not in {"deva_optim", "torch", *sys.stdlib_module_names}:
            others.setdefault(importer, set()).add(package)
    assert others == FRAMEWORKS


def test_nothing_imports_the_integrations() -> None:
    into = [x for x in imports(PACKAGE) if x.imported.startswith("deva_optim.integrations")]
    assert {part_of(x.importer) for x in into} == {"integrations"}


def cycle(modules: dict[str, set[str]]) -> list[str]:
    """The modules of a cycle, if there is one."""
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


SOURCES = {
    "__init__.py": "from .a import x",
    "a.py": "import json\nimport pack.b.c as c\nfrom typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from .d import D",
    "b/__init__.py": "from .. import a",
    "b/c.py": "from ..d import x\nfrom . import e, f\nfrom torch import nn",
    "b/e.py": "def late():\n    from .f import x\n    from pack import b",
    "b/f.py": "",
    "d.py": "class K:\n    def f(self):\n        import pack.a",
}


def test_imports_of_every_form_are_found(tmp_path: Path) -> None:
    for name, source in SOURCES.items():
        (tmp_path / "pack" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pack" / name).write_text(source, "utf-8")
    assert imports(tmp_path / "pack") == {
        Import("pack", "pack.a"),
        Import("pack.a", "json"),
        Import("pack.a", "typing"),
        Import("pack.a", "pack.b.c"),
        Import("pack.a", "pack.d"),
        Import("pack.b", "pack.a"),
        Import("pack.b.c", "pack.d"),
        Import("pack.b.c", "pack.b.e"),
        Import("pack.b.c", "pack.b.f"),
        Import("pack.b.c", "torch"),
        Import("pack.b.e", "pack.b.f", lazy=True),
        Import("pack.b.e", "pack.b", lazy=True),
        Import("pack.d", "pack.a", lazy=True),
    }
    assert cycle(graph(tmp_path / "pack"))  # a → d → a, and a → b.c → b.e → b → a
    parts = {"pack": {"a"}, "a": {"b", "d"}, "b": {"a", "d"}, "d": {"a"}}
    assert graph_of_parts(graph(tmp_path / "pack")) == parts


# The way of a gradient ---------------------------------------------------------------------------


class Call(NamedTuple):
    """A Python function of the library, by its file and its name."""

    file: str
    function: str


def calls_of_a_step(cls: Any, steps: int, **options: Any) -> list[Call]:
    """The Python calls within the library in the last of some steps on one 8×12 matrix."""
    weight = torch.nn.Parameter(torch.randn(8, 12))
    optimizer = cls([{"params": [weight], "role": "matrix"}], lr=1e-3, **options)
    for _ in range(steps - 1):
        weight.grad = torch.randn(8, 12)
        optimizer.step()
    weight.grad = torch.randn(8, 12)
    found: list[Call] = []

    def note(frame: Any, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and LIBRARY in file.parents:
            found.append(Call(file.relative_to(LIBRARY).as_posix(), frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        optimizer.step()
    finally:
        sys.setprofile(before)
    return found


# The 13th step renews no basis and is not recorded by telemetry. When this was written, DeVA made
# 70 calls and 33 changes of file, Muon 47 and 18; from Python 3.12 on, where a list comprehension
# is no call, up to three calls fewer.
@pytest.mark.parametrize(
    ("cls", "options", "calls", "changes", "files"),
    [
        (deva_optim.DeVA, {"refresh_every": 100}, 90, 35, 8),
        (deva_optim.Muon, {}, 50, 20, 7),
    ],
)
def test_a_step_can_be_followed(
    cls: Any, options: dict[str, Any], calls: int, changes: int, files: int
) -> None:
    found = calls_of_a_step(cls, 13, **options)
    way = [call.file for call in found]
    assert found[0] == Call("optimizer.py", "step")
    assert Call("core/step.py", "write_") in found
    assert len(found) <= calls, found
    assert sum(a != b for a, b in pairwise(way)) <= changes, way
    assert len(set(way)) <= files, set(way)


# docs/architecture.md ----------------------------------------------------------------------------


def section(title: str) -> str:
    """The text of the page below a heading, up to the next one."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_the_figure_is_drawn_from_the_imports_of_today() -> None:
    assert FIGURE.read_text("utf-8") == figure(PACKAGE), (
        "draw it anew: python tests/import_figure.py"
    )
    assert f"]({FIGURE.name})" in PAGE
    assert "python tests/import_figure.py" in PAGE


def test_the_page_names_every_file_once() -> None:
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", section("The files"), re.MULTILINE)
    files = {file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py")}
    assert sorted(listed) == sorted(x for x in files if not x.endswith("/__init__.py"))


def test_the_page_follows_a_step_as_it_goes() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \|", section("One step"), re.MULTILINE)
    told = [Call(file, function.split(".")[-1]) for function, file in rows]
    assert len(told) > 20
    way = iter(calls_of_a_step(deva_optim.DeVASinf, 20))  # a step that renews the bases
    missing = [call for call in told if call not in way]  # `in` goes on where it stopped
    assert not missing


def test_the_page_names_all_that_is_kept() -> None:
    kept = set()
    for build, state_dtype in product(OPTIMIZERS.values(), (None, "int8")):
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((4, 6), (5,), (2, 3, 4))]
        params.append(torch.nn.Parameter(torch.randn(5).bfloat16()))
        group = {"params": params, "role": "auto", "state_dtype": state_dtype}
        optimizer = build([group], lr=1e-3)
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
        kept |= {key for values in optimizer.state.values() for key in values}
    listed = re.findall(r"^\| (`[\w`, ]+) \|", section("What is kept"), re.MULTILINE)
    assert {name for cell in listed for name in re.findall(r"\w+", cell)} == kept
