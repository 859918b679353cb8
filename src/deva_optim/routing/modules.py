"""The parameters of a model: their names, the modules around them, which are embeddings or heads.

Rules, layouts and overrides decide by what is collected here and by nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

# Names of output layers. A name alone does not make a layer one: see `_head_layers`.
HEAD_NAME = re.compile(
    r"(?i)(^|_)(head|head_dist|lm_heads|classifier|score|logits|unembed|qa_outputs"
    r"|seq_relationship)\d*$"
)
LAST_LAYER_NAME = re.compile(r"^(fc\d*|linear|out|output)$")

# Names under which PEFT, DDP, torch.compile and checkpointing keep the module that they wrap.
WRAPPERS = {"base_layer", "module", "_orig_mod", "_checkpoint_wrapped_module"}


@dataclass(frozen=True, eq=False)
class ModelParameter:
    """A parameter, its names and the modules around it."""

    tensor: Tensor
    shape: tuple[int, ...]
    names: tuple[str, ...]  # full names, several if it is tied; "" if it was given without a name
    own_name: str  # its name in its module, such as "weight" or "cls_token"
    layer_name: str  # the name of that module in its parent, such as "c_attn"
    module: nn.Module | None  # that module; None if the model was given as a list
    parent: nn.Module | None
    modules: tuple[nn.Module, ...]  # all that contain it, at any depth, under any of its names
    is_embedding: bool  # whether an embedding looks up its rows
    is_head: bool  # whether it is inside a layer that computes the output of the model
    is_low_rank_factor: bool  # whether it belongs to LoRA
    is_table: bool  # whether, of a list without names, its shape is that of a table or a head


def model_parameters(model: nn.Module | Iterable[Any]) -> list[ModelParameter]:
    """Every parameter of a model once, in the order of the model."""
    names_of: dict[Tensor, list[str]] = {}
    for name, tensor in _named_tensors(model):
        names_of.setdefault(tensor, []).append(name)
    if not names_of:
        raise ValueError("model must have at least one parameter, got none")
    root = model if isinstance(model, nn.Module) else None
    tables = _embedding_tables(root) if root is not None else {}
    heads = _head_layers(root, tables) if root is not None else set()
    embeddings = set(tables.values())
    by_shape = set() if any(map(any, names_of.values())) else _tables_by_shape(list(names_of))
    found = []
    for tensor, names in names_of.items():
        paths = [_path(root, name) for name in names]
        modules = tuple(module for path in paths for _, module in path if module is not None)
        path, own_name = paths[0], names[0].rpartition(".")[2]
        # A parametrized weight, as of weight_norm, belongs to the layer that is parametrized, and
        # an entry of a ParameterList or ParameterDict to the module that holds the list.
        if len(path) > 2 and isinstance(path[-1][1], ParametrizationList):
            path, own_name = path[:-2], path[-1][0]
        elif len(path) > 1 and isinstance(path[-1][1], (nn.ParameterList, nn.ParameterDict)):
            path, own_name = path[:-1], f"{path[-1][0]}.{own_name}"
        layer = max(i for i, (name, _) in enumerate(path) if name not in WRAPPERS)
        found.append(
            ModelParameter(
                tensor=tensor,
                shape=tuple(tensor.shape),
                names=tuple(names),
                own_name=own_name,
                layer_name=path[layer][0],
                module=path[-1][1],
                parent=path[layer - 1][1] if layer else None,
                modules=modules,
                is_embedding=tensor in embeddings,
                is_head=not heads.isdisjoint(modules),
                is_low_rank_factor=re.search(r"(^|[._])lora_", names[0]) is not None,
                is_table=tensor in by_shape,
            )
        )
        _check_flattened(found[-1])
    return found


def _named_tensors(model: Any) -> list[tuple[str, Tensor]]:
    """(name, parameter) for every name of a parameter; the name is "" if there are no names."""
    if isinstance(model, nn.Module):
        return list(model.named_parameters(remove_duplicate=False))
    if isinstance(model, (Tensor, dict)):
        raise TypeError(
            "model must be a module, its named_parameters() or its parameters(), "
            f"got a {type(model).__name__}"
        )
    items = list(model)
    pairs = [item if isinstance(item, tuple) else ("", item) for item in items]
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Tensor):
            raise TypeError(
                "model must yield parameters or (name, parameter) pairs, "
                f"got a {type(pair[-1]).__name__}"
            )
    if len({isinstance(item, tuple) for item in items}) > 1:
        raise TypeError("model must yield names for all of its parameters or for none, got both")
    return pairs


def _path(root: nn.Module | None, name: str) -> list[tuple[str, nn.Module | None]]:
    """(name, module) from the root, called "", to the module that holds the named parameter."""
    path = [("", root)]
    for part in name.split(".")[:-1]:
        module = path[-1][1]
        path.append((part, module.get_submodule(part) if module is not None else None))
    return path


def _tables_by_shape(tensors: list[Tensor]) -> set[Tensor]:
    """The matrices of a list that are likely to be embeddings, position tables or output heads.

    The sizes of hidden layers come back: as columns of the next layer, in every block, or as a
    multiple of the width. The rows of a table are its own, or those of an embedding and its head.
    """
    matrices = [X for X in tensors if X.ndim == 2]
    rows, columns = (Counter(X.shape[dim] for X in matrices) for dim in (0, 1))
    shapes = Counter(X.shape for X in matrices)
    found = set()
    for X in matrices:
        size, width = X.shape
        alike = shapes[X.shape]
        own = rows[size] == 1 or (rows[size] == alike == 2 and size > width)
        fused = size % width == 0 and size <= 8 * width
        if own and not fused and not columns[size] and columns[width] - alike >= 4 and width >= 64:
            found.add(X)
    return found


FLATTENED = re.compile(r"(_proj|^fc\d*|^linear\d*|dense|lm_head|wte|wpe|embed_tokens|c_attn|qkv)$")


def _check_flattened(p: ModelParameter) -> None:
    """Raise an error for a weight of a layer that something has flattened to one dimension."""
    flat = type(p.tensor).__name__ == "FlatParameter" or p.own_name == "_flat_param"
    if p.own_name.endswith("weight") and p.tensor.ndim == 1:
        layers = (nn.Embedding, nn.MultiheadAttention)
        named = p.module is None and FLATTENED.search(p.layer_name) is not None
        flat |= is_layer(p.module) or isinstance(p.module, layers) or named
    if flat:
        raise ValueError(
            f"{p.names[0] or 'a parameter'} is flattened to shape {p.shape}, as FSDP1 and ZeRO do, "
            "and its matrices cannot be seen; shard the model with FSDP2 (torch.distributed.fsdp."
            "fully_shard), which keeps them, or make the optimizer from a model that is not wrapped"
        )


def tensor_of(member: Any) -> Any:
    """The parameter of a member of a group, which may be a pair of name and parameter."""
    return member[1] if isinstance(member, tuple) else member


def without_numbers(name: str) -> str:
    """A name with "#" in place of the numbers of layers, as in "h.#.attn.weight"."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "#", name)


