"""Trajectories of every optimizer, to hold later versions to the numbers of this one.

    python -m trajectories record FILE    run all cases and write every number of them
    python -m trajectories compare FILE   run them again: what is equal bit for bit, what not;
                                                --only REGEX for those whose name it is found in
    python -m trajectories reduce         write data/trajectories.json anew
    python -m trajectories checkpoints    write those of data/ that are not there yet

A recording is for one machine and one version of torch, because rounding differs elsewhere. The
reduced one is in the repository: `test_trajectories` holds every version on every machine to it.
"""

import argparse
import copy
import io
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import deva_optim as do
from helpers import OPTIMIZERS
from ranks import run
from trajectories.cases import CASES, SAVED, SHARED, Case
from trajectories.situations import Shape, gradient, numbers

DATA = Path(__file__).parent / "data"
REDUCED = DATA / "trajectories.json"
# The one private name here: it says whether a step may look at values, as on an accelerator it may
# not, and no public option has that effect.
HOST_SEES = "deva_optim.core.linalg.host_sees"

Tensors = dict[str, Tensor]


class Run:
    """The parameters of a case, by name, and their optimizer."""

    def __init__(self, case: Case) -> None:
        self.case, self.situation = case, case.situation
        self.placed = _placement(case)
        options = {**copy.deepcopy(dict(self.situation.options)), **case.options}
        groups = self._routed(options) if self.situation.module else self._groups(options)
        ranks = {"process_group": dist.group.WORLD} if case.ranks == "copies" else {}
        self.optimizer = OPTIMIZERS[case.optimizer](groups, **ranks, **case.arguments)

    def _groups(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        situation = self.situation
        self.params = {
            name: nn.Parameter(self.placed(self._start(name, shape)))
            for name, shape in situation.shapes.items()
        }
        together = [p for name, p in self.params.items() if name not in situation.own]
        groups = [{**options, "params": together}] if together else []
        return groups + [
            {**options, **own, "params": [self.params[name]]} for name, own in situation.own.items()
        ]

    def _routed(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.situation.module is not None
        model = self.situation.module().to(self.case.dtype)
        self.params = dict(model.named_parameters())
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(numbers(name, tuple(p.shape)))
        return [{**options, **group} for group in do.param_groups(model)]

    def _start(self, name: str, shape: Shape) -> Tensor:
        X = numbers(name, shape).to(self.case.dtype, copy=True)
        if self.situation.strided and X.ndim > 1:
            return X.transpose(0, -1).contiguous().transpose(0, -1)
        return X

    def step(self, number: int) -> None:
        """Take the step of this number, from 1 on."""
        if self.situation.schedule is not None:
            for group in self.optimizer.param_groups:
                self.situation.schedule(group, number)
        for name, p in self.params.items():
            G: Tensor | None = gradient(name, tuple(p.shape), number).to(self.case.dtype, copy=True)
            if name in self.situation.changes:
                G = self.situation.changes[name](G, number)
            p.grad = None if G is None else self.placed(G)
        self.optimizer.step()

    def save(self, file: Any) -> None:
        weights = {name: p.detach() for name, p in self.params.items()}
        torch.save({"weights": weights, "optimizer": self.optimizer.state_dict()}, file)

    def load(self, file: Any) -> None:
        saved = torch.load(file)
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(saved["weights"][name])
        self.optimizer.load_state_dict(saved["optimizer"])

    def tensors(self) -> Tensors:
        """Weights, state and, of SPlus, averaged weights."""
        names = {id(p): name for name, p in self.params.items()}
        order = [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]
        found = {f"weight/{name}": _whole(p) for name, p in self.params.items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            found |= {f"state/{order[index]}/{key}": _whole(x) for key, x in values.items()}
        if isinstance(self.optimizer, do.SPlus):
            with self.optimizer.averaged():
                found |= {f"average/{name}": _whole(p) for name, p in self.params.items()}
        return found


def trajectory(case: Case) -> Tensors:
    """All tensors after the first step and every third one: number of the step / kind / name."""
    steps, found = case.situation.steps, Tensors()
    with _quiet(), _seeing(case):
        now = Run(case)
        if case.loaded:
            now.load(checkpoint(case.optimizer))
        for step in range(steps // 2 + 1 if case.loaded else 1, steps + 1):
            now.step(step)
            if step in (1, steps) or step % 3 == 0:
                found |= {f"{step}/{key}": x for key, x in now.tensors().items()}
            if step == case.situation.saved_after:
                file, before = io.BytesIO(), now
                before.save(file)
                file.seek(0)
                now = Run(case)
                now.load(file)
    return found


def checkpoint(name: str) -> Path:
    """Where the repository keeps a checkpoint of this optimizer."""
    return DATA / f"checkpoint-{name}.pt"


def _whole(X: Tensor) -> Tensor:
    return (X.full_tensor() if hasattr(X, "full_tensor") else X).detach().clone()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings about steps that are left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the gradient of .* was not finite", RuntimeWarning)
        yield


# Ranks and accelerators --------------------------------------------------------------------------


def _placement(case: Case) -> Callable[[Tensor], Tensor]:
    """What makes of a whole tensor the one that this rank has."""
    if case.ranks != "rows":
        return lambda X: X
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return lambda X: distribute_tensor(X, mesh, [Shard(0)], src_data_rank=None)


def of_ranks(names: Iterable[str]) -> dict[str, Tensors]:
    """The trajectories over two ranks, as the first of them sees them."""
    names = list(names)
    return run(2, _on_a_rank, names)[0] if names else {}


def _on_a_rank(names: list[str]) -> dict[str, Tensors]:
    return {name: trajectory(SHARED[name]) for name in names}


def _seeing(case: Case) -> AbstractContextManager[Any]:
    """Where a case asks for it, the step does not look at values."""
    if not case.blind:
        return nullcontext()
    return mock.patch(HOST_SEES, return_value=False)


# Whole recordings --------------------------------------------------------------------------------

Key = tuple[str, str, Shape]  # step / kind / name of a tensor, its dtype and its shape
Recording = tuple[list[Key], Tensor]  # all numbers in float64, which holds those of every dtype


def recordings(only: str = "") -> Iterator[tuple[str, Recording]]:
    """The cases in whose name the regular expression is found."""
    for name, case in CASES.items():
        if re.search(only, name):
            yield name, _recording(trajectory(case))
    for name, found in of_ranks(name for name in SHARED if re.search(only, name)).items():
        yield name, _recording(found)


def _recording(found: Tensors) -> Recording:
    keys = [(name, str(x.dtype), tuple(x.shape)) for name, x in found.items()]
    return keys, torch.cat([x.flatten().double() for x in found.values()])


def _tensors(recording: Recording) -> dict[Key, Tensor]:
    keys, numbers = recording
    return dict(zip(keys, numbers.split([math.prod(shape) for *_, shape in keys]), strict=True))


def record(file: Path) -> int:
    found = dict(recordings())
    torch.save(found, file)
    print(f"{len(found)} cases, {sum(len(x) for _, x in found.values())} numbers")
    return 0


SMALL, UNSTABLE, MORE = "rounding", "unstable, so it may be rounding", "MORE THAN ROUNDING"


class Difference(NamedTuple):
    """How a case differs from its recording."""

    weights: float  # the largest difference
    state: float  # the same, over the largest number of the tensor, without Shampoo's roots
    where: str  # the first tensor that differs
    verdict: str

    def __str__(self) -> str:
        off = f"weights {self.weights:.1e}, state {self.state:.1e}"
        return f"{self.verdict}: {off}, from {self.where} on"


NOT_RECORDED = Difference(math.inf, math.inf, "the first step, which is not recorded,", MORE)
NOT_RUN = Difference(math.inf, math.inf, "the first step, which is not run any more,", MORE)


def compare(file: Path, only: str) -> int:
    """Print what differs from a recording; returns 1 if rounding does not explain all of it."""
    theirs = {name: x for name, x in torch.load(file).items() if re.search(only, name)}
    cases, equal, found = {**CASES, **SHARED}, 0, {}
    for name, ours in recordings(only):
        known = theirs.pop(name, None)
        difference = NOT_RECORDED if known is None else _difference(cases[name], ours, known)
        if difference is None:
            equal += 1
        else:
            found[name] = difference
    found |= dict.fromkeys(theirs, NOT_RUN)
    print(f"{equal} of {equal + len(found)} cases are equal bit for bit")
    for name, x in sorted(found.items(), key=lambda item: item[1]):
        print(f"{name}: {x}")
    counts = Counter(x.verdict for x in found.values())
    for verdict, count in counts.items():
        print(f"{count} {verdict}")
    return int(MORE in counts)


def _difference(case: Case, ours: Recording, theirs: Recording) -> Difference | None:
    new, old = _tensors(ours), _tensors(theirs)
    if new.keys() != old.keys():
        one = next(iter(new.keys() ^ old.keys()))
        return Difference(math.inf, math.inf, f"{one}, which only one of both has,", MORE)
    changed = [key for key in old if not torch.equal(_bits(new[key]), _bits(old[key]))]
    if not changed:
        return None
    weights = state = 0.0
    for name, dtype, shape in changed:
        x, y = new[name, dtype, shape], old[name, dtype, shape]
        if dtype == "torch.int64" or not torch.equal(x.isfinite(), y.isfinite()):
            state = math.inf
        elif "/state/" not in name:
            weights = max(weights, float((x - y).abs().max()))
        elif "/root_" not in name:  # a root is singular where no gradient has been
            state = max(state, _relative(x.abs(), y.abs()))  # the sign of a basis vector is free
    verdict = SMALL if max(weights, state) <= case.rounding else MORE if case.stable else UNSTABLE
    return Difference(weights, state, changed[0][0], verdict)


def _bits(X: Tensor) -> Tensor:
    return X.view(torch.int64)


def _relative(new: Tensor, old: Tensor) -> float:
    return float((new - old).abs().max() / old.abs().max().clamp_min(torch.finfo(old.dtype).tiny))


# The reduced recording ---------------------------------------------------------------------------


def reduced(found: Tensors) -> dict[str, float]:
    """A signed mean of every weight after the last step.

    The signs are drawn for each name: differences of several numbers do not cancel.
    """
    last = max(int(key.split("/")[0]) for key in found)
    means = {}
    for key, X in found.items():
        step, kind, name = key.split("/", 2)
        if int(step) == last and kind != "state":
            signs = numbers(f"{name}, signs", tuple(X.shape)).sign()
            mean = round(float((signs * X).mean()), 14)  # the tolerance has 12 decimals
            means[name if kind == "weight" else f"{name}, {kind}"] = mean
    return means


def reduce() -> int:
    """Write the reduced recording, a line for each case; what still agrees with it is kept."""
    old = json.loads(REDUCED.read_text("utf-8")) if REDUCED.exists() else {}
    cases = {name: case for name, case in {**CASES, **SHARED}.items() if case.held}
    shared = of_ranks(name for name in cases if name in SHARED)
    lines, kept = [], 0
    for name, case in cases.items():
        means = reduced(shared[name] if name in shared else trajectory(case))
        if name in old and means == same_to_rounding(case, old[name]):
            means, kept = old[name], kept + 1
        lines.append(f"{json.dumps(name)}: {json.dumps(means)}")
    REDUCED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    print(f"{len(lines)} cases, {kept} of them as before; {REDUCED.stat().st_size} bytes")
    return 0


def same_to_rounding(case: Case, means: dict[str, float]) -> Any:
    """What is equal to reduced recordings that differ from this one by rounding alone.

    A mean of errors is no larger than the largest of them.
    """
    return pytest.approx(means, rel=0, abs=case.rounding)


def save_checkpoints() -> int:
    """Write the checkpoints that are not there yet.

    Those that are there stay as they are: they stand for all that users have saved.
    """
    for name in SAVED:
        if not checkpoint(name).exists():
            now = Run(CASES[f"{name}, checkpoint, float64"])
            for step in range(1, now.situation.steps // 2 + 1):
                now.step(step)
            now.save(checkpoint(name))
            print(f"{checkpoint(name).name}, {checkpoint(name).stat().st_size} bytes")
    return 0


def main() -> int:
    warnings.filterwarnings("ignore", "the parameters have no names")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["record", "compare", "reduce", "checkpoints"])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--only", default="", metavar="REGEX")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command in ("reduce", "checkpoints"):
        return reduce() if arguments.command == "reduce" else save_checkpoints()
    if arguments.file is None:
        parser.error(f"{arguments.command} needs a file")
    if arguments.command == "record":
        return record(arguments.file)
    return compare(arguments.file, arguments.only)
