"""Which matrices the weight of a parameter is made of.

`LAYOUTS` are read from the top, and the first match wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..core.matrices import Part
from ..core.matrices import parts as cut_apart
from .modules import ModelParameter, is_conv, is_transposed_linear

Options = dict[str, Any]
Split = int | tuple[int, ...]

# Attention whose fused projection goes head by head: head_dim rows of q, of k, of v, and again, or
# in blocks of a few heads. A third of its rows is a mixture; head_dim rows never are.
PER_HEAD = {
    "BloomAttention": "query_key_value",
    "CodeGenAttention": "qkv_proj",
    "DisentangledSelfAttention": "in_proj",
    "FalconAttention": "query_key_value",
    "GPTBigCodeAttention": "c_attn",
    "GPTNeoXAttention": "query_key_value",
    "GPTNeoXJapaneseAttention": "query_key_value",
    "MiniMaxLightningAttention": "qkv_proj",
    "PersimmonAttention": "query_key_value",
}
# Attention that puts all of q before all of k and v, which have fewer heads if queries are grouped.
GROUPED_QUERY = {
    "DbrxAttention": "Wqkv",
    "Phi3Attention": "qkv_proj",
    "Phi4MultimodalAttention": "qkv_proj",
}
# Layers whose output is q, k and v in equal thirds if it is three times as wide as the input: those
# of GPT-2, nanoGPT, timm, MPT, ModernBERT and the vision models of transformers.
THIRDS = {"c_attn", "qkv", "Wqkv", "to_qkv"}
# Other modules that chunk the output of one layer.
CHUNKED = {
    "FalconMambaMixer": ("in_proj", 2),
    "JambaMambaMixer": ("in_proj", 2),
    "Lfm2ShortConv": ("in_proj", 3),
    "MambaMixer": ("in_proj", 2),
    "ModernBertMLP": ("Wi", 2),
}


def is_conv_weight(p: ModelParameter) -> bool:
    """Whether the weight is (out, in, *kernel), or (in, out, *kernel) of a transposed one."""
    if p.tensor.ndim != 3:
        return p.tensor.ndim > 3
    if p.module is None:  # a kernel is odd and small, and much narrower than a layer is wide
        kernel, width = p.shape[-1], p.shape[-2]
        looks_like_kernel = (
            kernel in (1, 3, 5, 7) and width >= 8 * kernel and not p.is_low_rank_factor
        )
        return "conv" in p.layer_name.lower() or looks_like_kernel
    return is_conv(p.module) and p.own_name.startswith("weight")


def output_dim(p: ModelParameter) -> int:
    """−1 if the weight is stored as (in, out), so that its outputs are columns; else −2."""
    if p.module is None:  # of GPT-2's layers, only the fused one is known by its shape
        fused = p.layer_name == "c_attn" and p.tensor.ndim == 2
        transposed = fused and p.shape[1] == 3 * p.shape[0]
    elif p.tensor.ndim == 3 and not is_conv(p.module):
        # transformers' experts say it themselves; those that do not are known by their shapes
        transposed = getattr(p.module, "is_transposed", _is_transposed_gate_up(p.module))
    else:
        transposed = is_transposed_linear(p.module)
    return -1 if transposed else -2


def _is_transposed_gate_up(experts: nn.Module) -> bool:
    """Whether the experts' gate_up_proj is (E, d, 2·ff) beside a down_proj of (E, ff, d)."""
    up, down = getattr(experts, "gate_up_proj", None), getattr(experts, "down_proj", None)
    if not isinstance(up, Tensor) or not isinstance(down, Tensor) or up.ndim != 3:
        return False
    return up.shape[-1] == 2 * down.shape[-2]


def cut(p: ModelParameter, parts: Split | None) -> Options:
    """The options of a weight whose outputs are cut into `parts`."""
    options: Options = {"layout": "conv" if is_conv_weight(p) else "stack"}
    if parts is None or parts == 1:
        return options
    options["split"] = parts
    if output_dim(p) == -1:
        options["split_dim"] = -1
    return options


def matrices(shape: tuple[int, ...], options: Mapping[str, Any]) -> tuple[Part, ...]:
    """The batches of matrices that the optimizer sees in a parameter, none in a vector."""
    if options.get("role") == "vector":
        return ()
    split = options.get("split")
    split = tuple(split) if isinstance(split, list) else split
    return cut_apart(shape, options.get("layout", "auto"), split, options.get("split_dim", -2))


