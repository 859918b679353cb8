"""Which module of the library imports which.

All imports count: relative and absolute ones, those for types alone, and those inside functions.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "deva_optim"

Graph = dict[str, set[str]]  # for each node the nodes that it imports


class Import(NamedTuple):
    """One module imports another; `lazy` if it does so inside a function, when that is called."""

    importer: str
    imported: str
    lazy: bool = False


def module_files(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules, such as `deva_optim.core.step`."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(package: Path) -> set[Import]:
    """Everything that the modules of a package import, of the package itself and of others."""
    files = module_files(package)
    found = set()
    for module, file in files.items():
        folder = module if file.name == "__init__.py" else module.rpartition(".")[0]
        for node, lazy in _import_statements(ast.parse(file.read_text("utf-8")), lazy=False):
            for name in _imported(node, folder, files):
                found.add(Import(module, name, lazy))
    return found


def _import_statements(
    node: ast.AST, *, lazy: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, lazy
    lazy |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _import_statements(child, lazy=lazy)


def _imported(
    node: ast.Import | ast.ImportFrom, folder: str, modules: Mapping[str, Path]
) -> Iterator[str]:
    """The modules that a statement names; of `from a import b` it is a.b if that is a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    start = folder.split(".")[: len(folder.split(".")) - node.level + 1] if node.level else []
    module = ".".join([*start, *([node.module] if node.module else [])])
    for alias in node.names:
        yield name if (name := f"{module}.{alias.name}") in modules else module


def graph(package: Path) -> Graph:
    """The modules of a package that each of them imports."""
    found: Graph = {module: set() for module in module_files(package)}
    for importer, imported, _ in imports(package):
        if imported in found and imported != importer:
            found[importer].add(imported)
    return found


def part_of(module: str) -> str:
    """The file or the folder of the package that a module belongs to; the package for itself."""
    package, *rest = module.split(".")
    return rest[0] if rest else package


def graph_of_parts(modules: Graph) -> Graph:
    """The same graph between the files and folders of the package."""
    found: Graph = {part_of(module): set() for module in modules}
    for importer, imported in modules.items():
        found[part_of(importer)] |= {part_of(name) for name in imported} - {part_of(importer)}
    return found
