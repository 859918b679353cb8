"""Which method a parameter takes.

`RULES` are read from the top, and the first match wins. They look at modules first, at a
parameter's own name next, and at its shape if there is nothing else to see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .layouts import Options, conv_groups, cut, is_conv_weight, layout_of, matrices
from .modules import HEAD_NAME, ModelParameter, is_layer

# Own names of parameters that are no layer's weight. "(^|_)pos" must not match "post_".
TABLE = re.compile(r"(^|_)(pos([_ei]|$)|rpb$)|token|quer(y|ies)$|latent|register|probe")
COEFFICIENT = re.compile(r"A_log|^D$|scale|gamma|lambda")
WEIGHT = re.compile(r"weight|proj|kernel|expert|lora_|^[wv]\d?$")

# Names of embeddings, for the case that the modules are not at hand.
EMBEDDING = re.compile(
    r"^(wte|wpe|shared|codebook|relative_attention_bias)$"
    r"|^(?!patch)(.*_)?emb(eds?|eddings?)?(_(tokens|positions|in|out|layer|table))?$"
)


def _is_loose(p: ModelParameter) -> bool:
    """Whether this may be a parameter of its own, such as a class token, and no layer's weight."""
    return not is_layer(p.module) and not WEIGHT.search(p.own_name)


def _is_norm(p: ModelParameter) -> bool:
    named = "norm" in type(p.module).__name__.lower()
    return named and not p.is_embedding and not is_layer(p.module)


def _is_line(p: ModelParameter) -> bool:
    return _is_loose(p) and p.tensor.numel() == max(p.shape)


def _is_table(p: ModelParameter) -> bool:
    of_positions = re.search("Position.*(Embedding|Encoding)", type(p.module).__name__)
    if of_positions and not p.is_embedding and not is_layer(p.module):
        return True
    spread_over_batch = p.tensor.ndim > 2 and p.shape[0] == 1
    return _is_loose(p) and bool(spread_over_batch or TABLE.search(p.own_name))


def _is_coefficient(p: ModelParameter) -> bool:
    return _is_loose(p) and bool(COEFFICIENT.search(p.own_name))


def _is_embedding(p: ModelParameter) -> bool:
    by_name = p.module is None and p.tensor.ndim == 2 and EMBEDDING.search(p.layer_name)
    by_own_name = _is_loose(p) and re.search(r"(^|_)emb(ed|_|$)", p.own_name)
    lora = "lora_embedding_A" in p.names[0]  # (rank, vocabulary): looked up, not multiplied
    return p.is_embedding or bool(by_name or by_own_name or lora)


def _is_head(p: ModelParameter) -> bool:
    if p.module is not None:
        return p.is_head
    layers = [part for part in p.names[0].split(".")[:-1] if not part.isdigit()]
    return bool(layers and HEAD_NAME.search(layers[-1])) or p.names[0] == "fc.weight"


def _is_depthwise(p: ModelParameter) -> bool:
    several = is_conv_weight(p) if p.module is None else conv_groups(p) > 1
    return several and p.shape[1] == 1


def _is_thin(p: ModelParameter) -> bool:
    return not matrices(p.shape, cut(p, layout_of(p).parts(p)))


def _is_vocabulary_by_shape(p: ModelParameter) -> bool:
    """Whether a matrix of unknown origin has the shape of an embedding or a head.

    Vocabularies begin in the thousands and exceed the width many times. The rows of a feed-forward
    layer are at most 8 times its columns (Gemma 2B: 16384 × 2048; Mixtral, fused: 7 times), and
    fewer than 64 columns are a low-rank factor. Beyond that it errs towards the elementwise method:
    a basis for 50,000 rows would take 10 GB.
    """
    if p.module is not None or p.tensor.ndim != 2 or "proj" in p.layer_name:
        return False
    rows, columns = p.shape
    return rows >= 4096 and rows > 8 * columns and columns >= 64


class Rule(NamedTuple):
    """Why, to which parameters, and with which options of their group."""

    why: str
    applies: Callable[[ModelParameter], bool]
    options: Options


MATRIX: Options = {"role": "matrix"}
VECTOR: Options = {"role": "vector"}
EXEMPT: Options = {"role": "vector", "weight_decay": 0.0}

RULES = (
    Rule("fewer than two dimensions", lambda p: p.tensor.ndim < 2, EXEMPT),
    Rule("bias", lambda p: re.search(r"(^|_)bias", p.own_name) is not None, EXEMPT),
    Rule("normalisation", _is_norm, EXEMPT),
    Rule("varies along one dimension", _is_line, EXEMPT),
    Rule("position table or token", _is_table, EXEMPT),
    Rule("embedding", _is_embedding, VECTOR),
    Rule("elementwise coefficients", _is_coefficient, EXEMPT),
    Rule("depthwise convolution", _is_depthwise, VECTOR),
    Rule("a side of 1", _is_thin, VECTOR),
    Rule("low-rank factor", lambda p: p.is_low_rank_factor, MATRIX),
    Rule("output head", _is_head, VECTOR),
    Rule("shape of a vocabulary", _is_vocabulary_by_shape, VECTOR),
    Rule("matrix", lambda p: True, MATRIX),
)


def rule_of(p: ModelParameter) -> Rule:
    """The first rule that applies."""
    return next(rule for rule in RULES if rule.applies(p))
