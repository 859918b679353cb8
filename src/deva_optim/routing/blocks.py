"""The repeated blocks of a model in their order, for learning rates that fall by layers."""

from __future__ import annotations

import re
from typing import Any

from .modules import ModelParameter

# Everything up to the number of a block, after the name of the list that holds it; in a network
# of stages blocks are numbered within them. If no list has such a name, any number is a block's.
_LISTS = r"stages\.\d+\.(?:blocks|layers)|layers\.\d+\.blocks|blocks?|layers?|layer\d+|h|resblocks"
_BLOCK = re.compile(rf"^(.*?(?:^|\.)(?:{_LISTS})\.\d+)\.")
_NUMBERED = re.compile(r"^(.*?(?:^|\.)\d+)\.")


def layer_scales(
    params: list[ModelParameter], decay: float
) -> dict[ModelParameter, dict[str, Any]]:
    """For each parameter below the last layer its `lr_scale`, as an option of its group."""
    if not 0 < decay <= 1:
        raise ValueError(f"layer_decay must be above 0 and at most 1, got {decay!r}")
    if not any(p.names[0] for p in params):
        raise ValueError("layer_decay needs the names of the parameters; pass the model itself")
    pattern = _BLOCK if any(_BLOCK.match(p.names[0]) for p in params) else _NUMBERED
    blocks: dict[str, int] = {}
    layers = {}
    for p in params:
        if block := pattern.match(p.names[0]):
            layers[p] = blocks.setdefault(block[1], len(blocks) + 1)
        else:
            layers[p] = 0 if not blocks else -1  # before the blocks, or after them
    if not blocks:
        raise ValueError("layer_decay found no repeated blocks in the names of the parameters")
    last = len(blocks) + 1
    found = {}
    for p, layer in layers.items():
        scale = 1.0 if layer < 0 else decay ** (last - layer)
        if scale < 1:
            found[p] = {"lr_scale": scale}
    return found
