"""The one torch.optim.Optimizer: groups, state, and the order of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from . import upkeep
from .layout import Part, parts, whole
from .methods import METHODS, Method, method_of
from .ownership import Member
from .schedule import phases, refresh_cost
from .screen import screen, squared_norms
from .skips import SkipLog
from .stack import Entry, Stack, apply_, compute_dtype, stacks
from .state import initial_state, unwrap_, wrapped
from .telemetry import Telemetry, looks_at_gradient, read
from .validation import as_list, check_gradient, check_group, check_parameter

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from .distributed import Fleet

Ranks: TypeAlias = "ProcessGroup | DeviceMesh | None"

DEFAULTS: Final[dict[str, Any]] = {
    "lr": 1e-3,
    "betas": (0.9, 0.99),
    "rest_betas": (0.9, 0.99),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
    "foreach": None,
    "method": "adamw",
    "variant": "default",
    "rest": "adamw",
    "refresh_every": 10,
    "stagger": True,
    "sign_stabilize": False,
    "msign": "newton-schulz",
    "msign_dtype": None,
    "sides": "both",
    "max_dim": 10_000,
    "skip_first": False,
    "ema_rate": 0.999,
    "nonfinite": "skip",
    "state_dtype": None,
    "role": "auto",
    "layout": "auto",
    "split": None,
    "split_dim": -2,
}
"""What a group holds unless it says otherwise; the classes in `zoo` set their own."""


class Engine(Optimizer):
    """Runs every method of the table; the classes in `zoo` say which and with what defaults.

    State of a parameter, all of it in the checkpoint:

        step                  steps taken, 0-D
        exp_avg               M, in the shape and the coordinates of the parameter; SOAP's in those
                              of the basis
        exp_avg_sq            V, in the shape of the parameter and the coordinates of the basis
        exp_avg_rows, _cols   V_r and V_c of the factored variant
        covariance_left, …    L and R; of a large one only the lower half is kept up to date
        basis_left, …         Q_L and Q_R, or root_left, … of Shampoo
        iterate_avg           the average of SPlus's iterates
        clock                 what times the refreshes: it runs from the phase of the parameter on
                              once a first basis is chosen, and is −1 less the phase before that
        waiting               matrices of the parameter that have no basis yet
        idle                  steps of the parameter that did not count for one of its matrices

    A weight that is split into parts of unequal size numbers what belongs to a part: basis_left.0.
    """

    def __init__(
        self, params: ParamsT, defaults: dict[str, Any], process_group: Ranks = None
    ) -> None:
        self._skips = SkipLog()
        self._ranks = process_group
        self._fleet: Fleet | None = None
        super().__init__(params, {**DEFAULTS, **defaults})

    @property
    def skipped(self) -> int:
        """How many steps of single parameters were left out for a gradient that was not finite."""
        return self._skips.total

    def telemetry(self) -> Telemetry:
        """What can be said of each matrix after the last step: name → quantity → value.

        Computed when it is called, from the state alone, at the price of one or two steps; steps
        cost nothing more and take the same trajectory, bit for bit. A parameter that is several
        matrices has a row for each, numbered; one without a name is called by its place. The
        quantities, so far as the method has them:

            gamma_norm    ‖Γ‖_F
            gamma_mean    the mean of Γ: 1 where every gradient is the same
            drift_left    how far L has moved from its basis since the last refresh: the share of
            drift_right   Qᵀ L Q that is off the diagonal; and R likewise
            msign_error   RMS of σ² − 1 over the singular values of the direction
            update_ratio  ‖update‖_F / ‖weight‖_F, without weight decay
            skipped       steps of the parameter left out for a gradient that was not finite

        Right after a refresh Γ is seen in the new basis, as the next step will see it. Γ of the
        instantaneous variant and the direction with Nesterov are made of the gradient too: where
        that is gone, or not finite, such a matrix has no row. Nor has one that several ranks share.

        To TensorBoard, with `scalars` of `deva_optim.telemetry`:

            for tag, x in scalars(optimizer.telemetry()).items(): writer.add_scalar(tag, x, step)

        >>> from deva_optim import Muon
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> weight.grad = torch.eye(2)
        >>> optimizer = Muon([("weight", weight)], lr=0.1, msign="svd", weight_decay=0.0)
        >>> optimizer.step()
        >>> {key: round(x, 4) for key, x in optimizer.telemetry()["weight"].items()}
        {'msign_error': 0.0, 'update_ratio': 0.0291, 'skipped': 0.0}
        """
        return read(self._stepped(), self._skips.of)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, checked before anything is changed."""
        group = {**self.defaults, **param_group}
        if "momentum" in param_group:  # torch's name for the first of the betas
            group["betas"] = (group.pop("momentum"), *group["betas"][1:])
        for key in ("betas", "rest_betas", "split"):
            if isinstance(group[key], list):
                group[key] = tuple(group[key])
        check_group(group)
        group["params"] = as_list(group["params"])
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for i, member in enumerate(group["params"]):
            default = f"parameter {i} of group {len(self.param_groups)}"
            name, param = member if isinstance(member, tuple) else (default, member)
            if not isinstance(param, Tensor):
                continue  # torch has an error of its own for it
            check_parameter(param, name, group)
            if id(param) in known:
                raise ValueError(f"{name} is given twice; every parameter belongs to one group")
            known.add(id(param))
        super().add_param_group(group)
        self._share(self.param_groups[-1]["params"])

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; returns what the closure returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for stack in stacks(screen(list(self._entries()), self._skips)):
            _advance_(stack)
        if self._fleet is not None:
            shared = self._shared()
            for stack in self._fleet.stacks(shared, self.state, self._phases, self._skips):
                _advance_(stack)
        return loss

    @torch.no_grad()
    def squared_norms(self) -> dict[Tensor, float]:
        """The squared norm of every gradient, over all ranks, which must all ask for it."""
        kinds: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for _, p, _ in self._own_members():
            kinds[p.device, compute_dtype(p)].append(p)
        found: dict[Tensor, float] = {}
        for (_, dtype), params in kinds.items():
            squares = squared_norms([p.grad for p in params], dtype)
            found.update(zip(params, squares.tolist(), strict=True))
        if self._fleet is not None:
            found |= self._fleet.squared_norms(self._shared())
        return found

    def state_dict(self) -> StateDict:
        """The state; where ranks share parameters as DTensors, which all ranks must ask for."""
        if self._fleet is None:
            return super().state_dict()
        hook = self.register_state_dict_post_hook(self._spread_state, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state, in the precision in which it was saved.

        torch casts every tensor to the dtype of its parameter, which would round the float32
        state of a bfloat16 weight; so the tensors are wrapped while torch looks at them.
        """
        for ours, theirs in zip(self.param_groups, state_dict["param_groups"], strict=False):
            if ours["method"] != theirs.get("method"):
                raise ValueError(
                    f"the state is of method {theirs.get('method')!r}, this optimizer is "
                    f"{ours['method']!r}; load it into an optimizer of the same kind"
                )
        wrap = self.register_load_state_dict_pre_hook(wrapped)  # the last of the hooks before,
        unwrap = self.register_load_state_dict_post_hook(_unwrap_, prepend=True)  # the first after
        try:
            super().load_state_dict(state_dict)
        finally:
            wrap.remove()
            unwrap.remove()

    def __getstate__(self) -> dict[str, Any]:
        if self._fleet is not None:
            raise TypeError(
                "an optimizer whose parameters are shared by several ranks cannot be copied or "
                "pickled; make another one and load the state_dict of this one into it"
            )
        return {**super().__getstate__(), "_skips": self._skips, "_ranks": None, "_fleet": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a checkpoint from before an option existed
            for key, value in DEFAULTS.items():
                group.setdefault(key, value)

    def _entries(self) -> Iterator[Entry]:
        """The parameters that have a gradient, all gradients checked before any state is made."""
        members = self._own_members()
        for _, p, name in members:
            check_gradient(p.grad, name)
        phase = self._phases() if any(not self.state[p] for _, p, _ in members) else {}
        for group, p, name in members:
            method, pieces = _read(p, group)
            state = self.state[p]
            if not state:
                state.update(initial_state(p, group, method, pieces, phase.get(p, 0)))
            entry = Entry(p, p.grad, state, group, method, pieces, name)
            if method.basis is not None:
                entry.clock, entry.waiting = int(state["clock"]), int(state["waiting"])
            yield entry

    def _stepped(self) -> Iterator[Entry]:
        """The matrices that have taken a step, and whose gradient is there if it is needed."""
        for i, group in enumerate(self.param_groups):
            for p, name in zip(group["params"], _names(group, i), strict=True):
                method, pieces = _read(p, group)
                state = self.state.get(p)
                shared = self._fleet is not None and p in self._fleet
                if not state or method.vector is None or shared:
                    continue
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                entry = Entry(p, grad, state, group, method, pieces, name)
                if not looks_at_gradient(entry) or (
                    p.grad is not None and bool(grad.isfinite().all())
                ):
                    yield entry

    def _own_members(self) -> list[tuple[dict[str, Any], Any, str]]:
        """The parameters that have a gradient and are not shared with other ranks."""
        return [
            (group, p, name)
            for i, group in enumerate(self.param_groups)
            for p, name in zip(group["params"], _names(group, i), strict=True)
            if p.grad is not None and (self._fleet is None or p not in self._fleet)
        ]

    def _share(self, params: list[Tensor]) -> None:
        """Tell the fleet, which is there only if somebody needs it, of new parameters."""
        if self._ranks is None and not any(_is_dtensor(p) for p in params):
            return
        if self._fleet is None:
            from .distributed import Fleet  # it takes a while to import

            self._fleet = Fleet(self._ranks)
        for p in params:
            self._fleet.add(p)

    def _shared(self) -> list[Member]:
        """The parameters that several ranks share."""
        return [
            Member(group, p, name, *_read(p, group))
            for i, group in enumerate(self.param_groups)
            for p, name in zip(group["params"], _names(group, i), strict=True)
            if self._fleet is not None and p in self._fleet
        ]

    @torch.no_grad()
    def _blocks(self, key: str) -> dict[Tensor, Tensor]:
        """A state of the shape of its parameter; of one that ranks share, the block of this one."""
        found = {p: x[key] for p, x in self.state.items() if x}
        if self._fleet is not None:
            shared = [m for m in self._shared() if m.param in found]
            found |= {m.param: self._fleet.block(m, found[m.param]) for m in shared}
        return found

    def _spread_state(self, _: Optimizer, state_dict: StateDict) -> StateDict:
        assert self._fleet is not None
        spread = self._fleet.spread_state(self._shared(), self.state)
        params = [p for group in self.param_groups for p in group["params"]]
        state = {i: spread.get(params[i], x) for i, x in state_dict["state"].items()}
        return {**state_dict, "state": state}

    def _phases(self) -> dict[Tensor, int]:
        """Where the clocks start, so that the refreshes are spread over the steps."""
        costs: defaultdict[int, dict[Tensor, int]] = defaultdict(dict)  # by period
        for group in self.param_groups:
            for p in group["params"] if group["stagger"] else ():
                method, pieces = _read(p, group)
                if method.basis is not None:
                    costs[group["refresh_every"]][p] = refresh_cost(pieces, group)
        return {
            p: phase
            for period, cost in costs.items()
            for p, phase in zip(cost, phases(list(cost.values()), period), strict=True)
        }


def _advance_(stack: Stack) -> None:
    """One step of a stack: bases, weights, bases."""
    method, basis = stack.method, stack.method.basis
    if basis is not None:
        if stack.awaits_basis:
            upkeep.begin_(stack)
        basis.before(stack)
    apply_(stack, *method.update(stack))
    if method.after is not None:
        method.after(stack)
    if basis is not None:
        basis.after(stack)


def _unwrap_(optimizer: Optimizer) -> None:
    assert isinstance(optimizer, Engine)
    if optimizer._fleet is not None:
        optimizer._fleet.take_(optimizer._shared(), optimizer.state)
    unwrap_(optimizer)


def _is_dtensor(param: Tensor) -> bool:
    return hasattr(param, "device_mesh")


def _read(param: Tensor, group: dict[str, Any]) -> tuple[Method, tuple[Part, ...]]:
    """The method for a parameter and the parts it is read as."""
    method, shape = method_of(group), tuple(param.shape)
    if method.vector is not None:
        pieces = parts(shape, group["layout"], group["split"], group["split_dim"])
        if pieces and group["role"] != "vector":
            return method, pieces
        method = METHODS[group["rest"]]
    return method, (whole(shape),)


def _names(group: dict[str, Any], index: int) -> list[str]:
    """The names of a group's parameters, or where to find them."""
    count = len(group["params"])
    names: list[str] | None = group.get("param_names")
    return names or [f"param_groups[{index}]['params'][{i}]" for i in range(count)]
