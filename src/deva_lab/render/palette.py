"""How an entrant is written and drawn: the same name, colour and dash in every chart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# How a method is written, and its colours: Okabe and Ito's, safe for the colour-blind, darkened for
# white paper and lightened for a dark page until a name written in it has a contrast of 4.5. DeVA
# has the only warm strong one.
_METHODS = {
    "deva": ("DeVA", "#c94408", "#ff8a4c"),
    "devasinf": ("DeVA-S∞", "#c94408", "#ff8a4c"),
    "devalinf": ("DeVA-ℓ∞", "#9c3d6b", "#e596bd"),
    "adamw": ("AdamW", "#4d4d4d", "#c4c4c4"),
    "muon": ("Muon", "#0868ac", "#5cb3ef"),
    "soap": ("SOAP", "#00805e", "#35c39b"),
    "adamuon": ("AdaMuon", "#6b55b5", "#b3a2f2"),
    "normuon": ("NorMuon", "#3f5fb8", "#93aef5"),
    "shampoo": ("Shampoo", "#b0468c", "#eb90c8"),
    "splus": ("SPlus", "#1d7a90", "#6fd3e6"),
    "lion": ("Lion", "#946d00", "#e0b83f"),
    "signum": ("Signum", "#7c5a3a", "#cfa67d"),
    "sgd": ("SGD", "#5d7a2c", "#a9c96f"),
}
NAMES = {key: name for key, (name, _, _) in _METHODS.items()}
COLOURS = {key: (light, dark) for key, (_, light, dark) in _METHODS.items()}
SPARE = [("#4f6d8f", "#9db9d8"), ("#8a6d00", "#d6bd55"), ("#97527a", "#dba0c3")]
DASHES: list[tuple[int, ...]] = [(), (6, 2), (2, 2), (8, 2, 2, 2), (10, 4)]


@dataclass(frozen=True)
class Style:
    """How one entrant is drawn."""

    name: str
    light: str  # colour on white
    dark: str  # colour on a dark page
    dash: tuple[int, ...]  # lengths of line and gap; empty for a solid line
    width: float


def method(label: str) -> str:
    """The name of the optimizer in a label: "muon" of "muon:nesterov=true"."""
    return "".join(c for c in label.split(":")[0].lower() if c.isalnum())


def name(label: str) -> str:
    """The label as it is written in a text.

    >>> name("muon:nesterov=true"), name("mine")
    ('Muon nesterov=true', 'mine')
    """
    head, _, options = label.partition(":")
    return f"{NAMES.get(method(label), head)} {options.replace(',', ' ')}".strip()


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Label → style: a method has its colour, its variants differ by the dash, plain ones solid."""
    seen: dict[tuple[str, str], int] = {}
    chosen: dict[str, Style] = {}
    spare: dict[str, tuple[str, str]] = {}
    for label in sorted(set(labels), key=lambda label: (label.count(","), len(label), label)):
        key = method(label)
        if key not in COLOURS:
            spare.setdefault(key, SPARE[len(spare) % len(SPARE)])
        colours = COLOURS.get(key) or spare[key]
        count = seen.get(colours, 0)
        seen[colours] = count + 1
        width = 2.4 if key.startswith("deva") else 1.7
        chosen[label] = Style(name(label), *colours, DASHES[count % len(DASHES)], width)
    return chosen
