"""How to run an entry on modded-nanogpt's optimization track, as a text to be typed."""

from __future__ import annotations

from .entries import Entry
from .frozen import Frozen
from .rules import Rules
from .track import DECAY, RATE

_RECIPE = """\
# {name} ({about}) on modded-nanogpt's optimization track, on GPUs; get the data with
#   git clone https://github.com/KellerJordan/modded-nanogpt
#   cd modded-nanogpt && python data/cached_fineweb10B.py 40
# The baseline's Muon has lr {muon:.4g} in our scale. {rate}
torchrun --standalone --nproc_per_node=8 -m deva_lab.race.track --data data/fineweb10B \\
    --optimizer {optimizer} --lr {lr:.4g} --weight-decay {decay:.4g} --steps {steps}
"""


def recipe(entry: Entry, frozen: Frozen | None, rules: Rules, *, steps: int = 3250) -> str:
    """The command of an entry; its rate is the baseline Muon's, times theirs in our race."""
    ratio, why = 1.0, "Tune it."
    if frozen is not None and entry.name in frozen.entries and frozen.muon in frozen.entries:
        ratio = frozen.check(entry, rules).lr / frozen.entries[frozen.muon].lr
        why = f"This is {ratio:.3g} times it, as in our race; tune it."
    return _RECIPE.format(
        name=entry.name,
        about=entry.about,
        muon=RATE,
        rate=why,
        optimizer=entry.optimizer,
        lr=ratio * RATE,
        decay=DECAY / ratio,
        steps=round(entry.length * steps),
    )
