"""Where each parameter is: its names, the modules around it, and whether it is embedding or head.

The rules of `roles.py` look at nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Trail = list[tuple[str, nn.Module]]

# A name makes a head only together with a place in the network: see _head_layers.
HEAD = re.compile(
    r"(?i)(^|_)(head|lm_heads|classifier|score|logits|unembed|qa_outputs|seq_relationship)\d*$"
)
FINAL = re.compile(r"^(fc\d*|linear|out|output)$")

# Modules that stand between a layer and its name (PEFT, DDP, torch.compile, checkpointing).
WRAPPERS = {"base_layer", "module", "_orig_mod", "_checkpoint_wrapped_module"}


@dataclass(frozen=True, eq=False)
class Site:
    """A parameter and where it is.

    Attributes:
        names: Every name it goes by, first the one of `named_parameters`; a tied one has several,
            one without a name has "".
        param: The parameter.
        leaf: Its own name, "weight" or "cls_token".
        layer: The name of the module that owns it, "c_attn".
        owner: That module, None if only names or shapes are known.
        parent: The module that the owner is a child of.
        modules: All modules that it is inside of, under any of its names.
        is_embedding: Whether it is a table that an embedding looks rows up in.
        is_head: Whether it belongs to an output layer.
    """

    names: tuple[str, ...]
    param: Tensor
    leaf: str = ""
    layer: str = ""
    owner: nn.Module | None = None
    parent: nn.Module | None = None
    modules: tuple[nn.Module, ...] = ()
    is_embedding: bool = False
    is_head: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's shape."""
        return tuple(self.param.shape)


def find_sites(model: nn.Module | Iterable[Any]) -> list[Site]:
    """Every parameter once, in order, with what can be known about it."""
    if isinstance(model, nn.Module):
        sites = _module_sites(model)
    elif isinstance(model, (Tensor, dict)):
        raise TypeError(
            "model must be a module, its named_parameters() or its parameters(), "
            f"got a {type(model).__name__}"
        )
    else:
        sites = _listed_sites(list(model))
    if not sites:
        raise ValueError("model must have at least one parameter, got none")
    return sites


# --- From a module -------------------------------------------------------------------------------


def _module_sites(model: nn.Module) -> list[Site]:
    names: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), []).append(name)
    tables = {id(table) for module in model.modules() for table in _tables(module)}
    heads = {id(layer) for layer in _head_layers(model)}
    return [_module_site(model, p, names[id(p)], tables, heads) for p in model.parameters()]


def _module_site(
    model: nn.Module, param: Tensor, names: list[str], tables: set[int], heads: set[int]
) -> Site:
    trails = [_trail(model, name) for name in names]
    leaf, trail = _own_name(names[0], trails[0])
    at = max((i for i, (name, _) in enumerate(trail) if name not in WRAPPERS), default=0)
    return Site(
        names=tuple(names),
        param=param,
        leaf=leaf,
        layer=trail[at][0],
        owner=trail[-1][1],
        parent=trail[at - 1][1] if at else None,
        modules=tuple(module for found in trails for _, module in found),
        is_embedding=id(param) in tables,
        is_head=any(id(module) in heads for found in trails for _, module in found),
    )


def _trail(model: nn.Module, name: str) -> Trail:
    """(name, module) from the model down to the owner of the parameter of that name."""
    trail = [("", model)]
    for part in name.split(".")[:-1]:
        trail.append((part, trail[-1][1].get_submodule(part)))
    return trail


def _own_name(name: str, trail: Trail) -> tuple[str, Trail]:
    """The parameter's own name, and the trail as far as the layer it serves.

    A parametrized weight (weight_norm) belongs to the layer, not to the parametrization, and an
    entry of a ParameterList or ParameterDict to the module that holds the list.
    """
    leaf = name.rpartition(".")[2]
    if len(trail) > 2 and trail[-2][0] == "parametrizations":
        return trail[-1][0], trail[:-2]
    if len(trail) > 1 and isinstance(trail[-1][1], (nn.ParameterList, nn.ParameterDict)):
        return f"{trail[-1][0]}.{leaf}", trail[:-1]
    return leaf, trail


# --- From a list ---------------------------------------------------------------------------------


def _listed_sites(items: list[Any]) -> list[Site]:
    """Sites of (name, parameter) pairs or of bare parameters."""
    pairs = [item if isinstance(item, tuple) else ("", item) for item in items]
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Tensor):
            raise TypeError(
                "model must yield parameters or (name, parameter) pairs, "
                f"got a {type(pair[-1]).__name__}"
            )
    if len({isinstance(item, tuple) for item in items}) > 1:
        raise TypeError("model must yield names for all of its parameters or for none, got both")
    names: dict[int, list[str]] = {}
    for name, param in pairs:
        names.setdefault(id(param), []).append(name)
    params = {id(param): param for _, param in pairs}
    return [_listed_site(tuple(names[key]), param) for key, param in params.items()]


