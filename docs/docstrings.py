"""Docstrings as the classes have them at run time, written so that Markdown shows them well."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any, Final

import griffe

_ARGS: Final = re.compile(r"^Args:\n(?: {4}.*\n)+", re.MULTILINE)
_DOCTEST: Final = re.compile(r"(?:^( *)>>> .*\n(?:\1\S.*\n)*)+", re.MULTILINE)


class RuntimeDocstrings(griffe.Extension):
    """Completes the arguments of a class that is `documented`, and fences doctests."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is None:
            return
        text = inspect.cleandoc(obj.docstring.value) + "\n"
        if obj.is_class:
            found = getattr(importlib.import_module(obj.module.path), obj.name)
            if "arguments" in vars(found):
                entries = [f"    {name}: {text}\n" for name, text in found.arguments.items()]
                text, count = _ARGS.subn(lambda _: "Args:\n" + "".join(entries), text)
                if count != 1:
                    raise ValueError(f"{obj.path} must have one section `Args:`, got {count}")
        obj.docstring.value = _DOCTEST.sub(_fenced, text)


def _fenced(example: re.Match[str]) -> str:
    indent = example[1]
    return f"{indent}```pycon\n{example[0]}{indent}```\n"
