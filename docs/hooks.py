"""What `mkdocs build` does besides: README.md and other files of the repository become pages.

The pages in docs/ are written for GitHub. Their links to files outside docs/ lead to pages that are
made here, so that the site needs no address of the repository. Beside every page lies its text in
Markdown, which llms.txt links to.
"""

from __future__ import annotations

import importlib
import inspect
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
# Files at the root of the repository that are pages in the navigation.
AT_ROOT: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK: Final = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_ENTRY: Final = re.compile(r"^::: ([\w.]+)\n((?: {4}.*\n|\n(?= {4}))*)", re.MULTILINE)
_texts: dict[str, str] = {}  # page → its Markdown, links adapted


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that they have on GitHub."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = _anchor
    return config


def _anchor(heading: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    _texts.clear()
    for file, page in AT_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text("utf-8")))
    linked = {
        target
        for file in files.documentation_pages()
        for _, link, _ in _LINK.findall(file.content_string)
        if (target := _target(file.src_uri, link)) and _page_of(target).startswith("source/")
    }
    for path in sorted(linked):
        if not (ROOT / path).is_file():
            raise PluginError(f"a page links to {path}, which is no file of the repository")
        kept, shown = _page_of(path), _source(path)
        files.append(
            File.generated(config, kept, content=shown, inclusion=InclusionLevel.NOT_IN_NAV)
        )
    return files


def _source(path: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    return f"# {path}\n\n~~~~{Path(path).suffix[1:]}\n{text}~~~~\n"


def _target(page: str, link: str) -> str | None:
    """The file that a link of a page leads to, from the root of the repository."""
    if re.match(r"\w+:|/", link):
        return None
    home = {page: file for file, page in AT_ROOT.items()}.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(home), link))


def _page_of(target: str) -> str:
    """The page that shows a file, or the file in the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return AT_ROOT.get(target, f"source/{target}.md")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt the links, and what python-markdown reads otherwise than GitHub."""
    here = page.file.src_uri
    if here.startswith("source/"):
        _texts[here] = markdown
        return markdown
    _texts[here] = _relinked(markdown, here)
    return _indented(_texts[here])


def _relinked(markdown: str, here: str) -> str:
    def relinked(match: re.Match[str]) -> str:
        target = _target(here, match[2])
        if target is None:
            return match[0]
        link = posixpath.relpath(_page_of(target), posixpath.dirname(here) or ".")
        return f"{match[1]}{link}{match[3] or ''}"

    return _LINK.sub(relinked, markdown)


def _indented(markdown: str) -> str:
    """Blocks inside list items with the four spaces that python-markdown asks for."""
    lines, depth, fenced = [], 0, False
    for line in markdown.splitlines():
        inside = depth and (not line.strip() or line.startswith(" " * depth))
        if not inside and not fenced:
            item = re.match(r"(?:[-*]|\d+\.) +", line)
            depth = len(item[0]) if item else 0
        elif depth and line.strip():
            line = " " * 4 + line[depth:]
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        lines.append(line)
    return "\n".join(lines) + "\n"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let long settings in tables break after a comma; what is copied stays the same."""
    return re.sub(r"<td><code>[^<]*</code>", lambda cell: cell[0].replace(",", ",<wbr>"), html)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the pages as Markdown and llms.txt."""
    for here, text in _texts.items():
        file = Path(config.site_dir, here)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_ENTRY.sub(_plain, text), "utf-8")
    index = (ROOT / "docs" / "llms.txt").read_text("utf-8")
    Path(config.site_dir, "llms.txt").write_text(_relinked(index, "llms.txt"), "utf-8")


def _plain(entry: re.Match[str]) -> str:
    """What stands in the place of an entry of the API: signature and docstring as text."""
    path, options = entry[1], entry[2]
    found = _object(path)
    members = re.search(r"members: \[(.*)\]", options)
    names = members[1].split(", ") if members else []
    texts = [_section(path, found), *(_section(f"{path}.{x}", getattr(found, x)) for x in names)]
    return "\n".join(texts)


def _section(path: str, found: Any) -> str:
    signature = f"{path}{inspect.signature(found)}" if callable(found) else path
    doc = inspect.getdoc(found) if callable(found) or isinstance(found, property) else None
    return f"## {path}\n\n```text\n{signature}\n\n{doc or ''}\n```\n"


def _object(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
