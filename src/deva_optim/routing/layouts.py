"""How a weight is cut into matrices: convolutions, stacks of experts and fused layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn

from ..core.matrices import Split
from .modules import ModelParameter, class_names, is_conv, is_transposed_linear

# Attention of transformers whose rows go head by head: head_dim rows of q, of k and of v, and so
# on, or in blocks of a few heads. A third of the rows would be a mixture; head_dim rows never are.
PER_HEAD = {
    "BloomAttention.query_key_value",
    "CodeGenAttention.qkv_proj",
    "DisentangledSelfAttention.in_proj",
    "FalconAttention.query_key_value",
    "GPTBigCodeAttention.c_attn",
    "GPTNeoXAttention.query_key_value",
    "GPTNeoXJapaneseAttention.query_key_value",
    "MiniMaxLightningAttention.qkv_proj",
    "PersimmonAttention.query_key_value",
}
# Attention with all rows of q first, then those of k and of v, which may have fewer heads.
GROUPED_QUERY = {"DbrxAttention.Wqkv", "Phi3Attention.qkv_proj", "Phi4MultimodalAttention.qkv_proj"}
# Layers whose outputs are q, k and v in equal thirds if there are three to an input: in GPT-2,
# nanoGPT, timm, MPT, ModernBERT and the vision models of transformers.
THIRDS = {"c_attn", "qkv", "Wqkv", "to_qkv"}
# Other layers whose outputs are cut into equal chunks.
CHUNKS = {
    "FalconMambaMixer.in_proj": 2,
    "JambaMambaMixer.in_proj": 2,
    "Lfm2MoeShortConv.in_proj": 3,
    "Lfm2ShortConv.in_proj": 3,
    "MambaMixer.in_proj": 2,
    "ModernBertMLP.Wi": 2,
}
# Recurrent layers of torch, and how many gates they have.
GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}
# Attention whose weights are (width, heads, head_dim): of each, all heads are one matrix.
HEADS_APART = {"FunnelRelMultiheadAttention", "XLNetRelativeAttention"}

# Layers that compute queries, keys or values, and where an attention says how large its heads are.
QKV = re.compile(r"^(?:w|c_|to_)?([qkv])(?:uery|ey|alue)?(?:_proj|_lin|_b_proj|_proj_weight)?$")
HEAD_SIZES = ("qk_head_dim", "head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


def layout_options(
    p: ModelParameter, split: Split = None, *, per_head: bool = False
) -> tuple[dict[str, Any], str]:
    """The group options that cut a weight into matrices, and the reason for them.

    The split is that of the user or, if this is None, of the first layout that fits the weight.
    """
    reason = "split by the user"
    if split is None:
        layouts = [(head_split(p), "heads")] if per_head else []
        split, reason = next(x for x in chain(layouts, _layouts(p)) if _fits(p, x[0]))
    flat = is_conv_weight(p) or _has_heads_apart(p)
    options: dict[str, Any] = {"layout": "conv" if flat else "stack"}
    if split != 1:
        options["split"] = split
        if output_dim(p) == -1:
            options["split_dim"] = -1
    return options, reason


def is_conv_weight(p: ModelParameter) -> bool:
    """Whether the weight is (out, in, *kernel), or (in, out, *kernel) if it is transposed."""
    if p.tensor.ndim != 3:
        return p.tensor.ndim > 3
    if p.module is not None:
        return is_conv(p.module) and p.own_name.startswith("weight")
    # Only shapes are left: a kernel is odd and small, and a layer much wider than its kernel.
    _, width, kernel = p.shape
    looks_like_kernel = kernel in (1, 3, 5, 7) and width >= 8 * kernel
    return "conv" in p.layer_name.lower() or (looks_like_kernel and not p.is_low_rank_factor)


def conv_groups(p: ModelParameter) -> int:
    """The number of groups of a convolution; 1 if this is none or its module is not known."""
    return int(getattr(p.module, "groups", 1)) if is_conv_weight(p) else 1


def output_dim(p: ModelParameter) -> int:
    """The dimension of the outputs of a weight: -1 if it is stored as (in, out), otherwise -2."""
    if p.module is None:  # the fused layer of GPT-2 is the only one known by its shape
        fused = p.layer_name == "c_attn" and p.tensor.ndim == 2
        transposed = fused and p.shape[1] == 3 * p.shape[0]
    elif p.tensor.ndim == 3 and not is_conv(p.module):
        transposed = getattr(p.module, "is_transposed", _has_transposed_experts(p.module))
    else:
        transposed = is_transposed_linear(p.module)
    return -1 if transposed else -2


def head_split(p: ModelParameter) -> Split:
    """Into how many heads the queries, keys or values of a weight are cut; None if it has none.

    The size of a head is an attribute of the attention, under one of the names that transformers,
    timm and torch have for it. Keys and values may have fewer heads than queries, or other sizes.
    """
    attention = p.module if isinstance(p.module, nn.MultiheadAttention) else p.parent
    own = p.own_name if attention is p.module else p.layer_name
    letter, fused = QKV.search(own), own in THIRDS or own == "in_proj_weight"
    grouped = _layer_names(attention, own) & GROUPED_QUERY
    if attention is None or not (letter or fused or grouped):
        return None
    rows = p.shape[output_dim(p)]
    names = ("v_head_dim", *HEAD_SIZES) if letter and letter[1] == "v" else HEAD_SIZES
    size = _first_number(attention, names)
    if not size:
        size = rows // (_first_number(attention, HEADS) * (3 if fused else 1) or rows)
    return rows // size if 1 < size < rows and rows % size == 0 else None


def _first_number(module: nn.Module | None, names: tuple[str, ...]) -> int:
    """The first of these attributes that the module has as a whole number, or 0."""
    values = (getattr(module, name, None) for name in names)
    return next((x for x in values if isinstance(x, int)), 0)


def _has_transposed_experts(module: nn.Module) -> bool:
    """Whether there is a gate_up_proj of (E, d, 2·ff) beside a down_proj of (E, ff, d)."""
    up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(up, Tensor) or not isinstance(down, Tensor) or up.ndim != 3:
        return False
    return up.shape[-1] == 2 * down.shape[-2]


def _has_heads_apart(p: ModelParameter) -> bool:
    return p.tensor.ndim == 3 and not HEADS_APART.isdisjoint(class_names(p.module))


def _fits(p: ModelParameter, split: Split) -> bool:
    if split is None or split == 1:
        return split == 1
    size = p.shape[0] if is_conv_weight(p) else p.shape[output_dim(p)]
    if isinstance(split, int):
        return size % split == 0
    return sum(split) == size and min(split) > 0


def _layouts(p: ModelParameter) -> Iterator[tuple[Split, str]]:
    """(split, reason) of each layout that the weight may have, the most specific one first."""
    if p.tensor.ndim < 2:
        yield 1, "not a matrix"
    if conv_groups(p) > 1:
        yield conv_groups(p), "groups of a convolution"
    if is_conv_weight(p):
        yield 1, "convolution"
    if _has_heads_apart(p):
        yield 1, "all heads"
    if re.match("weight_(ih|hh)", p.own_name):
        yield _entry(GATES, class_names(p.module)), "gates"
    yield from _attention_layouts(p)
    if _is_gate_up(p):
        yield 2, "gate and up"
    yield _entry(CHUNKS, _layer_names(p.parent, p.layer_name)), "fused projection"
    yield _experts_in_rows(p), "experts in rows"
    yield 1, "matrix" if p.tensor.ndim == 2 else "stack of matrices"


def _attention_layouts(p: ModelParameter) -> Iterator[tuple[Split, str]]:
    parent: Any = p.parent
    layers = _layer_names(parent, p.layer_name)
    if layers & PER_HEAD:
        size = _first_number(parent, HEAD_SIZES)
        yield p.shape[0] // size if size else None, "query, key, value of each head"
    if layers & GROUPED_QUERY:
        keys = parent.num_key_value_heads * parent.head_dim
        queries = p.shape[0] - 2 * keys
        split: Split = 3 if queries == keys else (queries, keys, keys)
        yield split, "query, key, value of grouped queries"
    if p.tensor.ndim == 2 and (p.layer_name in THIRDS or p.own_name == "in_proj_weight"):
        inputs, outputs = p.shape if output_dim(p) == -1 else p.shape[::-1]
        if outputs == 3 * inputs:
            yield 3, "query, key, value"
        if outputs == 2 * inputs and is_transposed_linear(p.module):  # GPT-2's cross-attention
            yield 2, "query, key, value"


def _experts_in_rows(p: ModelParameter) -> Split:
    """How many experts a weight of two dimensions has, one after the other; None if it has none.

    LoRA on a stack of experts, PEFT's `target_parameters`, has an A of (experts · rank, in). In the
    columns of its B, (out, rank · experts), the experts take turns, which no split can cut apart.
    """
    if "DbrxExpertGLU" in class_names(p.module) and p.own_name in ("w1", "v1", "w2"):
        return _first_number(p.module, ("moe_num_experts",)) or None
    wrappers = [module for module in p.modules if "ParamWrapper" in class_names(module)]
    if wrappers and ".lora_A." in p.names[0]:
        experts = _first_number(wrappers[-1], ("num_experts",))
        return experts if experts > 1 else None
    return None


def _layer_names(parent: nn.Module | None, name: str) -> set[str]:
    """What the tables above may call a layer that a module has under this name."""
    return {f"{cls}.{name}" for cls in class_names(parent)}


def _entry(table: dict[str, int], names: set[str]) -> Split:
    """What a table has under one of these names, if anything."""
    return next((table[name] for name in names & table.keys()), None)


def _is_gate_up(p: ModelParameter) -> bool:
    if p.layer_name == "gate_up_proj" and p.tensor.ndim == 2:
        return True
    if p.own_name != "gate_up_proj" or p.module is None:
        return False
    # Some experts that are stored as (in, out) interleave gate and up (gpt-oss).
    known = output_dim(p) == -2 or "Llama4TextExperts" in class_names(p.module)
    return bool(getattr(p.module, "is_concatenated", known))