def class_names(module: nn.Module | None) -> set[str]:
    """The names of its class and of all that this is derived from.

    `fully_shard` and `replicate` give a module a class of their own, such as FSDPConv1D, that is
    derived from the one it had.
    """
    return {cls.__name__ for cls in type(module).__mro__}


def is_layer(module: nn.Module | None) -> bool:
    """Whether this is a linear layer or a convolution."""
    return isinstance(module, nn.Linear) or is_conv(module) or is_transposed_linear(module)


def is_conv(module: nn.Module | None) -> bool:
    """Whether this is a convolution, of torch or of any class with the same attributes."""
    return hasattr(module, "kernel_size") and hasattr(module, "groups")


def is_transposed_linear(module: nn.Module | None) -> bool:
    """Whether this is transformers' Conv1D, a linear layer whose weight is stored as (in, out)."""
    return "Conv1D" in class_names(module) and hasattr(module, "nf")


def _weight(module: nn.Module) -> Any:
    """The weight of a module, or None; of a parametrized one the tensor that it is computed from.

    To ask for the weight itself would compute it, and change the vectors of a spectral norm.
    """
    computed = getattr(module, "parametrizations", {})
    if "weight" in computed:
        return max(computed["weight"].parameters(), key=Tensor.numel, default=None)
    # The former weight norm and spectral norm keep it under these names.
    kept = (getattr(module, name, None) for name in ("weight_orig", "weight_v", "weight"))
    return next((weight for weight in kept if weight is not None), None)


