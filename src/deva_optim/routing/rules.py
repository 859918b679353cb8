"""Which role a parameter has: "matrix" for the matrix method, "vector" for the elementwise one.

`RULES` is read from the top, and the first rule that applies wins. A rule looks at modules if they
are known, at names otherwise, and at the shape if there is nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..core.matrices import matrices
from .layouts import conv_groups, is_conv_weight, layout_options
from .modules import HEAD_NAME, WRAPPERS, ModelParameter, is_layer

# Own names of weights, and of parameters that are not weights. No "pos" may match "post_".
WEIGHT = r"weight|proj|kernel|expert|lora_|^[wv]\d?$"
TABLE = r"(^|_)(pos([_ei]|$)|rpb$)|token|quer(y|ies)$|latent|register|probe"
EMBEDDING = r"(^|_)emb(ed|_|$)"
COEFFICIENT = r"A_log|^D$|scale|gamma|lambda"

# Names of layers that are embeddings, for models whose modules are not known.
EMBEDDING_LAYER = (
    r"^(wte|wpe|shared|codebook|relative_attention_bias)$"
    r"|^(?!patch)(.*_)?emb(eds?|eddings?)?(_(tokens|positions|in|out|layer|table))?$"
)


def _is_standalone(p: ModelParameter, name: str = "") -> bool:
    """Whether this may be a parameter by itself, such as a class token, and has such a name."""
    is_weight = is_layer(p.module) or re.search(WEIGHT, p.own_name)
    return not is_weight and re.search(name, p.own_name) is not None


def _is_inside(p: ModelParameter, class_name: str) -> bool:
    """Whether its module has such a class name, and is no embedding, layer or head."""
    is_weight = is_layer(p.module) or p.is_embedding or p.is_head
    return not is_weight and re.search(class_name, type(p.module).__name__) is not None


def _varies_along_one_dimension(p: ModelParameter) -> bool:
    # A "weight" that is no layer's and is for every sample: (1, 1, 1, C) in ConvNeXt V2's GRN.
    scale = p.module is not None and not is_layer(p.module) and _is_for_every_sample(p)
    return (scale or _is_standalone(p)) and p.tensor.numel() == max(p.shape)


def _is_for_every_sample(p: ModelParameter) -> bool:
    """Whether it is broadcast over the samples of a batch."""
    return p.tensor.ndim > 2 and p.shape[0] == 1


def _is_table(p: ModelParameter) -> bool:
    by_name = _is_standalone(p, TABLE) or _is_inside(p, "Position.*(Embedding|Encoding)")
    return by_name or (_is_for_every_sample(p) and _is_standalone(p))


def _is_embedding(p: ModelParameter) -> bool:
    named = p.module is None and p.tensor.ndim == 2 and re.search(EMBEDDING_LAYER, p.layer_name)
    lora = "lora_embedding_A" in p.names[0]  # (rank, vocabulary): its columns are looked up
    return p.is_embedding or bool(named) or lora or _is_standalone(p, EMBEDDING)


def _is_depthwise(p: ModelParameter) -> bool:
    grouped = is_conv_weight(p) if p.module is None else conv_groups(p) > 1
    return grouped and p.shape[1] == 1


def _is_head(p: ModelParameter) -> bool:
    if p.is_low_rank_factor:
        return False
    if p.module is not None:
        return p.is_head
    path = [part for part in p.names[0].split(".")[:-1] if part not in WRAPPERS]
    layers = [part for part in path if not part.isdigit()]
    return path == ["fc"] or bool(layers and HEAD_NAME.search(layers[-1]))


def _has_shape_of_vocabulary(p: ModelParameter) -> bool:
    """Whether a matrix whose module is not known has the shape of an embedding or a head.

    Vocabularies begin in the thousands and exceed the width many times. The rows of a feed-forward
    layer are at most 8 times its columns (Gemma 2B: 16384 × 2048; Mixtral, fused: 7 times), and a
    matrix of fewer than 64 columns is a low-rank factor. In doubt the elementwise method is safer:
    a basis for 50,000 rows would take 10 GB.
    """
    if p.module is not None or p.tensor.ndim != 2 or "proj" in p.layer_name:
        return False
    rows, columns = p.shape
    return rows >= 4096 and rows > 8 * columns and columns >= 64


MATRIX = {"role": "matrix"}
VECTOR = {"role": "vector"}
EXEMPT = {"role": "vector", "weight_decay": 0.0}

# (reason, whether the rule applies, options of the group)
RULES: tuple[tuple[str, Callable[[ModelParameter], bool], dict[str, Any]], ...] = (
    ("fewer than two dimensions", lambda p: p.tensor.ndim < 2, EXEMPT),
    ("bias", lambda p: re.search(r"(^|_)bias", p.own_name) is not None, EXEMPT),
    ("normalisation", lambda p: _is_inside(p, "(?i)norm"), EXEMPT),
    ("varies along one dimension", _varies_along_one_dimension, EXEMPT),
    ("position table or token", _is_table, EXEMPT),
    ("embedding", _is_embedding, VECTOR),
    ("elementwise coefficients", lambda p: _is_standalone(p, COEFFICIENT), EXEMPT),
    ("depthwise convolution", _is_depthwise, VECTOR),
    ("output head", _is_head, VECTOR),  # of any number of outputs: a reward model has one
    ("a side of 1", lambda p: not matrices(p.shape, layout_options(p)[0]), VECTOR),
    ("low-rank factor", lambda p: p.is_low_rank_factor, MATRIX),
    ("shape of a vocabulary", _has_shape_of_vocabulary, VECTOR),
    ("rows that no other layer has", lambda p: p.is_table, VECTOR),
    ("matrix", lambda p: True, MATRIX),
)


KINDS = {
    "embedding": "embedding",
    "shape of a vocabulary": "embedding",
    "rows that no other layer has": "embedding",
    "output head": "head",
}
"""Reason → the kind of parameter that may have a learning rate of its own; others are rest."""


def role_options(p: ModelParameter) -> tuple[dict[str, Any], str]:
    """The role of a parameter with the other options of its group, and the reason for them."""
    return next((options, reason) for reason, applies, options in RULES if applies(p))
