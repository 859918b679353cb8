"""The ranks that a run is on: one process alone, or several that torchrun has started.

Under ddp every rank has the whole model, and a matrix is updated by its owner alone. Under fsdp
every rank has a shard of each weight. hsdp has copies of a model in shards, one a node, or two on a
single node.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import CommandError, UsageError
from .settings import MODES, TASKS, Mode, RunSettings

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
_NEEDED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun says


class Ranks:
    """The ranks of a run, of which this process is one; without a mode it is alone.

    The loop and the tasks ask one process and several the same questions. Several must all ask
    together, and torch.distributed must have been initialised.

    Attributes:
        mode: How the model is spread; None where there is one process.
        rank: The number of this process.
        size: How many there are.
    """

    def __init__(self, mode: Mode | None = None) -> None:
        self.mode = mode
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if mode else (0, 1)

    @property
    def leads(self) -> bool:
        """Whether this one prints and writes for all."""
        return self.rank == 0

    def part(self, batch: T) -> T:
        """The rows of a batch that this rank trains on; their number must be a multiple of ours."""
        if self.mode is None:
            return batch

        def rows(x: Any) -> Any:
            return x.chunk(self.size)[self.rank] if isinstance(x, Tensor) and x.dim() else x

        return cast(T, tree_map(rows, batch))

    def rows(self, chunk: Tensor) -> tuple[Tensor, int]:
        """The rows of a chunk that this rank looks at, and how many of them count here.

        A model in shards needs every rank in every pass. So a rank that has no row of a small chunk
        looks at the first one, which does not count.
        """
        mine = chunk.tensor_split(self.size)[self.rank]
        return (mine, len(mine)) if len(mine) else (chunk[:1], 0)

    def mean(self, loss: Tensor) -> Tensor:
        """The mean over ranks, on the device of the loss, which nothing waits for."""
        if self.mode is None:
            return loss
        total = loss.clone()
        dist.all_reduce(total)
        return total / self.size

    def total(self, *sums: float) -> list[float]:
        """Each sum over ranks, found on the host without waiting for a device."""
        if self.mode is None:
            return list(sums)
        table = torch.tensor(sums, dtype=torch.float64)
        dist.all_reduce(table)
        found: list[float] = table.tolist()
        return found

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return self.total(flag) != [0.0]

    def gathered(self, thing: T) -> list[T]:
        """What each rank has."""
        things: list[Any] = [thing] * self.size
        if self.mode is not None:
            dist.all_gather_object(things, thing)
        return things

    def lead(self, do: Callable[[], T]) -> T:
        """What rank 0 gets when it does this; if that is an error for the user, all raise it."""
        if self.mode is None:
            return do()
        told: list[Any] = [None, ""]
        if self.leads:
            try:
                told[0] = do()
            except (UsageError, OSError) as error:
                told[1] = str(error)
                dist.broadcast_object_list(told)
                raise
        dist.broadcast_object_list(told)
        if told[1]:
            raise UsageError(told[1])
        found: T = told[0]
        return found


ALONE: Final = Ranks()


# --- Joining -------------------------------------------------------------------------------------


@contextmanager
def joined(mode: Mode | None) -> Iterator[Ranks]:
    """The ranks that torchrun has started; this process alone if the mode is None.

    Raises:
        UsageError: If the mode and the way in which this process was started do not go together.
        CommandError: If another rank has gone.
    """
    check_launch(mode)
    if mode is None:
        yield ALONE
        return
    here = int(os.environ.get("LOCAL_RANK", "0"))
    if here < torch.cuda.device_count():
        torch.cuda.set_device(here)
    try:
        _meet("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        ranks = Ranks(mode)
        with warnings.catch_warnings():
            if not ranks.leads:  # all ranks leave the same steps out, and one says so
                warnings.filterwarnings("ignore", "the gradient of .* was not finite")
            yield ranks
        gc.collect()  # what is left of the run holds groups, whose threads must end before Python
        dist.destroy_process_group()
    except RuntimeError as error:
        told = str(error).strip().splitlines() or [""]
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise CommandError(
            f"another rank has ended, and so does rank {os.environ['RANK']}; what was saved before "
            f"is whole ({told[0]})"
        ) from error


def _meet(backend: str) -> None:
    """Initialise torch.distributed, each start of torchrun by itself.

    torchrun keeps its store when it starts ranks again, and they could find the addresses of those
    before them. Nodes count their starts apart, so several of them are left to torch.
    """
    from torch.distributed.rendezvous import rendezvous

    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        dist.init_process_group(backend)
        return
    store, rank, size = next(rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"start-{start}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)


def check_launch(mode: Mode | None) -> None:
    """Raises UsageError unless this process was started in a way that fits the mode."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if mode is None:
        if size > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
            raise UsageError(
                f"torchrun has started {size} ranks, which would all train the same: say how they "
                f"share it, --parallel {', '.join(MODES)}"
            )
        return
    if any(name not in os.environ for name in _NEEDED):
        raise UsageError(
            f"--parallel {mode} is for the ranks that torchrun starts: torchrun --nproc-per-node 2 "
            f"-m deva_lab train --parallel {mode} …"
        )
    if mode == "hsdp":
        copies(size)


