"""Real processes for the tests: `run(size, function, …)` starts them and ends them in any case."""

import contextlib
import os
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# What the functions import: once for all ranks, which are forked from the process that has it.
PRELOADED = [
    "torch",
    "torch._dynamo",  # of the first step of an optimizer
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "deva_lab.run.training",
    "pytest",
]
LIMIT = 240  # seconds; on a quiet machine nothing here takes a tenth of it
SOON = 60  # seconds: far below the limit, far above what an error of another rank takes


def run(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What the function returns on each of so many ranks, None where it did not return.

    An error of any of them is raised.
    """
    if "forkserver" not in mp.get_all_start_methods():
        pytest.skip("needs POSIX: ranks are started by a fork server")
    mp.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _rank,
            (size, _free_port(), folder, function, args),
            nprocs=size,
            join=False,
            start_method="forkserver",
        )
        deadline = time.monotonic() + LIMIT
        try:
            while not context.join(timeout=1):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{function.__name__} did not end within {LIMIT} s")
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                process.join()
        files = [Path(folder) / str(rank) for rank in range(size)]
        return [torch.load(f, weights_only=False) if f.exists() else None for f in files]


def _rank(rank: int, size: int, port: int, folder: str, function: Any, args: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", category=FutureWarning)
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=limit)
    try:
        torch.save(function(*args), Path(folder) / str(rank))
    except BaseException:
        traceback.print_exc()
        raise
    with contextlib.suppress(RuntimeError):  # a rank that was lost cannot say goodbye
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