def conv_groups(p: ModelParameter) -> int:
    """The number of groups of a convolution, 1 if it is none."""
    return int(getattr(p.module, "groups", 1)) if is_conv_weight(p) else 1


def _is_listed(p: ModelParameter, table: dict[str, str]) -> bool:
    """Whether the table names this layer of its parent's class, or of a base class of it."""
    return any(table.get(cls.__name__) == p.layer_name for cls in type(p.parent).__mro__)


def _recurrent(p: ModelParameter) -> Split | None:
    if not re.match("weight_(ih|hh)", p.own_name):
        return None
    if isinstance(p.module, (nn.LSTM, nn.LSTMCell)):
        return 4
    return 3 if isinstance(p.module, (nn.GRU, nn.GRUCell)) else None


def _per_head(p: ModelParameter) -> Split | None:
    if not _is_listed(p, PER_HEAD):
        return None
    names = ("head_dim", "head_size", "attention_head_size")
    size = next((getattr(p.parent, name) for name in names if hasattr(p.parent, name)), 0)
    return p.shape[0] // size if size else None


def _grouped_query(p: ModelParameter) -> Split | None:
    if not _is_listed(p, GROUPED_QUERY):
        return None
    parent: Any = p.parent
    keys = parent.num_key_value_heads * parent.head_dim
    queries = p.shape[0] - 2 * keys
    return 3 if queries == keys else (queries, keys, keys)


def _thirds(p: ModelParameter) -> Split | None:
    if p.tensor.ndim != 2 or (p.layer_name not in THIRDS and p.own_name != "in_proj_weight"):
        return None
    inputs, outputs = p.shape if output_dim(p) == -1 else p.shape[::-1]
    if outputs == 2 * inputs and is_transposed_linear(p.module):  # GPT-2's cross-attention: k and v
        return 2
    return 3 if outputs == 3 * inputs else None


def _gate_up(p: ModelParameter) -> Split | None:
    if p.layer_name == "gate_up_proj" and p.tensor.ndim == 2:
        return 2
    if p.own_name != "gate_up_proj" or p.module is None:
        return None
    # Stored as (in, out), some interleave gate and up (gpt-oss): cut only what is known not to.
    known = output_dim(p) == -2 or type(p.module).__name__ == "Llama4TextExperts"
    return 2 if getattr(p.module, "is_concatenated", known) else None


def _chunked(p: ModelParameter) -> Split | None:
    layer, parts = CHUNKED.get(type(p.parent).__name__, ("", None))
    return parts if layer == p.layer_name else None


def _experts_in_rows(p: ModelParameter) -> Split | None:
    """DBRX keeps the experts of a layer in one matrix, below one another."""
    listed = type(p.module).__name__ == "DbrxExpertGLU" and p.own_name in ("w1", "v1", "w2")
    return getattr(p.module, "moe_num_experts", None) if listed else None


class Layout(NamedTuple):
    """Why, and into what to cut the weight; None if this is not such a weight."""

    why: str
    parts: Callable[[ModelParameter], Split | None]


LAYOUTS = (
    Layout("not a matrix", lambda p: 1 if p.tensor.ndim < 2 else None),
    Layout("groups of a convolution", lambda p: conv_groups(p) if conv_groups(p) > 1 else None),
    Layout("convolution", lambda p: 1 if is_conv_weight(p) else None),
    Layout("gates", _recurrent),
    Layout("query, key, value of each head", _per_head),
    Layout("query, key, value of grouped queries", _grouped_query),
    Layout("query, key, value", _thirds),
    Layout("gate and up", _gate_up),
    Layout("fused projection", _chunked),
    Layout("experts in rows", _experts_in_rows),
    Layout("stack of matrices", lambda p: 1 if p.tensor.ndim > 2 else None),
    Layout("matrix", lambda p: 1),
)


def layout_of(p: ModelParameter) -> Layout:
    """The first layout that knows how to cut the weight, and into parts that fit it."""
    return next(layout for layout in LAYOUTS if _fits(p, layout.parts(p)))


def _fits(p: ModelParameter, parts: Split | None) -> bool:
    if parts is None or parts == 1:
        return parts == 1
    size = p.shape[0] if is_conv_weight(p) else p.shape[output_dim(p)]
    if isinstance(parts, int):
        return size % parts == 0
    return sum(parts) == size and min(parts) > 0