def _listed_site(names: tuple[str, ...], param: Tensor) -> Site:
    *modules, leaf = names[0].split(".")
    layers = [name for name in modules if name not in WRAPPERS]
    return Site(names, param, leaf, layers[-1] if layers else "")


# --- Embeddings and heads ------------------------------------------------------------------------


def is_layer(module: nn.Module | None) -> bool:
    """Whether this is a linear layer or a convolution."""
    return isinstance(module, nn.Linear) or is_conv(module) or is_gpt2_linear(module)


def is_conv(module: nn.Module | None) -> bool:
    """Whether this is a convolution, of torch or of a class that looks like it."""
    return hasattr(module, "kernel_size") and hasattr(module, "groups")


def is_gpt2_linear(module: nn.Module | None) -> bool:
    """Whether this is transformers' Conv1D: a linear layer, its weight stored as (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _tables(module: nn.Module) -> list[Tensor]:
    """The table that a module looks rows up in, if it is an embedding or looks like one."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return []
    named = re.search("Embeddings?(Bag)?$", type(module).__name__)
    return [weight] if named or hasattr(module, "num_embeddings") else []


def _head_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that write the model's output; none is inside a repeated block.

    They are what `get_output_embeddings` returns, linear layers as wide as a vocabulary, the last
    layer of a module called head or classifier, and the model's last layer of all if it is called
    fc or the like, or is a linear one in an nn.Sequential.
    """
    sizes = _vocabularies(model)
    layers = [module for module in model.modules() if is_layer(module)]
    found = [layer for module in model.modules() for layer in _declared_head(module)]
    for name, module, container in _outside_blocks(model):
        chained = isinstance(module, nn.Linear) and isinstance(container, nn.Sequential)
        last = len(layers) > 1 and module is layers[-1] and (chained or FINAL.search(name))
        if last or (isinstance(module, nn.Linear) and module.out_features in sizes):
            found.append(module)
        elif HEAD.search(name):
            found += _last_layers(module)
    return found


def _vocabularies(model: nn.Module) -> set[int]:
    """How many rows the model's embeddings have, but for those of positions and of types."""
    return {
        table.shape[0]
        for name, module in model.named_modules()
        for table in _tables(module)
        if not re.search("wpe|pos|type", name.rpartition(".")[2])
    }


def _declared_head(module: nn.Module) -> list[nn.Module]:
    """The layers of `module.get_output_embeddings()`, if it has such a method and an answer."""
    try:
        head = getattr(module, "get_output_embeddings", lambda: None)()
    except (AttributeError, NotImplementedError):  # how transformers' models say they have none
        return []
    return _last_layers(head) if isinstance(head, nn.Module) else []


def _outside_blocks(
    module: nn.Module, name: str = "", container: nn.Module | None = None
) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """(name, module, its container) for a module and what it contains but for repeated blocks."""
    yield name, module, container
    for child_name, child in module.named_children():
        if not _is_block(child, module):
            yield from _outside_blocks(child, child_name, module)


def _is_block(child: nn.Module, container: nn.Module) -> bool:
    """Whether the child is one of a network's blocks. A layer by itself never is."""
    if is_layer(child):
        return False
    if isinstance(container, nn.Sequential):
        return sum(type(other) is type(child) for other in container.children()) > 1
    return isinstance(container, nn.ModuleList)


def _last_layers(head: nn.Module) -> list[nn.Module]:
    """The last layer of a head; of a ModuleList or ModuleDict of heads, the last of each."""
    if isinstance(head, (nn.ModuleList, nn.ModuleDict)):
        return [layer for module in head.children() for layer in _last_layers(module)]
    layer = _last_layer(head)
    if layer is None:  # a class of its own: it is the head, unless it is a container
        return [] if any(True for _ in head.children()) else [head]
    weight: Any = layer.weight
    # inside of a head, a layer that keeps the width (ModernBERT's) does not write the output
    keeps_width = layer is not head and weight.shape[0] == weight.shape[1]
    return [] if keeps_width else [layer]


def _last_layer(module: nn.Module) -> nn.Module | None:
    """The last layer inside a module and outside its blocks, if there is any."""
    if is_layer(module):
        return module
    for name, child in reversed(list(module.named_children())):
        if not _is_block(child, module) and not name.startswith("lora_"):
            layer = _last_layer(child)
            if layer is not None:
                return layer
    return None
