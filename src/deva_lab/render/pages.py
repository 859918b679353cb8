"""Pages of HTML from the templates beside it. What a template is given is escaped."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape


def part(name: str) -> Markup:
    """A style sheet or a script that pages have inside."""
    return Markup(files("deva_lab.render").joinpath("templates").joinpath(name).read_text("utf-8"))


def unbroken(text: str) -> Markup:
    """The text, escaped, in which no line ends within a number."""
    text = text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
    return escape(re.sub(r"(\de-)(?=\d)", "\\1\u2060", text))


def faint_spread(cell: str) -> Markup:
    """A cell of a table, with what stands behind ± less strong."""
    value, mark, spread = cell.partition(" ± ")
    return Markup('{} <span class="of">± {}</span>').format(value, spread) if mark else escape(cell)


def script_json(value: object) -> Markup:
    r"""JSON that ends no script element and starts no comment, whatever text is in it.

    >>> print(script_json("</script>"))
    "\u003c/script\u003e"
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def render(template: str, **values: Any) -> str:
    """The page that a template makes of these values."""
    return _ENVIRONMENT.get_template(template).render(values)


_ENVIRONMENT = Environment(
    loader=PackageLoader("deva_lab.render", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["part"] = part
_ENVIRONMENT.filters |= {
    "unbroken": unbroken,
    "faint_spread": faint_spread,
    "script_json": script_json,
}
