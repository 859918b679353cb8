"""An optimizer and its parameters as a case describes them: steps, events, copies of it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from deva_optim.core import batch, linalg, step, variance
from fuzz.case import Case
from fuzz.tensors import laid_out, weight
from helpers import OPTIMIZERS

# The sizes from which on work is cut into pieces, brought down to where small shapes reach them.
_SMALL = (
    (batch, "ELEMENTWISE_LIMIT", 8),
    (batch, "MATRIX_LIMIT", 24),
    (linalg, "_SYMMETRIC_FROM", 3),
    (linalg, "_BLOCK_ROWS", 2),
    (batch, "LARGE", 4),
    (step, "LARGE", 4),
    (variance, "_STRIP", 4),
)


class Subject:
    """The optimizer of a case, over parameters of its own.

    Args:
        case: The case.
        path: "host" or "device"; that of the case, unless given.
        foreach: What every group has in place of its own value.
        mirrored: Whether it climbs where the case descends.
    """

    def __init__(
        self, case: Case, *, path: str = "", foreach: bool | None = None, mirrored: bool = False
    ) -> None:
        self.case = case
        self.settings: dict[str, Any] = {
            "path": path or case.path,
            "foreach": foreach,
            "mirrored": mirrored,
        }
        self.params = [weight(spec) for spec in case.params]
        self.frozen: set[int] = set()
        self.unsettled = False  # whether a step may or may not have been left out
        here = {p.group for p in case.params}
        late = {e[1] for s in case.steps for e in s.events if e[0] == "add"}
        self.joined = sorted(here - late or here)
        self.optimizer: Any = OPTIMIZERS[case.optimizer]([self._group(g) for g in self.joined])
        self.optimizer.telemetry_every = 1

    def _group(self, g: int) -> dict[str, Any]:
        spec = self.case.groups[g]
        options = dict(spec.options)
        if spec.tensor_lr:
            options["lr"] = torch.tensor(options.get("lr", 1e-3))
        if self.settings["foreach"] is not None:
            options["foreach"] = self.settings["foreach"]
        if self.settings["mirrored"]:
            options["maximize"] = not options.get("maximize", False)
        return {"params": [self.params[i] for i in self.in_group(g)], **options}

    def in_group(self, g: int) -> list[int]:
        """The parameters of a group of the case, by number."""
        return [i for i, p in enumerate(self.case.params) if p.group == g]

    def takes_part(self, i: int) -> bool:
        """Whether a parameter has joined and is not frozen."""
        return self.case.params[i].group in self.joined and i not in self.frozen

    def join(self, g: int) -> None:
        """Add a group, if it is not there and has parameters."""
        if g not in self.joined and self.in_group(g):
            self.optimizer.add_param_group(self._group(g))
            self.joined.append(g)

    def change(self, g: int, key: str, value: Any) -> None:
        """Set an option of a group, which the routing may have made several of."""
        mine = {id(self.params[i]) for i in self.in_group(g)}
        for group in self.optimizer.param_groups:
            if not any(id(p) in mine for p in group["params"]):
                continue
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            elif key == "betas" and "momentum" in group:
                group["momentum"] = value[0]
            elif key == "betas":
                group[key] = (*value, *group[key][2:])
            elif key != "foreach" or self.settings["foreach"] is None:
                group[key] = value

    def freeze(self, i: int) -> None:
        """Let a parameter have no gradient from now on."""
        self.params[i].requires_grad_(False)
        self.frozen.add(i)

    def thaw(self, i: int) -> None:
        """Let it have one again."""
        self.params[i].requires_grad_(True)
        self.frozen.discard(i)

    def step(self, grads: list[Tensor | None]) -> None:
        """One step of the optimizer with these gradients."""
        for p, g in zip(self.params, grads, strict=True):
            if g is not None and g.dtype != p.dtype:
                p.grad = None
                p.grad_dtype = None
            p.grad = g
        with patched((linalg, "host_sees", lambda _: self.settings["path"] == "host")):
            self.optimizer.step()

    def state(self, i: int) -> dict[str, Tensor]:
        """The state of a parameter, not a copy."""
        state: dict[str, Tensor] = self.optimizer.state.get(self.params[i], {})
        return state

    # Copies of it

    def reloaded(self) -> Subject:
        """The same after a checkpoint: a fresh optimizer that loads from a file."""
        twin = Subject(self.case, **self.settings)
        for g in self.joined:
            twin.join(g)
        with tempfile.TemporaryFile() as file:
            weights = [p.detach() for p in self.params]
            torch.save({"weights": weights, "state": self.optimizer.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        with torch.no_grad():
            for p, X in zip(twin.params, saved["weights"], strict=True):
                p.copy_(X)
        twin.optimizer.load_state_dict(saved["state"])
        for i in self.frozen:
            twin.freeze(i)
        return twin

    def deepcopied(self) -> Subject:
        """The same after copy.deepcopy of optimizer and parameters.

        deepcopy makes a sliced weight dense, and torch's products may round otherwise there; so the
        copies are laid out as the weights were.
        """
        twin = copy.copy(self)
        twin.optimizer, twin.params = copy.deepcopy((self.optimizer, self.params))
        for p, param in zip(twin.params, self.case.params, strict=True):
            p.data = laid_out(p.data, param.layout)
        twin.joined, twin.frozen = list(self.joined), set(self.frozen)
        return twin


@contextmanager
def small_pieces(wanted: bool) -> Iterator[None]:
    """While it lasts, small matrices are cut into pieces as only large ones are."""
    with patched(*(_SMALL if wanted else ())):
        yield


@contextmanager
def patched(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """While it lasts, attributes of modules have other values."""
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
