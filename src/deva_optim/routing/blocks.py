"""The repeated blocks of a model in their order, for learning rates that fall by layers."""

from __future__ import annotations

import re
from typing import Any

from .modules import ModelParameter

# The number of a block after the name of the list that holds it. In a network of stages, blocks
# are numbered within them: `stages.1.blocks.3`.
_BLOCK = re.compile(r"^(.*?(?:^|\.)(?:blocks?|layers?|layer\d+|h|stages|resblocks|groups)\.\d+)\.")
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
        block = _block(p.names[0], pattern)
        if block:
            layers[p] = blocks.setdefault(block, len(blocks) + 1)
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


def _block(name: str, pattern: re.Pattern[str]) -> str:
    """The name of the block that a parameter is in, the innermost of nested ones; "" if none."""
    found = ""
    while match := pattern.match(name.removeprefix(found).lstrip(".")):
        inner = match[1]
        found = f"{found}.{inner}" if found else inner
        if pattern is _NUMBERED:
            break
    return found
