"""The one torch.optim.Optimizer: groups, state, and the order of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from .averages import averaged, check_averages
from .core.balance import first_phases
from .core.batch import Batch, Item, batches, item
from .core.gradients import check_gradient, screen
from .core.linalg import norms
from .core.methods import METHODS, Method
from .core.parameters import STRUCTURE, Reading, read
from .core.skips import SkipLog
from .core.state import check_loaded, named_dtypes, unwrap_, wrapped
from .core.step import advance_, decay_
from .local import Local, Strategy
from .options import check_parameter, checked_group, complete_, group_defaults
from .routing.groups import param_groups
from .routing.roles import Rates, assigned
from .telemetry import Records, Telemetry, numbered


class BaseOptimizer(Optimizer):
    """Runs every method of the table; the classes in `optimizers` say which, with what defaults.

    State of a parameter, all of it in the checkpoint:

        step                  steps taken, 0-D
        exp_avg               M, in the shape and the coordinates of the parameter; SOAP's and that
                              of the whitened variant in those of the basis
        exp_avg_sq            V, in the shape of the parameter and the coordinates of the basis
        exp_avg_scale, …      with state_dtype="int8", the scales of the codes that exp_avg and
                              exp_avg_sq are then
        exp_avg_rows, _cols   V_r and V_c of the factored variant
        variance_short, _long r and c of the lean variant: what L has along each column of its
                              basis, and the mean square of each column of a wide gradient
        covariance_left, …    L and R; of a large one only the lower half is kept up to date
        basis_left, …         Q_L and Q_R, or root_left, … of Shampoo
        iterate_avg           the average of the weights, with `ema_rate`
        clock                 steps since the first basis, plus the phase of the parameter;
                              −1 − phase until there is one
        waiting               matrices of the parameter that have no basis yet
        idle                  steps of the parameter that did not count for one of its matrices
        rounding              how often the weight was rounded at random, if it is in half precision
        exponent              e of the units 2^e that a matrix is measured in: 0 for gradients of
                              ordinary size, −2³¹ before the first one. exp_avg and exp_avg_rows,
                              _cols are over 2^e, exp_avg_sq, the covariances and variance_short,
                              _long over 4^e

    A weight that is split into parts of unequal size numbers what belongs to a part: basis_left.0.
    """

    methods: ClassVar[Mapping[str, Method]] = METHODS
    arguments: ClassVar[Mapping[str, str]]  # of a class that is `documented`: name → what it is

    by_model: ClassVar[bool] = False  # whether groups without a role are routed as a model is

    def __init__(
        self, params: nn.Module | ParamsT, method: str, options: Mapping[str, Any]
    ) -> None:
        defaults = group_defaults(method, options)
        self._rates = Rates(options)
        self.telemetry_every = 100
        self._skips, self._records, self._steps = SkipLog(), Records(), 0
        self._read: tuple[list[Any], list[Reading]] = [], []
        ranks = Local(options.get("process_group"), options.get("wire_dtype"))
        self._ranks: Strategy = ranks
        self._shared: Collection[Tensor] = ()  # the parameters that several ranks share
        groups = param_groups(params) if isinstance(params, nn.Module) else params
        super().__init__(groups, defaults)
        self._rates.warn_of_unused()

    @property
    def skipped(self) -> int:
        """How many steps of single parameters were left out for a gradient that was not finite."""
        return self._skips.total

    def telemetry(self) -> Telemetry:
        """What the last recorded step did to each matrix: name → quantity → value.

        The first step of each matrix is recorded and every hundredth after it, not of all in the
        same step; `optimizer.telemetry_every` sets another interval, and 0 turns it off. A recorded
        step costs a few products more and takes the same trajectory, bit for bit. A parameter that
        is several matrices has a row for each, numbered; one without a name is called by its place.
        The quantities, so far as the method has them:

            gamma_norm    ‖Γ‖_F
            gamma_mean    the mean of Γ: 1 where every gradient is the same
            drift_left    how far L has moved from its basis since the last refresh: the share of
            drift_right   Qᵀ L Q that is off the diagonal; and R likewise
            msign_error   RMS of σ² − 1 over the singular values of the direction
            update_ratio  ‖update‖_F / ‖weight‖_F, without weight decay
            skipped       steps of the parameter left out for a gradient that was not finite

        Where ranks share parameters, all of them must ask, and every rank gets all rows. To
        TensorBoard, with `scalars` of `deva_optim.telemetry`:

            for tag, x in scalars(optimizer.telemetry()).items(): writer.add_scalar(tag, x, step)

        >>> from deva_optim import Muon
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> weight.grad = torch.eye(2)
        >>> optimizer = Muon([("weight", weight)], lr=0.1, msign="svd", weight_decay=0.0)
        >>> optimizer.step()
        >>> {key: round(x, 4) for key, x in optimizer.telemetry()["weight"].items()}
        {'msign_error': 0.0, 'update_ratio': 0.0283, 'skipped': 0.0}
        """
        found = self._ranks.merged(self._records.rows())
        ordered = {r.name: found[r.name] for r in self.readings() if r.name in found}
        return numbered(ordered, self._skips.of)

    def averaged(self, share: float = 1.0) -> AbstractContextManager[None]:
        """A context in which the parameters hold the average of the weights over the steps.

        Evaluate and save inside of it; at its end the last weights are back, bit for bit. Where
        ranks share parameters, all of them must enter it.

        Args:
            share: How much of the average is shown; the rest is that of the last weights.

        Raises:
            ValueError: If no average is kept, because `ema_rate` is None or was so before.

        >>> from deva_optim import AdamW
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = AdamW([weight], lr=1.0, weight_decay=0.0, ema_rate=0.5)
        >>> for _ in range(2):
        ...     weight.grad = torch.ones(1)
        ...     optimizer.step()
        >>> with optimizer.averaged():
        ...     round(weight.item(), 3)
        -1.667
        >>> round(weight.item(), 3)
        -2.0
        """
        averages = self._blocks("iterate_avg")
        check_averages(self, averages, share)
        return averaged(self, averages, share)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as several if they differ in role or rate.

        An error leaves the groups as they were.
        """
        before = len(self.param_groups)
        try:
            for group in assigned(param_group, by_model=self.by_model, rates=self._rates):
                self._add(checked_group(self.defaults, group))
        except (TypeError, ValueError):
            del self.param_groups[before:]
            raise

    def _add(self, group: dict[str, Any]) -> None:
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
        absent = self.defaults.keys() - group.keys()
        super().add_param_group(group)
        for key in absent:  # torch adds all defaults, also those that a group of vectors has not
            del group[key]
        self._find_shared(self.param_groups[-1]["params"])

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
            self._find_shared([r.param for r in self.readings()])
        updated, resting = screen(self.items(), self._skips)
        for e in resting:
            decay_(e)
        for i, batch in enumerate(batches(updated)):
            self._advance(batch, i)
        if self._shared:
            shared = self._ranks.batches(self.readings(), self.state, self._skips)
            for i, batch in enumerate(shared):
                self._advance(batch, i)
        self._steps += 1
        return loss

    def items(self) -> list[Item]:
        """The parameters that have a gradient, all gradients checked before any state is made."""
        own: list[Reading] = []
        fresh = False
        for r in self.readings():
            grad = r.param.grad
            if grad is None or r.param in self._shared:
                continue
            if grad.layout != torch.strided or grad.is_complex():
                check_gradient(grad, r.name)
            own.append(r)
            fresh |= not self.state.get(r.param)
        phase = first_phases(self.readings()) if fresh else {}
        items = []
        for r in own:
            assert r.param.grad is not None
            state = self.state[r.param]
            items.append(item(r, r.param, r.param.grad, state, r.parts, phase.get(r.param, 0)))
        return items

    def _find_shared(self, params: list[Tensor]) -> None:
        self._ranks = self._ranks.add(params)
        self._shared = self._ranks.shared

    def readings(self) -> list[Reading]:
        """How each parameter is read; groups that have changed are read anew."""
        key: list[Any] = []
        for group in self.param_groups:
            key.append(id(group))
            key += map(group.get, STRUCTURE)
            key += map(id, group["params"])
        if key != self._read[0]:
            self._read = key, read(self.param_groups, self.methods)
        return self._read[1]

    def _advance(self, batch: Batch, place: int) -> None:
        """Take the step of a batch, and record it if its turn has come, as it has in the first."""
        every, steps = self.telemetry_every, self._steps
        if every and (steps == 0 or (steps - place) % every == 0):
            batch.record = {} if batch.items[0].reading.is_matrix else None
        advance_(batch)
        if batch.record is not None:
            self._records.add(batch)

    @torch.no_grad()
    def squared_norms(self) -> dict[Tensor, float]:
        """The squared norm of every gradient, over all ranks, which must all ask for it."""
        kinds: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for r in self.readings():
            if r.param.grad is not None and r.param not in self._shared:
                kinds[r.dtype, r.param.device].append(r.param)
        found: dict[Tensor, float] = {}
        for (dtype, _), params in kinds.items():
            squares = norms([p.grad for p in params], dtype).square()
            found.update(zip(params, squares.tolist(), strict=True))
        return found | self._ranks.squared_norms(self.readings())

    def state_dict(self) -> StateDict:
        """The state, dtypes by name; of what ranks share as DTensors, which all must ask for."""
        hook = self.register_state_dict_post_hook(_portable, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state, in the precision in which it was saved; an error leaves the old one.

        `AdamW` takes that of `torch.optim.AdamW`, too.

        torch casts every tensor to the dtype of its parameter, which would round the float32
        state of a bfloat16 weight; so the tensors are wrapped while torch looks at them.
        """
        for ours, theirs in zip(self.param_groups, state_dict["param_groups"], strict=False):
            method = theirs.get("method", "adamw" if theirs.get("amsgrad") is False else None)
            if ours["method"] != method:
                raise ValueError(
                    f"the state is of method {method!r}, this optimizer is {ours['method']!r}; "
                    "load it into an optimizer of the same kind"
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
        if self._shared:
            raise TypeError(
                "an optimizer whose parameters are shared by several ranks cannot be copied or "
                "pickled; make another one and load the state_dict of this one into it"
            )
        own = {
            key: getattr(self, key)
            for key in (
                *("_skips", "_records", "_steps", "_ranks", "_shared", "_rates"),
                "telemetry_every",
            )
        }
        return {**super().__getstate__(), **own, "_read": ([], [])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            complete_(group)
            states = [self.state[p] for p in group["params"] if self.state.get(p)]
            if states and not any("iterate_avg" in found for found in states):
                group["ema_rate"] = None  # once every group had a rate, whether it was used or not

    @torch.no_grad()
    def _blocks(self, key: str) -> dict[Tensor, Tensor]:
        """A state of the shape of its parameter; of one that ranks share, the block of this one."""
        found = {p: x[key] for p, x in self.state.items() if key in x}
        return found | self._ranks.blocks(found)


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
    readings = optimizer.readings()
    check_loaded([r for r in readings if optimizer.state.get(r.param)], optimizer.state)
    optimizer._ranks.load_state_(readings, optimizer.state)
    unwrap_(optimizer)