def _embedding_tables(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the modules that are embeddings or look like them, by the module's name."""
    tables = {}
    for name, module in model.named_modules():
        named = re.search("Embeddings?(Bag)?$", type(module).__name__)
        is_embedding = named or hasattr(module, "num_embeddings")
        weight = _weight(module) if is_embedding else None
        if is_embedding and isinstance(weight, Tensor) and weight.ndim == 2:
            tables[name] = weight
    return tables


def _head_layers(model: nn.Module, tables: dict[str, Tensor]) -> set[nn.Module]:
    """The layers that compute the output of a model.

    These are what `get_output_embeddings` returns and, outside repeated blocks, linear layers as
    wide as a vocabulary, the last layer of a module called head or the like, and the last layer of
    the model if it is called fc or the like, or if it is a linear layer of an nn.Sequential. If a
    linear layer reads as many numbers, a table of that size says nothing of a layer but the last:
    it may be one of categories beside hidden layers of the same width.
    """
    vocabularies = {  # sizes; an embedding of positions or of token types has none
        table.shape[0]
        for name, table in tables.items()
        if not re.search("wpe|pos|type", name.rpartition(".")[2])
    }
    layers = [module for module in model.modules() if is_layer(module)]
    read = {layer.in_features for layer in layers if isinstance(layer, nn.Linear)}
    last = layers[-1] if len(layers) > 1 else None
    heads = {layer for module in model.modules() for layer in _declared_heads(module)}
    for path, module, container in _outside_blocks(model):
        name = path.rpartition(".")[2]
        width = module.out_features if isinstance(module, nn.Linear) else None
        in_sequence = width is not None and isinstance(container, nn.Sequential)
        may_end = in_sequence or width in vocabularies or LAST_LAYER_NAME.search(name)
        if width in vocabularies - read or (module is last and may_end):
            heads.add(module)
        elif HEAD_NAME.search(name):
            heads.update(_last_layers(module))
    return heads


def _declared_heads(module: nn.Module) -> list[nn.Module]:
    """The layers of `module.get_output_embeddings()`, a method of transformers' models."""
    try:
        head = getattr(module, "get_output_embeddings", lambda: None)()
    except (AttributeError, NotImplementedError):  # raised by models without a head
        return []
    return _last_layers(head) if isinstance(head, nn.Module) else []


def _last_layers(head: nn.Module) -> list[nn.Module]:
    """The last layer of a head, or of each head in a ModuleList or ModuleDict."""
    if isinstance(head, (nn.ModuleList, nn.ModuleDict)):
        return [layer for module in head.children() for layer in _last_layers(module)]
    layers = [
        module
        for path, module, _ in _outside_blocks(head)
        if is_layer(module) and _weight(module) is not None and ".lora_" not in path
    ]
    if not layers:  # the head is a class of its own, unless it only contains other modules
        return [] if any(True for _ in head.children()) else [head]
    weight = _weight(layers[-1])
    # A layer inside a head that keeps the width, as in ModernBERT, does not compute the output.
    keeps_width = layers[-1] is not head and weight.shape[0] == weight.shape[1]
    return [] if keeps_width else layers[-1:]


def _outside_blocks(
    module: nn.Module, path: str = "", container: nn.Module | None = None
) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """(path, module, container) of a module and of all inside it but for repeated blocks.

    Those are in a ModuleList, or in a Sequential with others of their class. What is inside a layer
    is left out, too.
    """
    yield path, module, container
    if is_layer(module) and _weight(module) is not None:
        return
    children = {name: _unwrapped(child) for name, child in module.named_children()}
    classes = Counter(map(type, children.values()))
    for name, child in children.items():
        in_sequence = isinstance(module, nn.Sequential) and classes[type(child)] > 1
        repeated = not is_layer(child) and (in_sequence or isinstance(module, nn.ModuleList))
        if not repeated:
            yield from _outside_blocks(child, f"{path}.{name}", module)


def _unwrapped(module: nn.Module) -> nn.Module:
    """What is inside of wrappers that have nothing but the module that they wrap."""
    children = dict(module.named_children())
    while len(children) == 1 and not WRAPPERS.isdisjoint(children):
        (module,) = children.values()
        children = dict(module.named_children())
    return module
