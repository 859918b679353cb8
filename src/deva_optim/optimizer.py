"""The one torch.optim.Optimizer: groups, state, and the order of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any, ClassVar, Final, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from .core.balance import first_phases
from .core.batch import Batch, Item, batches, item
from .core.gradients import SkipLog, check_gradient, screen
from .core.linalg import compute_dtype, norms
from .core.methods import METHODS, Method
from .core.parameters import STRUCTURE, Reading, place_name, read, unused_name
from .core.state import FORMER_AVERAGE, check_loaded, copied, named_dtypes, on_host, true_dtypes
from .core.step import advance_, decay_
from .local import Local, local_tensor
from .options import (
    check_options,
    check_parameter,
    checked_group,
    complete_,
    group_defaults,
    settle_momentum_,
)
from .routing.groups import param_groups
from .routing.roles import Rates, assigned, warn_of_unknown
from .telemetry import Records, Telemetry, numbered

_DTYPE: Final = attrgetter("dtype")


class BaseOptimizer(Optimizer):
    """Runs every method of the table; the classes in `optimizers` say which, with what defaults.

    The state of a parameter is plain tensors, all of them in the checkpoint; the page on the
    architecture, docs/architecture.md, lists their names and what they are.
    """

    methods: ClassVar[Mapping[str, Method]] = METHODS
    arguments: ClassVar[Mapping[str, str]]  # of a class that is `documented`: name → what it is

    by_model: ClassVar[bool] = False  # whether groups without a role are routed as a model is

    def __init__(
        self, params: nn.Module | ParamsT, method: str, options: Mapping[str, Any]
    ) -> None:
        defaults = group_defaults(method, options)
        self._rates = Rates(options)
        self._skips, self._records, self._steps = SkipLog(), Records(), 0
        self._told: set[str] = set()  # the unknown keys of groups that a warning has named
        self._read: tuple[list[Any], list[Reading]] = [], []
        self._ranks = Local(options.get("process_group"), options.get("wire_dtype"))
        groups = param_groups(params) if isinstance(params, nn.Module) else params
        super().__init__(groups, defaults)
        self._rates.warn_of_unused()

    @property
    def skipped(self) -> int:
        """How many steps of single parameters were left out for a gradient that was not finite."""
        return self._skips.total

    @property
    def telemetry_every(self) -> int:
        """How many steps lie between two that are recorded; 0 records none."""
        return self._records.every

    @telemetry_every.setter
    def telemetry_every(self, every: int) -> None:
        self._records.every = every  # shared with wrappers, which copy the attributes of others

    def telemetry(self) -> Telemetry:
        """What the last recorded step did to each matrix: name → quantity → value.

        The first step is recorded, and every hundredth after it, not of all matrices in the same
        step; `optimizer.telemetry_every` sets another interval, and 0 turns it off. A recorded
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
        if not 0 <= share <= 1:
            raise ValueError(f"share must be a number from 0 to 1, got {share!r}")
        rated = [group for group in self.param_groups if group["ema_rate"] is not None]
        if not rated:
            raise ValueError(
                "ema_rate is None, so that no average of the weights is kept: construct "
                f"{type(self).__name__} with ema_rate=0.99, for example"
            )
        averages = {p: x["weight_avg"] for p, x in self.state.items() if "weight_avg" in x}
        found = []
        for group in rated:
            for p in group["params"]:
                if int(self.state.get(p, {}).get("step", 0)) == 0:
                    continue
                if p not in averages:
                    raise ValueError(
                        f"ema_rate is {group['ema_rate']}, but a parameter of shape "
                        f"{tuple(p.shape)} has taken steps without an average: set it before the "
                        "first step, and load a checkpoint that was saved with it"
                    )
                found.append(p)
        with torch.no_grad():
            averages |= self._ranks.blocks(averages)
        return _averaged([(local_tensor(p), averages[p]) for p in found], share)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as several if they differ in role or rate.

        An error leaves the groups as they were.
        """
        before = len(self.param_groups)
        try:
            for given in assigned(param_group, by_model=self.by_model, rates=self._rates):
                group = checked_group(self.defaults, given)
                if "name" in group and "name" not in param_group:  # loggers want one for each
                    taken = {g["name"] for g in self.param_groups if "name" in g}
                    group["name"] = unused_name(group["name"], taken)
                warn_of_unknown(group, self._told)
                self._add(group)
        except Exception:
            del self.param_groups[before:]
            raise

    def _add(self, group: dict[str, Any]) -> None:
        known = {id(p) for g in self.param_groups for p in g["params"]}
        places = [place_name(len(self.param_groups), i) for i in range(len(group["params"]))]
        for place, member in zip(places, group["params"], strict=True):
            name, param = member if isinstance(member, tuple) else (place, member)
            if not isinstance(param, Tensor):
                continue  # torch has an error of its own for it
            check_parameter(param, name, group)
            if id(param) in known:
                raise ValueError(f"{name} is given twice; every parameter belongs to one group")
            known.add(id(param))
        named = any("param_names" in g for g in self.param_groups)
        if named and not any(isinstance(member, tuple) for member in group["params"]):
            # torch wants names for all groups or for none, and whoever gave a model gave no names.
            group["params"] = list(zip(places, group["params"], strict=True))
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
        with torch._C._DisableAutocast():  # a step has its own precision, wherever it is taken
            items = self.items()
            shared: Iterator[Batch] = iter(())
            if self._ranks.shared:  # they are checked before anything is changed
                shared = self._ranks.batches(self.readings(), self.state, self._skips)
            updated, resting = screen(items, self._skips)
            for e in resting:
                decay_(e)
            for some in (batches(updated), shared):
                for i, batch in enumerate(some):
                    self._advance(batch, i)
            self._steps += 1
        return loss

    def items(self) -> list[Item]:
        """The parameters that have a gradient, all gradients checked before any state is made."""
        own: list[Reading] = []
        fresh = False
        for r in self.readings():
            grad = r.param.grad
            if grad is None or r.param in self._ranks.shared:
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
        """Find out which parameters several ranks share; the first of them brings their code."""
        alone = type(self._ranks) is Local
        group, wire_dtype = self._ranks.process_group, self._ranks.wire_dtype
        if alone and (group is not None or any(hasattr(p, "device_mesh") for p in params)):
            from .distributed.step import Distributed  # it takes a while to import

            self._ranks = Distributed(group, wire_dtype)
        self._ranks.add(params)

    def readings(self) -> list[Reading]:
        """How each parameter is read; groups that have changed are read anew."""
        key: list[Any] = []
        for group in self.param_groups:
            key += id(group), len(group)
            key += map(group.get, STRUCTURE)
            key += map(id, group["params"])
            key += map(_DTYPE, group["params"])
        if key != self._read[0]:
            if settle_momentum_(self.param_groups, self.defaults):
                return self.readings()
            for group in self.param_groups:
                check_options(group, STRUCTURE)
                warn_of_unknown(group, self._told)
            found = read(self.param_groups, self.methods)
            # Others may have been put in the place of the parameters that were added.
            self._find_shared([r.param for r in found])
            own = [r for r in found if r.param not in self._ranks.shared]
            check_loaded([r for r in own if self.state.get(r.param)], self.state)
            self._read = key, found
        return self._read[1]

    def _advance(self, batch: Batch, place: int) -> None:
        """Take the step of a batch, and record it if its turn has come, as it has in the first."""
        every, steps = self._records.every, self._steps
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
            if r.param.grad is not None and r.param not in self._ranks.shared:
                check_gradient(r.param.grad, r.name)
                kinds[compute_dtype(r.param.grad), r.param.device].append(r.param)
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
        """
        for ours, theirs in zip(self.param_groups, state_dict["param_groups"], strict=False):
            method = theirs.get("method", "adamw" if theirs.get("amsgrad") is False else None)
            if ours["method"] != method:
                raise ValueError(
                    f"the state is of method {method!r}, this optimizer is {ours['method']!r}; "
                    "load it into an optimizer of the same kind"
                )
            foreign = "method" not in theirs and theirs.get("decoupled_weight_decay") is False
            if foreign and theirs.get("weight_decay"):
                raise ValueError(
                    "the state is of torch.optim.Adam, whose weight_decay "
                    f"{theirs['weight_decay']} is added to the gradient; there is no such method "
                    "here. Load one with weight_decay=0, or one of torch.optim.AdamW"
                )
        loaded: StateDict = {}

        # torch would cast every tensor to the dtype of its parameter, which would round the
        # float32 state of a bfloat16 weight; so it gets the groups alone.
        def set_aside(_: Optimizer, given: StateDict) -> StateDict:
            loaded.update(given)
            return {**given, "state": {}, "param_groups": true_dtypes(given["param_groups"])}

        before = self.state, self.param_groups
        last = self.register_load_state_dict_pre_hook(set_aside)
        first = self.register_load_state_dict_post_hook(
            lambda _: self._take_over(loaded), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        except BaseException:
            self.state, self.param_groups = before
            raise
        finally:
            last.remove()
            first.remove()
            self._read = [], []  # it would keep parameters that are swapped from now on

    def _take_over(self, loaded: StateDict) -> None:
        """Make the state that was loaded that of this optimizer, as tensors of its own."""
        places = [i for group in loaded["param_groups"] for i in group["params"]]
        params = dict(zip(places, (r.param for r in self.readings()), strict=True))
        for i, x in loaded["state"].items():
            self.state[params.get(i, i)] = dict(x) if i in params else x
        with_state = [r for r in self.readings() if self.state.get(r.param)]
        for group in self.param_groups:
            states = [self.state[p] for p in group["params"] if self.state.get(p)]
            averages = {"weight_avg", FORMER_AVERAGE}
            if states and averages.isdisjoint(key for found in states for key in found):
                group["ema_rate"] = None  # once every group had a rate, whether it was used or not
        check_loaded(with_state, self.state)
        self._ranks.load_state_(with_state, self.state)
        for p in (r.param for r in with_state if r.param not in self._ranks.shared):
            for key, x in self.state[p].items():
                if isinstance(x, Tensor):
                    self.state[p][key] = copied(x, "cpu" if on_host(key) else p.device)

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks.shared:
            raise TypeError(
                "an optimizer whose parameters are shared by several ranks cannot be copied or "
                "pickled; make another one and load the state_dict of this one into it"
            )
        own = ("_skips", "_records", "_steps", "_ranks", "_rates", "_told")
        kept = {key: getattr(self, key) for key in own}
        return {**super().__getstate__(), **kept, "_read": ([], [])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            complete_(group)


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


@contextmanager
def _averaged(found: list[tuple[Tensor, Tensor]], share: float) -> Iterator[None]:
    """While it lasts, each X holds (1 − share) X + share A."""
    last = [X.detach().clone() for X, _ in found]
    with torch.no_grad():
        for X, A in found:
            X.copy_(A if share == 1 else X.to(A.dtype).lerp(A, share))
    try:
        yield
    finally:
        with torch.no_grad():
            for (X, _), old in zip(found, last, strict=True):
                X.copy_(old)
