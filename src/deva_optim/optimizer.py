"""The one torch.optim.Optimizer: groups, state, and the order of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from .core import upkeep
from .core.batch import Entry, Stack, apply_, decay_, stacks
from .core.gradients import screen
from .core.parameters import Member, members
from .core.schedule import first_phases
from .core.skips import SkipLog
from .core.state import check_loaded, initial_state, named_dtypes, unwrap_, wrapped
from .core.units import compute_dtype, narrowed, norms
from .defaults import DEFAULTS
from .local import Local, Ranks, Strategy
from .telemetry import Telemetry, numbered, rows, stepped
from .validation import as_list, check_gradient, check_group, check_parameter


class BaseOptimizer(Optimizer):
    """Runs every method of the table; the classes in `zoo` say which and with what defaults.

    State of a parameter, all of it in the checkpoint:

        step                  steps taken, 0-D
        exp_avg               M, in the shape and the coordinates of the parameter; SOAP's and that
                              of the whitened variant in those of the basis
        exp_avg_sq            V, in the shape of the parameter and the coordinates of the basis
        exp_avg_rows, _cols   V_r and V_c of the factored variant
        covariance_left, …    L and R; of a large one only the lower half is kept up to date
        basis_left, …         Q_L and Q_R, or root_left, … of Shampoo
        iterate_avg           the average of SPlus's iterates
        clock                 what times the refreshes: it runs from the phase of the parameter on
                              once a first basis is chosen, and is −1 less the phase before that
        waiting               matrices of the parameter that have no basis yet
        idle                  steps of the parameter that did not count for one of its matrices
        exponent              e of the units 2^e that a matrix is measured in: 0 for gradients of
                              ordinary size, −∞ before the first one. exp_avg and exp_avg_rows,
                              _cols are over 2^e, exp_avg_sq and the covariances over 4^e

    A weight that is split into parts of unequal size numbers what belongs to a part: basis_left.0.
    """

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        process_group: Ranks = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        self._skips = SkipLog()
        self._ranks: Strategy = Local(process_group, wire_dtype)
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
        that is gone, or not finite, such a matrix has no row. Where ranks share parameters, all of
        them must ask; the owners answer, and every rank gets all rows.

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
        found = rows(stepped(self._own(lambda _: True), self.state))
        found |= self._ranks.telemetry(self.param_groups, self.state)
        return numbered(found, self._skips.of)

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
        self._ranks = self._ranks.add(self.param_groups[-1]["params"])

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
        if not self.state:  # until now others may have been put in the place of parameters
            self._ranks = self._ranks.add(p for group in self.param_groups for p in group["params"])
        entries = screen(list(self._entries()), self._skips)
        for e in entries:
            if e.rests:
                decay_(e)
        for stack in stacks(e for e in entries if not e.rests):
            _advance_(stack)
        for stack in self._ranks.batches(self.param_groups, self.state, self._skips):
            _advance_(stack)
        return loss

    @torch.no_grad()
    def squared_norms(self) -> dict[Tensor, float]:
        """The squared norm of every gradient, over all ranks, which must all ask for it."""
        kinds: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for m in self._own(_has_gradient):
            kinds[m.param.device, compute_dtype(m.param)].append(m.param)
        found: dict[Tensor, float] = {}
        for (_, dtype), params in kinds.items():
            squares = norms([p.grad for p in params], dtype).square()
            found.update(zip(params, squares.tolist(), strict=True))
        return found | self._ranks.squared_norms(self.param_groups)

    def state_dict(self) -> StateDict:
        """The state, dtypes by name; of what ranks share as DTensors, which all must ask for."""
        hook = self.register_state_dict_post_hook(_portable, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state, in the precision in which it was saved; an error leaves the old one.

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
        before = self.state, self.param_groups
        try:
            super().load_state_dict(state_dict)
        except BaseException:
            self.state, self.param_groups = before
            raise
        finally:
            wrap.remove()
            unwrap.remove()

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks.shared:
            raise TypeError(
                "an optimizer whose parameters are shared by several ranks cannot be copied or "
                "pickled; make another one and load the state_dict of this one into it"
            )
        own = {"_skips": self._skips, "_ranks": self._ranks}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a checkpoint from before an option existed
            for key, value in DEFAULTS.items():
                group.setdefault(key, value)

    def _entries(self) -> Iterator[Entry]:
        """The parameters that have a gradient, all gradients checked before any state is made."""
        own = self._own(_has_gradient)
        for _, p, name, _, _ in own:
            check_gradient(p.grad, name)  # type: ignore[arg-type]
        phase = {}
        if any(not self.state[p] for _, p, _, _, _ in own):
            phase = first_phases(self.param_groups)
        for group, p, name, method, parts in own:
            state = self.state[p]
            if not state:
                state.update(initial_state(p, group, method, parts, phase.get(p, 0)))
            grad = narrowed(p.grad, p)  # type: ignore[arg-type]
            entry = Entry(p, grad, state, group, method, parts, name)
            if method.basis is not None:
                entry.clock, entry.waiting = int(state["clock"]), int(state["waiting"])
            yield entry

    def _own(self, wanted: Callable[[Tensor], bool]) -> list[Member]:
        """The parameters that are wanted and not shared with other ranks."""
        shared = self._ranks.shared
        if not shared:
            return members(self.param_groups, wanted)
        return members(self.param_groups, lambda p: wanted(p) and p not in shared)

    @torch.no_grad()
    def _blocks(self, key: str) -> dict[Tensor, Tensor]:
        """A state of the shape of its parameter; of one that ranks share, the block of this one."""
        found = {p: x[key] for p, x in self.state.items() if key in x}
        return found | self._ranks.blocks(found)


def _advance_(stack: Stack) -> None:
    """One step of a stack: bases, weights, bases."""
    method, basis = stack.method, stack.method.basis
    if basis is not None:
        if stack.awaits_basis or stack.nonzero is not None:
            upkeep.begin_(stack)
        basis.before(stack)
    apply_(stack, *method.update(stack))
    if method.after is not None:
        method.after(stack)
    if basis is not None:
        basis.after(stack)


def _has_gradient(param: Tensor) -> bool:
    return param.grad is not None


def _portable(optimizer: Optimizer, state_dict: StateDict) -> StateDict:
    """The state as any way of saving takes it, and any number of ranks can read it."""
    assert isinstance(optimizer, BaseOptimizer)
    shared = optimizer._ranks.saved_state(optimizer.state)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        i: shared.get(params[i], x) if isinstance(i, int) else x
        for i, x in state_dict["state"].items()
    }
    return {**state_dict, "state": state, "param_groups": named_dtypes(state_dict["param_groups"])}


def _unwrap_(optimizer: Optimizer) -> None:
    assert isinstance(optimizer, BaseOptimizer)
    loaded = members(optimizer.param_groups, lambda p: bool(optimizer.state.get(p)))
    check_loaded(loaded, optimizer.state)
    optimizer._ranks.load_state_(optimizer.param_groups, optimizer.state)
    unwrap_(optimizer)
