"""timm: our optimizers in its registry, and parameter groups that know the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from timm.optim import OptimInfo, param_groups_layer_decay, param_groups_weight_decay
from timm.optim._optim_factory import default_registry
from torch import nn

from ..optimizer import BaseOptimizer
from ..optimizers import CLASSES
from ..routing.groups import cut_by_role

# timm has a Muon, an AdamW and a Lion of its own, which keep their names. An underscore would
# separate timm's prefixes, such as "lookahead_".
NAMES: Final[Mapping[str, type[BaseOptimizer]]] = {
    f"deva-{cls.__name__.lower().removeprefix('deva')}".removesuffix("-"): cls for cls in CLASSES
}
"""The names under which `create_optimizer_v2` and `--opt` know the optimizers: "deva", "deva-sinf",
"deva-muon" and so on."""


def register() -> None:
    """Make the optimizers known to timm under `NAMES`; a second call changes nothing."""
    known = set(default_registry.list_optimizers())
    for name, cls in NAMES.items():
        if name in known and default_registry.get_optimizer_info(name).opt_class is cls:
            continue
        signature = inspect.signature(cls).parameters
        betas = signature["betas"].default if "betas" in signature else (0.0, 0.0)
        default_registry.register(
            OptimInfo(
                name=name,
                opt_class=cls,
                description=(cls.__doc__ or name).partition("\n")[0],
                has_eps="eps" in signature,
                has_momentum="momentum" in signature,
                has_betas="betas" in signature,
                num_betas=len(betas),
            )
        )


def param_group_fn(
    *,
    weight_decay: float,
    layer_decay: float | None = None,
    min_scale: float = 0.0,
    no_opt_scale: float | None = None,
    overrides: Sequence[Any] = (),
    split: Mapping[str, int | tuple[int, ...]] | None = None,
) -> Callable[[nn.Module], list[dict[str, Any]]]:
    """What `create_optimizer_v2` takes as `param_group_fn`: timm's groups, with names and roles.

    timm cuts the model by layer and by weight decay and gives the optimizer bare tensors. Each of
    its groups is cut further here by what the parameters are, as `deva_optim.param_groups` finds it
    from the modules. Nothing is decayed that either of the two exempts from weight decay.

        register()
        groups = param_group_fn(weight_decay=0.05, layer_decay=0.75)
        optimizer = create_optimizer_v2(model, "deva", lr=3e-4, param_group_fn=groups)

    Args:
        weight_decay: For what is decayed. timm does not tell the function what it was given.
        layer_decay: The rate of a layer over that of the next one; None has one rate for all.
        min_scale: timm's `layer_decay_min_scale`.
        no_opt_scale: timm's `layer_decay_no_opt_scale`: layers with a smaller scale are frozen.
        overrides: As in `deva_optim.param_groups`.
        split: As in `deva_optim.param_groups`.
    """

    def groups(model: nn.Module) -> list[dict[str, Any]]:
        exempt: set[str] = getattr(model, "no_weight_decay", set)()
        shared: dict[str, Any] = {"weight_decay": weight_decay, "no_weight_decay_list": exempt}
        if layer_decay is None:
            theirs = param_groups_weight_decay(model, **shared)
        else:
            scales = {"min_scale": min_scale, "no_opt_scale": no_opt_scale}
            theirs = param_groups_layer_decay(model, layer_decay=layer_decay, **scales, **shared)
        cut = cut_by_role(theirs, [model], overrides=overrides, split=split)
        return [{**group, **options, "params": pairs} for group, options, pairs in cut]

    return groups
