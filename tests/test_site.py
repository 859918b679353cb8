"""The documentation site: every public name and every page is in it. `make docs` builds it."""

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import deva_optim
from helpers import PROJECT, ROOT

DOCS = ROOT / "docs"
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
# Pages that are files at the root of the repository.
AT_ROOT = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
INDEX = (DOCS / "llms.txt").read_text("utf-8")


def pages_of(nav: Any) -> Iterator[str]:
    """The files of a navigation, however deep."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from pages_of(value)
    else:
        for value in nav:
            yield from pages_of(value)


PAGES = list(pages_of(SITE["nav"]))
API = {page: (DOCS / page).read_text("utf-8") for page in PAGES if page.startswith("api/")}


def test_every_page_is_in_the_navigation() -> None:
    there = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    left_out = {"race/first-notes.md"}  # a part of first.md
    assert "/race/first-notes.md" in SITE["exclude_docs"].split()
    notes, race = ((DOCS / "race" / f"first{end}.md").read_text("utf-8") for end in ("-notes", ""))
    assert notes.strip() in race
    assert sorted(PAGES) == sorted(there - left_out | AT_ROOT.keys())
    assert all((ROOT / file).exists() for file in AT_ROOT.values())


@pytest.mark.parametrize("name", deva_optim.__all__)
def test_every_public_name_has_an_entry(name: str) -> None:
    entries = [page for page, text in API.items() if f"::: deva_optim.{name}\n" in text]
    assert len(entries) == 1
    assert f"`{name}`" in API["api/index.md"]
    assert f"]({entries[0].removeprefix('api/')})" in API["api/index.md"]
    assert f"`{name}`" in INDEX


def test_every_entry_is_there_to_be_documented() -> None:
    for path in re.findall(r"^::: (\S+)$", "\n".join(API.values()), re.MULTILINE):
        module, _, name = path.rpartition(".")
        __import__(module)
        assert hasattr(sys.modules[module], name), path


def test_the_links_of_llms_txt_exist() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", INDEX)
    assert [link for link in links if not (DOCS / link).is_file()] == []
    linked = {(DOCS / link).resolve() for link in links}
    wanted = {(ROOT / AT_ROOT.get(page, f"docs/{page}")).resolve() for page in PAGES}
    assert wanted <= linked


def test_llms_txt_keeps_to_the_convention() -> None:
    """A title, a summary in a quotation, sections of lists of links with a word about each."""
    lines = INDEX.splitlines()
    assert lines[0] == f"# {PROJECT['name']}"
    assert lines[2].startswith("> ")
    sections = INDEX[INDEX.index("\n## ") :].strip().splitlines()
    entry = r"- \[[^\]]+\]\([^)\s]+\): \S.*|## .+|"
    assert [line for line in sections if not re.fullmatch(entry, line)] == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    files = [*SITE.get("extra_css", []), *SITE.get("extra_javascript", [])]
    assert all((DOCS / file).exists() for file in files)
    assert "http" not in "".join((DOCS / file).read_text("utf-8") for file in files)


def test_make_docs_and_the_workflow_build_it_strictly() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    commands = [step.get("run", "") for step in workflow["jobs"]["docs"]["steps"]]
    recipe = re.search(r"^docs:.*\n\t(.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe is not None
    command = recipe[1].removeprefix("$(BIN)/")
    assert command in commands
    assert "--strict" in command
    assert any('".[docs]"' in x for x in commands)