def launcher(ranks: Ranks) -> str:
    """What starts `deva` on as many ranks."""
    if ranks.mode is None:
        return "deva"
    local = _on_this_node(ranks.size)
    nodes = f"--nnodes {ranks.size // local} " if ranks.size > local else ""
    return f"torchrun {nodes}--nproc-per-node {local} -m deva_lab"


def _on_this_node(size: int) -> int:
    """How many of so many ranks are on a node, as torchrun says it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", size))


def copies(size: int) -> int:
    """The copies of the model that hsdp has on so many ranks: one a node, or two on a single one.

    >>> copies(4)
    2
    """
    local = _on_this_node(size)
    count = size // local if size > local else 2
    if size % local or size % count or size < 2 * count:
        raise UsageError(
            f"--parallel hsdp cuts the ranks into {count} copies of two or more shards, but there "
            f"are {size}: start an even number from 4 on, as many on every node, or take fsdp"
        )
    return count


def check(settings: RunSettings, ranks: Ranks) -> None:
    """Raises UsageError if these ranks cannot share this run."""
    if ranks.mode is None:
        return
    device, local = settings.device, _on_this_node(ranks.size)
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"--parallel trains on cpu or cuda, every rank on its own, got --device {device}"
        )
    if device == "cuda" and local > torch.cuda.device_count():
        raise UsageError(
            f"{local} ranks of this node need as many GPUs, but it has {torch.cuda.device_count()}:"
            " start fewer, or take --device cpu"
        )
    if settings.batch % ranks.size:
        raise UsageError(
            f"--batch {settings.batch} cannot be shared equally by {ranks.size} ranks: take a "
            f"multiple of {ranks.size}"
        )
    if settings.task in TASKS and TASKS[settings.task].whole_batch:
        raise UsageError(
            f"--task {settings.task} normalises over the whole batch, of which a rank sees a part: "
            "train it in one process, or take vit or mlp"
        )


# --- The model -----------------------------------------------------------------------------------


def spread(model: nn.Module, ranks: Ranks) -> nn.Module:
    """What computes the model over these ranks; its weights become shards under fsdp and hsdp."""
    if ranks.mode is None:
        return model
    if ranks.mode == "ddp":
        compute = nn.parallel.DistributedDataParallel(model)
        compute.broadcast_buffers = False  # they are tables that never change
        return compute
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    count = copies(ranks.size) if ranks.mode == "hsdp" else 1
    sizes = (count, ranks.size // count) if count > 1 else (ranks.size,)
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("copy", "shard")[-len(sizes) :])
    for layers in model.children():
        if isinstance(layers, nn.ModuleList | nn.Sequential):
            for layer in layers:
                fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def sharing(ranks: Ranks) -> ProcessGroup | None:
    """Who shares out the updates of weights that every rank has whole."""
    return dist.group.WORLD if ranks.mode == "ddp" else None


def settle_(model: nn.Module, ranks: Ranks, loss: Callable[[], Tensor]) -> None:
    """Let DDP put gradients into the order in which they come, which it learns from a first pass.

    It adds them up in that order, which decides how sums over three ranks and more are rounded: a
    run that goes on must have it in its first step as well.
    """
    if ranks.mode == "ddp":
        loss().backward()  # type: ignore[no-untyped-call]
        model.zero_grad()


def accumulating(compute: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """While this is entered DDP leaves gradients with their ranks, unless the batch is the last."""
    if last or not isinstance(compute, nn.parallel.DistributedDataParallel):
        return nullcontext()
    return compute.no_sync()
