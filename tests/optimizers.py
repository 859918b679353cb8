"""The table that drives the shared tests: every optimizer and variant, by name.

A new row of `METHODS` appears here the day it is added: `test_every_method_is_here` sees to it.
"""

from collections.abc import Callable
from functools import partial

from torch.optim import Optimizer

import deva_optim as do

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "deva": do.DeVA,
    "deva-rest-linf": partial(do.DeVA, nesterov=False, rest="deva-linf"),
    "deva-sinf": do.DeVASinf,
    "deva-sinf-factored": partial(do.DeVASinf, variant="factored"),
    "deva-sinf-instantaneous": partial(do.DeVASinf, variant="instantaneous"),
    "deva-sinf-whitened": partial(do.DeVASinf, variant="whitened", nesterov=True),
    "deva-sinf-signed": partial(do.DeVASinf, sign_stabilize=True),
    "deva-sinf-nesterov": partial(do.DeVASinf, nesterov=True),
    "deva-sinf-short": partial(do.DeVASinf, sides="short"),
    "deva-linf": do.DeVALinf,
    "deva-linf-nesterov": partial(do.DeVALinf, nesterov=True),
    "adamw": do.AdamW,
    "signum": do.Signum,
    "lion": do.Lion,
    "muon": do.Muon,
    "muon-polar-express": partial(do.Muon, msign="polar-express"),
    "muon-soft": partial(do.Muon, msign="soft"),
    "adamuon": do.AdaMuon,
    "normuon": do.NorMuon,
    "soap": do.SOAP,
    "shampoo": do.Shampoo,
    "shampoo-ungrafted": partial(do.Shampoo, graft="none"),
    "splus": do.SPlus,
}

MATRIX = tuple(
    name for name in OPTIMIZERS if not name.startswith(("deva-linf", "adamw", "signum", "lion"))
)
