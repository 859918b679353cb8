"""What is measured: every method of ours, the yardstick, and the peers that are installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

import deva_optim as do

from .memory import Sides, State
from .plain_muon import PlainMuon
from .settings import Settings

Kind = Literal["ours", "yardstick", "peer"]
Build = Callable[[list[Tensor], Settings], Optimizer]


@dataclass(frozen=True)
class Subject:
    """An optimizer under test.

    Attributes:
        state: The formula of its state.
        matrices_only: Whether it knows neither convolutions nor stacks, and is given their matrices
            as parameters of their own.
        refreshes: Whether some of its steps do more than others.
        needs: The attribute of the module without which it is left out.
    """

    name: str
    kind: Kind
    build: Build
    state: State
    matrices_only: bool = False
    refreshes: bool = False
    needs: tuple[str, str] | None = None

    @property
    def missing(self) -> str | None:
        """Why it cannot be measured here, or None if it can."""
        if self.needs is None:
            return None
        module, attribute = self.needs
        if find_spec(module) is None:
            return f"{module.split('.')[0]} is not installed"
        if not hasattr(import_module(module), attribute):
            return f"this version of {module.split('.')[0]} has no {attribute}"
        return None


def _common(s: Settings) -> dict[str, Any]:
    return {"lr": s.lr, "weight_decay": s.weight_decay}


def _plain(optimizer: Callable[..., Optimizer]) -> Build:
    """Builds one of ours that has no basis."""
    return lambda params, s: optimizer(params, **_common(s))


def _based(optimizer: Callable[..., Optimizer], **options: Any) -> Build:
    """Builds one of ours that refreshes a basis."""
    return lambda params, s: optimizer(
        params, **_common(s), refresh_every=s.refresh_every, **options
    )


def _elementwise(name: str, optimizer: Callable[..., Optimizer], moments: int) -> Subject:
    state = State(moments, counters=4, units="parameter")
    return Subject(name, "ours", _plain(optimizer), state)


def _spectral(
    name: str, optimizer: Callable[..., Optimizer], moments: int, rows: int = 0
) -> Subject:
    state = State(moments, counters=4, units="matrix", rows=rows)
    return Subject(name, "ours", _plain(optimizer), state)


def _with_basis(
    name: str, build: Build, moments: int, *, ends: int = 0, sides: Sides = "both", width: int = 4
) -> Subject:
    """One of ours with L, R and what is made of them.

    Its counters: the step, the clock and who waits for a basis; in a stack, how long each was idle.
    """
    state = State(moments, ends, 2, sides, width, 4 + 8 + 8, 4, units="matrix")
    return Subject(name, "ours", build, state, refreshes=True)


def _torch_adamw(params: list[Tensor], s: Settings) -> Optimizer:
    return torch.optim.AdamW(params, **_common(s), foreach=True)


def _torch_muon(params: list[Tensor], s: Settings) -> Optimizer:
    # As ours is measured: no Nesterov, and the scale that makes a rate of AdamW's right.
    return torch.optim.Muon(params, **_common(s), nesterov=False, adjust_lr_fn="match_rms_adamw")


def _pytorch_optimizer_soap(params: list[Tensor], s: Settings) -> Optimizer:
    soap: Callable[..., Optimizer] = import_module("pytorch_optimizer").SOAP
    return soap(params, **_common(s), precondition_frequency=s.refresh_every)


def _heavyball_soap(params: list[Tensor], s: Settings) -> Optimizer:
    soap: Callable[..., Optimizer] = import_module("heavyball").SOAP
    # Its own limit, 2048, would spare it the bases of long sides that ours compute.
    same_work = {"max_precond_dim": 10_000, "merge_dims": False, "betas": (0.95, 0.95)}
    return soap(params, **_common(s), precondition_frequency=s.refresh_every, **same_work)


def _peer(name: str, build: Build, state: State, module: str, attribute: str) -> Subject:
    elementwise, refreshes = attribute == "AdamW", attribute == "SOAP"
    return Subject(name, "peer", build, state, not elementwise, refreshes, (module, attribute))


_BF16: Final = torch.bfloat16
_SOAP: Final = State(2, squares=2)

# fmt: off
_ROWS: Final = (
    _with_basis("deva",               _based(do.DeVA), 1, ends=1, sides="one"),
    _with_basis("deva-soft",          _based(do.DeVA, variant="whitened"), 2, sides="short"),
    _with_basis("deva-short",         _based(do.DeVASinf, sides="short"), 2, sides="short"),
    _with_basis("deva-both",          _based(do.DeVASinf), 2),
    _with_basis("deva-factored",      _based(do.DeVASinf, variant="factored"), 1, ends=1),
    _with_basis("deva-instantaneous", _based(do.DeVASinf, variant="instantaneous"), 2),
    _with_basis("deva-whitened",      _based(do.DeVASinf, variant="whitened"), 2),
    _with_basis("deva-both-bf16",     _based(do.DeVASinf, state_dtype=_BF16), 2, width=2),
    _spectral("muon",                 partial(do.Muon, nesterov=False), 1),
    _spectral("muon-original",        partial(do.Muon, adjust_lr_fn="original"), 1),
    _spectral("adamuon",              do.AdaMuon, 2),
    _spectral("normuon",              do.NorMuon, 1, rows=1),
    _with_basis("soap",               _based(do.SOAP), 2),
    _with_basis("soap-short",         _based(do.SOAP, sides="short"), 2, sides="short"),
    _with_basis("shampoo",            _based(do.Shampoo), 2),
    _with_basis("shampoo-ungrafted",  _based(do.Shampoo, graft="none"), 1),
    _with_basis("splus",              _based(do.SPlus), 2),
    _elementwise("adamw",             do.AdamW, 2),
    _elementwise("deva-linf",         do.DeVALinf, 2),
    _elementwise("signum",            do.Signum, 1),
    _elementwise("lion",              do.Lion, 1),
    Subject("plain-muon", "yardstick", _plain(PlainMuon), State(1), matrices_only=True),
    _peer("torch-adamw",            _torch_adamw, State(2, counters=4), "torch.optim", "AdamW"),
    _peer("torch-muon",             _torch_muon, State(1), "torch.optim", "Muon"),
    _peer("pytorch_optimizer-soap", _pytorch_optimizer_soap, _SOAP, "pytorch_optimizer", "SOAP"),
    _peer("heavyball-soap",         _heavyball_soap, _SOAP, "heavyball", "SOAP"),
)
# fmt: on

SUBJECTS: Final[dict[str, Subject]] = {row.name: row for row in _ROWS}
"""Every subject by name, in the order of the table."""


def compiled(subject: Subject, backend: str) -> Subject:
    """One of ours that computes its updates by graphs of torch.compile."""

    def build(params: list[Tensor], s: Settings) -> Optimizer:
        optimizer = subject.build(params, s)
        for group in optimizer.param_groups:
            group["compile"] = backend
        return optimizer

    return replace(subject, name=f"{subject.name}-compiled", build=build)
