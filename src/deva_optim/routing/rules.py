"""Which method a parameter takes.

`RULES` are read from the top, and the first match wins. They look at modules first, at a
parameter's own name next, and at its shape if there is nothing else to see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .layouts import Options, conv_groups, cut, is_lora, layout_of, matrices, reads_as_conv
from .modules import HEAD, Site, is_layer

# Own names of parameters that are no layer's weight. "(^|_)pos" must not match "post_".
TABLE = re.compile(r"(^|_)(pos([_ei]|$)|rpb$)|token|quer(y|ies)$|latent|register|probe")
COEFFICIENT = re.compile(r"A_log|^D$|scale|gamma|lambda")
WEIGHT = re.compile(r"weight|proj|kernel|expert|lora_|^[wv]\d?$")

# Names of embeddings, for the case that the modules are not at hand.
EMBEDDING = re.compile(
    r"^(wte|wpe|shared|codebook|relative_attention_bias)$"
    r"|^(?!patch)(.*_)?emb(eds?|eddings?)?(_(tokens|positions|in|out|layer|table))?$"
)


def _is_loose(site: Site) -> bool:
    """Whether this may be a parameter of its own, such as a class token, and no layer's weight."""
    return not is_layer(site.owner) and not WEIGHT.search(site.leaf)


def _is_norm(site: Site) -> bool:
    named = "norm" in type(site.owner).__name__.lower()
    return named and not site.is_embedding and not is_layer(site.owner)


def _is_line(site: Site) -> bool:
    return _is_loose(site) and site.param.numel() == max(site.shape)


def _is_table(site: Site) -> bool:
    of_positions = re.search("Position.*(Embedding|Encoding)", type(site.owner).__name__)
    if of_positions and not site.is_embedding and not is_layer(site.owner):
        return True
    spread_over_batch = site.param.ndim > 2 and site.shape[0] == 1
    return _is_loose(site) and bool(spread_over_batch or TABLE.search(site.leaf))


def _is_coefficient(site: Site) -> bool:
    return _is_loose(site) and bool(COEFFICIENT.search(site.leaf))


def _is_embedding(site: Site) -> bool:
    by_name = site.owner is None and site.param.ndim == 2 and EMBEDDING.search(site.layer)
    by_own_name = _is_loose(site) and re.search(r"(^|_)emb(ed|_|$)", site.leaf)
    lora = "lora_embedding_A" in site.names[0]  # (rank, vocabulary): looked up, not multiplied
    return site.is_embedding or bool(by_name or by_own_name or lora)


def _is_head(site: Site) -> bool:
    if site.owner is not None:
        return site.is_head
    layers = [part for part in site.names[0].split(".")[:-1] if not part.isdigit()]
    return bool(layers and HEAD.search(layers[-1])) or site.names[0] == "fc.weight"


def _is_depthwise(site: Site) -> bool:
    several = reads_as_conv(site) if site.owner is None else conv_groups(site) > 1
    return several and site.shape[1] == 1


def _is_thin(site: Site) -> bool:
    return not matrices(site.shape, cut(site, layout_of(site).parts(site)))


def _is_vocabulary_by_shape(site: Site) -> bool:
    """Whether a matrix of unknown origin has the shape of an embedding or a head.

    Vocabularies begin in the thousands and exceed the width many times. The rows of a feed-forward
    layer are at most 8 times its columns (Gemma 2B: 16384 × 2048; Mixtral, fused: 7 times), and
    fewer than 64 columns are a low-rank factor. Beyond that it errs towards the elementwise method:
    a basis for 50,000 rows would take 10 GB.
    """
    if site.owner is not None or site.param.ndim != 2 or "proj" in site.layer:
        return False
    rows, columns = site.shape
    return rows >= 4096 and rows > 8 * columns and columns >= 64


class Rule(NamedTuple):
    """Why, to which parameters, and with which options of their group."""

    why: str
    applies: Callable[[Site], bool]
    options: Options


MATRIX: Options = {"role": "matrix"}
VECTOR: Options = {"role": "vector"}
EXEMPT: Options = {"role": "vector", "weight_decay": 0.0}

RULES = (
    Rule("fewer than two dimensions", lambda site: site.param.ndim < 2, EXEMPT),
    Rule("bias", lambda site: re.search(r"(^|_)bias", site.leaf) is not None, EXEMPT),
    Rule("normalisation", _is_norm, EXEMPT),
    Rule("varies along one dimension", _is_line, EXEMPT),
    Rule("position table or token", _is_table, EXEMPT),
    Rule("embedding", _is_embedding, VECTOR),
    Rule("elementwise coefficients", _is_coefficient, EXEMPT),
    Rule("depthwise convolution", _is_depthwise, VECTOR),
    Rule("a side of 1", _is_thin, VECTOR),
    Rule("low-rank factor", is_lora, MATRIX),
    Rule("output head", _is_head, VECTOR),
    Rule("shape of a vocabulary", _is_vocabulary_by_shape, VECTOR),
    Rule("matrix", lambda site: True, MATRIX),
)


def rule_of(site: Site) -> Rule:
    """The first rule that applies."""
    return next(rule for rule in RULES if rule.applies(site))
